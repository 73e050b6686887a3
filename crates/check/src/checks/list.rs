//! Lists: contents, order, conditional requests, and pages, which `Link` connects.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::client::Request;
use crate::response::Response;
use crate::run::{Check, Run, check, too_many};
use crate::verdict::{CheckResult, Verdict};

/// Attempts to read a list that other clients change concurrently.
const ATTEMPTS: usize = 5;
/// Maximum number of pages that are followed.
const PAGES: usize = 30;

pub(super) const LIST: &[Check] = &[
    check!(Interface, "list-response", "a list returns 200 with an array of plants without ids", responds),
    check!(Interface, "list-limit", "a list has at most `limit` plants", limit),
    check!(
        Full,
        "list-limit-exact",
        "a list has exactly `limit` plants if there are more, and none for 0",
        limit_exact
    ),
    check!(
        Full,
        "list-limit-invalid",
        "a limit that is not an int32 of at least 0, or is repeated, is 40004",
        rejected,
        40004,
        "limit=-1 limit= limit=ten limit=1.5 limit=1e3 limit=2147483648 limit=99999999999999999999 limit=%201 \
         limit=1&limit=1"
    ),
    check!(Full, "list-ids", "include=id adds the exact id of each plant", ids),
    check!(Full, "list-order", "a list is in ascending order of id", order),
    check!(
        Full,
        "list-include-invalid",
        "an unknown `include` is 40007",
        rejected,
        40007,
        "include= include=name include=id&include=id"
    ),
    check!(Full, "list-tag", "`tag` selects the plants with exactly this tag, and is 40007 if it is repeated", tag),
    check!(Full, "list-unknown-parameters", "unknown parameters are ignored", unknown_parameters),
    check!(Full, "list-caching", "lists are private, no-cache, and vary with Authorization", caching),
    check!(Full, "list-etag", "a list has a weak ETag, and is 304 as long as nothing has changed", etag),
    check!(Full, "list-etag-changes", "every create and delete changes the ETag", etag_changes),
    check!(Full, "list-events", "/events is a stream of events, which no cache stores", events),
    check!(Full, "list-head", "HEAD returns the same header fields without a body", head),
];

