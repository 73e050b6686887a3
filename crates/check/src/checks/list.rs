//! Lists: contents, order and conditional requests.

use crate::check::{Check, check};
use crate::error::{CheckError, CheckResult};
use crate::request::Request;
use crate::response::{ListedPlant, Response, is_plant};
use crate::run::Run;

/// Attempts to read a list that other clients change concurrently.
const ATTEMPTS: usize = 5;

pub(super) const CHECKS: &[Check] = &[
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
        limit_invalid
    ),
    check!(Full, "list-ids", "include=id adds the exact id of each plant", ids),
    check!(Full, "list-order", "a list is in ascending order of id", order),
    check!(Full, "list-include-invalid", "an unknown `include` is 40007", include_invalid),
    check!(Full, "list-unknown-parameters", "unknown parameters are ignored", unknown_parameters),
    check!(Full, "list-caching", "lists are private, no-cache, and vary with Authorization", caching),
    check!(Full, "list-etag", "a list has a weak ETag, and is 304 as long as nothing has changed", etag),
    check!(Full, "list-etag-changes", "every create and delete changes the ETag", etag_changes),
    check!(Full, "list-head", "HEAD returns the same header fields without a body", head),
];

async fn responds(run: &mut Run) -> CheckResult {
    if run.may_create().is_ok() {
        run.fixture_plants().await?;
    }
    let listing = run.list("").await?;
    let response = &listing.response;
    response.expect_status(200)?;
    response.expect(response.is_json_type(), "the media type application/json")?;
    let shaped = response.json()?.as_array().is_some_and(|plants| plants.iter().all(is_plant));
    response.expect(shaped, "plants: `name` is text, `tag` is text or absent")?;
    let shows_ids = listing.plants.iter().any(|plant| plant.id.is_some());
    response.expect(!shows_ids, "plants without `id`")
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

async fn limit_invalid(run: &mut Run) -> CheckResult {
    for query in [
        "limit=-1",
        "limit=",
        "limit=ten",
        "limit=1.5",
        "limit=1e3",
        "limit=2147483648",
        "limit=99999999999999999999",
        "limit=%201",
        "limit=1&limit=1",
    ] {
        run.get(&format!("/plants?{query}")).await?.expect_error(400, 40004)?;
    }
    Ok(())
}

async fn ids(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let fixtures = run.fixture_plants().await?;
    let listing = run.list("include=id").await?;
    let names: Vec<&str> = fixtures.iter().map(|plant| plant.name.as_str()).collect();
    run.expect_listed(&listing, &names)?;
    for created in fixtures {
        let expected = ListedPlant { id: Some(created.id), name: created.name, tag: created.tag };
        let there = listing.plants.contains(&expected);
        listing.response.expect(there, format_args!("`{}` with the id {}", expected.name, created.id))?;
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

async fn include_invalid(run: &mut Run) -> CheckResult {
    for query in ["include=", "include=name", "include=id&include=id"] {
        run.get(&format!("/plants?{query}")).await?.expect_error(400, 40007)?;
    }
    Ok(())
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
    let (id, name) = (run.tracker.new_id(), run.tracker.name("tag"));
    run.create_plant(id, &name, None).await?;
    let response = get_if_none_match(run, &before).await?;
    response.expect_success()?;
    let between = etag_of(&response)?;
    response.expect(between != before, "another ETag after a create")?;
    run.remove(id).await?;
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

fn always_changing() -> CheckError {
    CheckError::NotApplicable("the plants change all the time: use a separate user for checks".to_owned())
}
