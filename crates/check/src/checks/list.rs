//! Lists: contents, order and conditional requests.

use crate::check::Check;
use crate::error::{CheckError, Outcome};
use crate::options::Level;
use crate::request::Request;
use crate::response::{ListedPlant, Response, is_plant};
use crate::run::Run;

/// Attempts to read a list that other clients change concurrently.
const ATTEMPTS: usize = 5;

pub(super) const CHECKS: &[Check] = &[
    Check::new(Level::Interface, "list-answers", "a list is answered 200 with an array of plants without id", |run| {
        Box::pin(responds(run))
    }),
    Check::new(Level::Interface, "list-limit", "a list holds at most `limit` plants", |run| Box::pin(limit(run))),
    Check::new(Level::Full, "list-limit-exact", "`limit` plants where there are more, and none for 0", |run| {
        Box::pin(limit_exact(run))
    }),
    Check::new(Level::Full, "list-limit-bad", "a limit that is no int32 from 0 up, or comes twice, is 40004", |run| {
        Box::pin(limit_bad(run))
    }),
    Check::new(Level::Full, "list-ids", "include=id adds the exact id of each plant", |run| Box::pin(ids(run))),
    Check::new(Level::Full, "list-order", "a list ascends by id", |run| Box::pin(order(run))),
    Check::new(Level::Full, "list-include-bad", "an `include` of something else is 40007", |run| {
        Box::pin(include_bad(run))
    }),
    Check::new(Level::Full, "list-unknown-parameters", "unknown parameters are ignored", |run| {
        Box::pin(unknown_parameters(run))
    }),
    Check::new(Level::Full, "list-caching", "lists are private, no-cache, and vary with Authorization", |run| {
        Box::pin(caching(run))
    }),
    Check::new(Level::Full, "list-etag", "a weak ETag, and 304 as long as nothing has changed", |run| {
        Box::pin(etag(run))
    }),
    Check::new(Level::Full, "list-etag-moves", "the ETag moves with every create and delete", |run| {
        Box::pin(etag_moves(run))
    }),
    Check::new(Level::Full, "list-head", "HEAD answers the same header fields without a body", |run| {
        Box::pin(head(run))
    }),
];

async fn responds(run: &mut Run) -> Outcome {
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

async fn limit(run: &mut Run) -> Outcome {
    for limit in [1, 2] {
        let listing = run.list_at(&format!("/plants?limit={limit}")).await?;
        listing.response.expect(listing.plants.len() <= limit, format_args!("{limit} plants at the most"))?;
    }
    Ok(())
}

async fn limit_exact(run: &mut Run) -> Outcome {
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

async fn limit_bad(run: &mut Run) -> Outcome {
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

async fn ids(run: &mut Run) -> Outcome {
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

async fn order(run: &mut Run) -> Outcome {
    if run.may_create().is_ok() {
        run.fixture_plants().await?;
    }
    let listing = run.list("include=id").await?;
    let ascending = listing.plants.is_sorted_by_key(|plant| plant.id);
    listing.response.expect(ascending, "ascending ids")
}

async fn include_bad(run: &mut Run) -> Outcome {
    for query in ["include=", "include=name", "include=id&include=id"] {
        run.get(&format!("/plants?{query}")).await?.expect_error(400, 40007)?;
    }
    Ok(())
}

async fn unknown_parameters(run: &mut Run) -> Outcome {
    let listing = run.list_at("/plants?colour=green&limit=1&sort=desc&colour=red").await?;
    listing.response.expect(listing.plants.len() <= 1, "one plant at the most")
}

async fn caching(run: &mut Run) -> Outcome {
    let response = run.get("/plants?limit=1").await?;
    response.expect_header("cache-control", "private, no-cache")?;
    let varies = response.headers.iter().filter(|(name, _)| name == "vary").flat_map(|(_, value)| value.split(','));
    let varies = varies.map(str::trim).any(|field| field.eq_ignore_ascii_case("authorization"));
    response.expect(varies, "`Vary: Authorization`")
}

fn tag_of(response: &Response) -> Outcome<String> {
    response.expect_success()?;
    let tag = response.header("etag").filter(|tag| tag.starts_with("W/\"") && tag.ends_with('"'));
    tag.map(str::to_owned).ok_or_else(|| response.failure("a weak ETag"))
}

async fn unless(run: &mut Run, tag: &str) -> Outcome<Response> {
    run.may_read()?;
    run.send(Request::new("GET", "/plants?limit=1").with("if-none-match", tag)).await
}

async fn etag(run: &mut Run) -> Outcome {
    for _ in 0..ATTEMPTS {
        let tag = tag_of(&run.get("/plants?limit=1").await?)?;
        let response = unless(run, &tag).await?;
        if response.status == 304 {
            return response
                .expect(response.body.is_empty() && response.header("etag") == Some(&tag), "304 with its ETag");
        }
        // Another client may have changed the list in between; then the tag is a different one.
        response.expect(tag_of(&response)? != tag, "304, because nothing has changed")?;
    }
    Err(always_changing())
}

async fn etag_moves(run: &mut Run) -> Outcome {
    run.may_create()?;
    let before = tag_of(&run.get("/plants?limit=1").await?)?;
    let (id, name) = (run.tracker.new_id(), run.tracker.name("tag"));
    run.create_plant(id, &name, None).await?;
    let response = unless(run, &before).await?;
    response.expect_success()?;
    let between = tag_of(&response)?;
    response.expect(between != before, "another ETag after a create")?;
    run.remove(id).await?;
    let response = unless(run, &between).await?;
    response.expect_success()?;
    let after = tag_of(&response)?;
    response.expect(after != between && after != before, "another ETag after a delete")
}

async fn head(run: &mut Run) -> Outcome {
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
    CheckError::NotApplicable("the plants change all the time: use a user of its own for checks".to_owned())
}
