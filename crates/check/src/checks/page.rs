//! Pages: following `Link` visits every plant once.

use std::collections::BTreeSet;

use crate::check::Check;
use crate::error::Outcome;
use crate::options::Level;
use crate::response::Response;
use crate::run::{Run, too_many};

/// Pages that are followed at most.
const PAGES: usize = 30;

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        Level::Full,
        "page-link",
        "a page that leaves plants out links to the next, and the last does not",
        |run| Box::pin(link(run)),
    ),
    Check::new(Level::Full, "page-walk", "following the links visits every plant exactly once", |run| {
        Box::pin(walk(run))
    }),
    Check::new(Level::Full, "page-cursor-lasts", "a cursor outlives the plant that it points at", |run| {
        Box::pin(cursor_lasts(run))
    }),
    Check::new(Level::Full, "page-cursor-bad", "a cursor that is malformed is 40006", |run| Box::pin(cursor_bad(run))),
];

/// Returns the URL of the next page.
fn next(response: &Response) -> Outcome<Option<String>> {
    let Some(link) = response.header("link") else { return Ok(None) };
    let address = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
    let address = address.filter(|address| address.starts_with("/plants?"));
    address.map(|address| Some(address.to_owned())).ok_or_else(|| response.failure("`Link: </plants?…>; rel=\"next\"`"))
}

async fn link(run: &mut Run) -> Outcome {
    run.may_read()?;
    run.fixture_plants().await?;
    let first = run.get("/plants?limit=1").await?;
    first.expect(next(&first)?.is_some(), "a `Link` to the next page")?;
    let whole = run.list("").await?.response;
    whole.expect(!run.reads_all || next(&whole)?.is_none(), "no `Link`, because nothing is left out")
}

/// Follows pages of such a size that there are several, and not too many.
async fn walk(run: &mut Run) -> Outcome {
    run.may_read()?;
    let fixtures = run.fixture_plants().await?;
    let all = run.list("").await?.plants.len();
    let size = (2 * all / PAGES).max(2);
    let mut address = Some(format!("/plants?limit={size}&include=id"));
    let mut found = Vec::new();
    for _ in 0..PAGES {
        let Some(page) = address else { break };
        let listing = run.list_at(&page).await?;
        listing.response.expect(listing.plants.len() <= size, format_args!("{size} plants at the most"))?;
        found.extend(listing.plants.into_iter().map(|plant| (plant.name, plant.id)));
        address = next(&listing.response)?;
        if let Some(address) = &address {
            let goes_on = address.contains("include=id") && *address != page;
            listing.response.expect(goes_on, "a next page of the same view, and another one")?;
        }
    }
    if address.is_some() && !run.reads_all {
        return Err(too_many());
    }
    let listing = run.list("include=id").await?;
    listing.response.expect(address.is_none(), format_args!("an end of the links to pages of {size} plants"))?;
    let ours: Vec<_> = fixtures.into_iter().map(|plant| (plant.name, Some(plant.id))).collect();
    for plant in &ours {
        let times = found.iter().filter(|found| *found == plant).count();
        listing.response.expect(times == 1, format_args!("`{}` on exactly one page, not on {times}", plant.0))?;
    }
    Ok(())
}

/// Deletes the last plant of a page, and continues from there.
async fn cursor_lasts(run: &mut Run) -> Outcome {
    run.may_read()?;
    run.fixture_plants().await?;
    let (id, name) = (run.tracker.new_id(), run.tracker.name("page"));
    let (after, later) = (run.tracker.new_id(), run.tracker.name("page after"));
    run.create_plant(id, &name, None).await?;
    run.create_plant(after, &later, None).await?;
    let listing = run.list("include=id").await?;
    let place = listing.plants.iter().position(|plant| plant.id == Some(id));
    let Some(place) = place else {
        run.expect_listed(&listing, &[&name])?;
        return Err(listing.response.failure(format_args!("the id {id}")));
    };
    let page = run.list_at(&format!("/plants?include=id&limit={}", place + 1)).await?;
    let ends_there = page.plants.last().is_some_and(|plant| plant.id == Some(id));
    page.response.expect(ends_there, format_args!("a page that ends with `{name}`"))?;
    let address = next(&page.response)?.ok_or_else(|| page.response.failure("a `Link` to the next page"))?;
    run.remove(id).await?;
    let rest = run.list_at(&address).await?;
    let before: BTreeSet<_> = page.plants.iter().map(|plant| plant.id).collect();
    let goes_on = rest.plants.iter().any(|plant| plant.id == Some(after))
        && !rest.plants.iter().any(|plant| run.is_of_this_run(&plant.name) && before.contains(&plant.id));
    rest.response.expect(goes_on, format_args!("the plants that follow, `{later}` among them"))?;
    run.remove(after).await
}

async fn cursor_bad(run: &mut Run) -> Outcome {
    for cursor in ["", "x", "!!!", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "1%00"] {
        run.get(&format!("/plants?limit=1&after={cursor}")).await?.expect_error(400, 40006)?;
    }
    Ok(())
}
