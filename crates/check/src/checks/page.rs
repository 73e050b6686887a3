//! Pagination: the pages linked by `Link` contain every plant once.

use std::collections::BTreeSet;

use crate::check::{Check, check};
use crate::error::CheckResult;
use crate::response::Response;
use crate::run::{Run, too_many};

/// Maximum number of pages that are followed.
const PAGES: usize = 30;

pub(super) const CHECKS: &[Check] = &[
    check!(Full, "page-link", "every page but the last has a link to the next page", link),
    check!(Full, "page-walk", "the linked pages contain every plant exactly once", walk),
    check!(Full, "page-cursor-stable", "a cursor stays valid when the plant it points at is deleted", cursor_stable),
    check!(Full, "page-cursor-invalid", "a malformed cursor is 40006", cursor_invalid),
];

/// Returns the URL of the next page.
fn next(response: &Response) -> CheckResult<Option<String>> {
    let Some(link) = response.header("link") else { return Ok(None) };
    let address = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
    let address = address.filter(|address| address.starts_with("/plants?"));
    address.map(|address| Some(address.to_owned())).ok_or_else(|| response.failure("`Link: </plants?…>; rel=\"next\"`"))
}

async fn link(run: &mut Run) -> CheckResult {
    run.may_read()?;
    run.fixture_plants().await?;
    let first = run.get("/plants?limit=1").await?;
    first.expect(next(&first)?.is_some(), "a `Link` to the next page")?;
    let whole = run.list("").await?.response;
    whole.expect(!run.reads_all || next(&whole)?.is_none(), "no `Link`, because nothing is left out")
}

/// Follows the links. The page size is chosen so that there are several pages, and not too many.
async fn walk(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let fixtures = run.fixture_plants().await?;
    let all = run.list("").await?.plants.len();
    let size = (2 * all / PAGES).max(2);
    let mut address = Some(format!("/plants?limit={size}&include=id"));
    let mut found = Vec::new();
    for _ in 0..PAGES {
        let Some(page) = address else { break };
        let listing = run.list_at(&page).await?;
        listing.response.expect(listing.plants.len() <= size, format_args!("at most {size} plants"))?;
        found.extend(listing.plants.into_iter().map(|plant| (plant.name, plant.id)));
        address = next(&listing.response)?;
        if let Some(address) = &address {
            let goes_on = address.contains("include=id") && *address != page;
            listing.response.expect(goes_on, "a link to a different page with the same parameters")?;
        }
    }
    if address.is_some() && !run.reads_all {
        return Err(too_many());
    }
    let listing = run.list("include=id").await?;
    listing.response.expect(address.is_none(), format_args!("a last page, with {size} plants per page"))?;
    let ours: Vec<_> = fixtures.into_iter().map(|plant| (plant.name, Some(plant.id))).collect();
    for plant in &ours {
        let times = found.iter().filter(|found| *found == plant).count();
        listing.response.expect(times == 1, format_args!("`{}` on exactly one page, not on {times}", plant.0))?;
    }
    Ok(())
}

/// Deletes the last plant of a page, and continues from there.
async fn cursor_stable(run: &mut Run) -> CheckResult {
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

async fn cursor_invalid(run: &mut Run) -> CheckResult {
    for cursor in ["", "x", "!!!", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "1%00"] {
        run.get(&format!("/plants?limit=1&after={cursor}")).await?.expect_error(400, 40006)?;
    }
    Ok(())
}