pub(super) const PAGE: &[Check] = &[
    check!(Full, "page-link", "every page but the last has a link to the next page", link),
    check!(Full, "page-walk", "the linked pages contain every plant exactly once", walk),
    check!(Full, "page-cursor-stable", "a cursor stays valid when the plant it points at is deleted", cursor_stable),
    check!(
        Full,
        "page-cursor-invalid",
        "a malformed cursor is 40006",
        rejected,
        40006,
        "limit=1&after= limit=1&after=x limit=1&after=!!! limit=1&after=1%00 \
         limit=1&after=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    ),
];

/// Requests lists with these parameters, separated by spaces, which must be rejected with this error code.
async fn rejected(run: &mut Run, code: i64, queries: &str) -> CheckResult {
    for query in queries.split(' ') {
        run.get(&format!("/plants?{query}")).await?.expect_error(code)?;
    }
    Ok(())
}

async fn responds(run: &mut Run) -> CheckResult {
    if run.may_create().is_ok() {
        run.fixture_plants().await?;
    }
    let listing = run.list("").await?;
    let response = &listing.response;
    response.expect_status(200)?;
    response.expect(response.is_json_type(), "the media type application/json")?;
    let is_plant = |json: &Value| json["name"].is_string() && json.get("tag").is_none_or(Value::is_string);
    let shaped = response.json()?.as_array().is_some_and(|plants| plants.iter().all(is_plant));
    response.expect(shaped, "plants: `name` is text, `tag` is text or absent")?;
    let shows_ids = listing.plants.iter().any(|plant| plant.id.is_some());
    response.expect(!shows_ids, "plants without `id`")
}

/// Only requests the head, because the stream does not end.
async fn events(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let response = run.send(Request::new("HEAD", "/events")).await?;
    response.expect_status(200)?;
    response.expect_header("content-type", "text/event-stream")?;
    response.expect_header("cache-control", "no-store")
}

async fn limit(run: &mut Run) -> CheckResult {
    for limit in [1, 2] {
        let listing = run.list_at(&format!("/plants?limit={limit}")).await?;
        listing.response.expect(listing.plants.len() <= limit, format_args!("at most {limit} plants"))?;
    }
    Ok(())
}

async fn limit_exact(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let fixtures = run.fixture_plants().await?;
    for limit in [0, 1, fixtures.len()] {
        let listing = run.list_at(&format!("/plants?limit={limit}")).await?;
        listing
            .response
            .expect(listing.plants.len() == limit, format_args!("{limit} plants, because there are more"))?;
    }
    if run.reads_all {
        let listing = run.list_at("/plants?limit=2147483647").await?;
        listing.response.expect(listing.plants.len() >= fixtures.len(), "all plants")?;
    }
    Ok(())
}

async fn ids(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let fixtures = run.fixture_plants().await?;
    let listing = run.list("include=id").await?;
    run.expect_listed(&listing, &fixtures)?;
    for created in fixtures {
        let there = listing.plants.iter().any(|plant| plant.id.is_some() && created.is_shown_as(plant));
        listing.response.expect(there, format_args!("`{}` with the id {}", created.name, created.id))?;
    }
    let all_have_one = listing.plants.iter().all(|plant| plant.id.is_some());
    listing.response.expect(all_have_one, "an id with each plant")
}

async fn order(run: &mut Run) -> CheckResult {
    if run.may_create().is_ok() {
        run.fixture_plants().await?;
    }
    let listing = run.list("include=id").await?;
    let ascending = listing.plants.is_sorted_by_key(|plant| plant.id);
    listing.response.expect(ascending, "ascending ids")
}

async fn tag(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let plant = run.new_plant("tagged");
    let tag = format!("tag of {}", plant.id);
    let [plant, other] = [plant.with_tag(&tag), run.new_plant("other tag").with_tag(&tag.to_uppercase())];
    run.create(&plant).await?.expect_success()?;
    run.create(&other).await?.expect_success()?;
    let query = tag.replace(' ', "%20");
    let listing = run.list_at(&format!("/plants?include=id&tag={query}")).await?;
    let is_selected = matches!(&listing.plants[..], [only] if plant.is_shown_as(only));
    listing.response.expect(is_selected, format_args!("`{}`, the only plant with this tag", plant.name))?;
    run.get(&format!("/plants?tag={query}&tag={query}")).await?.expect_error(40007)?;
    run.remove(other.id).await?;
    run.remove(plant.id).await
}

async fn unknown_parameters(run: &mut Run) -> CheckResult {
    let listing = run.list_at("/plants?colour=green&limit=1&sort=desc&colour=red").await?;
    listing.response.expect(listing.plants.len() <= 1, "at most one plant")
}

async fn caching(run: &mut Run) -> CheckResult {
    let response = run.get("/plants?limit=1").await?;
    response.expect_header("cache-control", "private, no-cache")?;
    let varies = response.headers.iter().filter(|(name, _)| name == "vary").flat_map(|(_, value)| value.split(','));
    let varies = varies.map(str::trim).any(|field| field.eq_ignore_ascii_case("authorization"));
    response.expect(varies, "`Vary: Authorization`")
}

fn etag_of(response: &Response) -> CheckResult<String> {
    response.expect_success()?;
    let tag = response.header("etag").filter(|tag| tag.starts_with("W/\"") && tag.ends_with('"'));
    tag.map(str::to_owned).ok_or_else(|| response.failure("a weak ETag"))
}

async fn get_if_none_match(run: &mut Run, tag: &str) -> CheckResult<Response> {
    run.may_read()?;
    run.send(Request::new("GET", "/plants?limit=1").with("if-none-match", tag)).await
}

async fn etag(run: &mut Run) -> CheckResult {
    for _ in 0..ATTEMPTS {
        let tag = etag_of(&run.get("/plants?limit=1").await?)?;
        let response = get_if_none_match(run, &tag).await?;
        if response.status == 304 {
            return response
                .expect(response.body.is_empty() && response.header("etag") == Some(&tag), "304 with its ETag");
        }
        // Another client may have changed the list in between; then the tag is a different one.
        response.expect(etag_of(&response)? != tag, "304, because nothing has changed")?;
    }
    Err(always_changing())
}

async fn etag_changes(run: &mut Run) -> CheckResult {
    run.may_create()?;
    let before = etag_of(&run.get("/plants?limit=1").await?)?;
    let plant = run.existing_plant("tag").await?;
    let response = get_if_none_match(run, &before).await?;
    response.expect_success()?;
    let between = etag_of(&response)?;
    response.expect(between != before, "another ETag after a create")?;
    run.remove(plant.id).await?;
    let response = get_if_none_match(run, &between).await?;
    response.expect_success()?;
    let after = etag_of(&response)?;
    response.expect(after != between && after != before, "another ETag after a delete")
}

async fn head(run: &mut Run) -> CheckResult {
    for _ in 0..ATTEMPTS {
        let full = run.get("/plants?limit=1").await?;
        let bare = run.send(Request::new("HEAD", "/plants?limit=1")).await?;
        if bare.status == 200 && bare.header("etag").is_some() && bare.header("etag") != full.header("etag") {
            continue;
        }
        bare.expect(bare.status == full.status && bare.body.is_empty(), format_args!("{} and no body", full.status))?;
        for name in ["content-type", "etag", "cache-control", "vary", "link"] {
            let same = bare.header(name) == full.header(name);
            bare.expect(same, format_args!("the same `{name}` as for GET"))?;
        }
        return Ok(());
    }
    Err(always_changing())
}

fn always_changing() -> Verdict {
    Verdict::NotApplicable("the plants change all the time: use a separate user for checks".to_owned())
}

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
        found.extend(listing.plants);
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
    for plant in &fixtures {
        let times = found.iter().filter(|found| found.id == Some(plant.id) && found.name == plant.name).count();
        listing.response.expect(times == 1, format_args!("`{}` on exactly one page, not on {times}", plant.name))?;
    }
    Ok(())
}

