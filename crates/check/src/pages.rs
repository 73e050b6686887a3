//! Pages: following `Link` visits every plant once.

use std::collections::BTreeSet;

use super::answer::Answer;
use super::visit::{Visit, too_many};
use super::{Check, Level, Outcome};

/// Pages that are followed at the most.
const PAGES: usize = 30;

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        Level::Full,
        "page-link",
        "a page that leaves plants out links to the next, and the last does not",
        |visit| Box::pin(link(visit)),
    ),
    Check::new(Level::Full, "page-walk", "following the links visits every plant exactly once", |visit| {
        Box::pin(walk(visit))
    }),
    Check::new(Level::Full, "page-cursor-lasts", "a cursor outlives the plant that it points at", |visit| {
        Box::pin(cursor_lasts(visit))
    }),
    Check::new(Level::Full, "page-cursor-bad", "a cursor that is malformed is 40006", |visit| {
        Box::pin(cursor_bad(visit))
    }),
];

/// The address of the next page.
fn next(answer: &Answer) -> Outcome<Option<String>> {
    let Some(link) = answer.header("link") else { return Ok(None) };
    let address = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
    let address = address.filter(|address| address.starts_with("/plants?"));
    address.map(|address| Some(address.to_owned())).ok_or_else(|| answer.broken("`Link: </plants?…>; rel=\"next\"`"))
}

async fn link(visit: &mut Visit) -> Outcome {
    visit.may_read()?;
    visit.bed().await?;
    let first = visit.get("/plants?limit=1").await?;
    first.expect(next(&first)?.is_some(), "a `Link` to the next page")?;
    let whole = visit.list("").await?.answer;
    whole.expect(!visit.reads_all || next(&whole)?.is_none(), "no `Link`, because nothing is left out")
}

/// Pages of such a size that the walk has several, and not too many.
async fn walk(visit: &mut Visit) -> Outcome {
    visit.may_read()?;
    let bed = visit.bed().await?;
    let all = visit.list("").await?.plants.len();
    let size = (2 * all / PAGES).max(2);
    let mut address = Some(format!("/plants?limit={size}&include=id"));
    let mut found = Vec::new();
    for _ in 0..PAGES {
        let Some(page) = address else { break };
        let listing = visit.list_at(&page).await?;
        listing.answer.expect(listing.plants.len() <= size, format_args!("{size} plants at the most"))?;
        found.extend(listing.plants.into_iter().map(|plant| (plant.name, plant.id)));
        address = next(&listing.answer)?;
        if let Some(address) = &address {
            let goes_on = address.contains("include=id") && *address != page;
            listing.answer.expect(goes_on, "a next page of the same view, and another one")?;
        }
    }
    if address.is_some() && !visit.reads_all {
        return Err(too_many());
    }
    let listing = visit.list("include=id").await?;
    listing.answer.expect(address.is_none(), format_args!("an end of the links to pages of {size} plants"))?;
    let ours: Vec<_> = bed.into_iter().map(|plant| (plant.name, Some(plant.id))).collect();
    for plant in &ours {
        let times = found.iter().filter(|found| *found == plant).count();
        listing.answer.expect(times == 1, format_args!("`{}` on exactly one page, not on {times}", plant.0))?;
    }
    Ok(())
}

/// Deletes the last plant of a page, and goes on from there.
async fn cursor_lasts(visit: &mut Visit) -> Outcome {
    visit.may_read()?;
    visit.bed().await?;
    let (id, name) = (visit.ledger.id(), visit.ledger.name("page"));
    let (after, later) = (visit.ledger.id(), visit.ledger.name("page after"));
    visit.plant(id, &name, None).await?;
    visit.plant(after, &later, None).await?;
    let listing = visit.list("include=id").await?;
    let place = listing.plants.iter().position(|plant| plant.id == Some(id));
    let Some(place) = place else {
        visit.expect_listed(&listing, &[&name])?;
        return Err(listing.answer.broken(format_args!("the id {id}")));
    };
    let page = visit.list_at(&format!("/plants?include=id&limit={}", place + 1)).await?;
    let ends_there = page.plants.last().is_some_and(|plant| plant.id == Some(id));
    page.answer.expect(ends_there, format_args!("a page that ends with `{name}`"))?;
    let address = next(&page.answer)?.ok_or_else(|| page.answer.broken("a `Link` to the next page"))?;
    visit.uproot(id).await?;
    let rest = visit.list_at(&address).await?;
    let before: BTreeSet<_> = page.plants.iter().map(|plant| plant.id).collect();
    let goes_on = rest.plants.iter().any(|plant| plant.id == Some(after))
        && !rest.plants.iter().any(|plant| visit.is_of_this_visit(&plant.name) && before.contains(&plant.id));
    rest.answer.expect(goes_on, format_args!("the plants that follow, `{later}` among them"))?;
    visit.uproot(after).await
}

async fn cursor_bad(visit: &mut Visit) -> Outcome {
    for cursor in ["", "x", "!!!", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "1%00"] {
        visit.get(&format!("/plants?limit=1&after={cursor}")).await?.expect_error(400, 40006)?;
    }
    Ok(())
}