/// Deletes the last plant of a page, and continues from there.
async fn cursor_stable(run: &mut Run) -> CheckResult {
    run.may_read()?;
    run.fixture_plants().await?;
    let last = run.existing_plant("page").await?;
    let following = run.existing_plant("page after").await?;
    let listing = run.list("include=id").await?;
    let Some(place) = listing.plants.iter().position(|plant| plant.id == Some(last.id)) else {
        run.expect_listed(&listing, [&last])?;
        return Err(listing.response.failure(format_args!("the id {}", last.id)));
    };
    let page = run.list_at(&format!("/plants?include=id&limit={}", place + 1)).await?;
    let ends_there = page.plants.last().is_some_and(|plant| plant.id == Some(last.id));
    page.response.expect(ends_there, format_args!("a page that ends with `{}`", last.name))?;
    let address = next(&page.response)?.ok_or_else(|| page.response.failure("a `Link` to the next page"))?;
    run.remove(last.id).await?;
    let rest = run.list_at(&address).await?;
    let before: BTreeSet<_> = page.plants.iter().map(|plant| plant.id).collect();
    let goes_on = rest.plants.iter().any(|plant| plant.id == Some(following.id))
        && !rest.plants.iter().any(|plant| run.is_of_this_run(&plant.name) && before.contains(&plant.id));
    rest.response.expect(goes_on, format_args!("the plants that follow, `{}` among them", following.name))?;
    run.remove(following.id).await
}
