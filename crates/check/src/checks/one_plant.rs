//! Deleting, reading and replacing one plant.

use crate::cleanup_tracker::TestPlant;
use crate::client::Request;
use crate::run::{Check, Run, check};
use crate::verdict::CheckResult;
use plantstore_model::token::Scope;

const NOT_DELETED: &str = "a deleted plant is still there: no more plants are created";

pub(super) const DELETE: &[Check] = &[
    check!(Interface, "delete-response", "a delete returns 204 without a body", responds),
    check!(Interface, "delete-removes", "a deleted plant is gone, and no other plant", removes),
    check!(Full, "delete-no-content-type", "the response to a delete has no Content-Type", no_content_type),
    check!(Full, "delete-unknown", "an unknown id is 404, always with the same body", unknown),
    check!(Full, "delete-invalid-id", "an id in the path that is not an int64 is 400", invalid_id),
];

pub(super) const READ: &[Check] = &[
    check!(Full, "read-plant", "a plant can be read at the address that Location has", reads),
    check!(Full, "read-unknown", "an unknown id is the same 404 as for a delete", reads_unknown),
];

pub(super) const REPLACE: &[Check] = &[
    check!(Full, "replace-plant", "a replaced plant has the new name and tag, in lists with another ETag", replaces),
    check!(Full, "replace-unknown", "an unknown id is 404, and no plant is created", replaces_unknown),
    check!(Full, "replace-invalid", "a body without `name`, or with another id than the path, is 400", replace_invalid),
];

async fn responds(run: &mut Run) -> CheckResult {
    let plant = run.existing_plant("delete").await?;
    let response = run.delete(plant.id).await?;
    response.expect_status(204)?;
    response.expect(response.body.is_empty(), "no body")
}

async fn removes(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let fixtures = run.fixture_plants().await?;
    let plant = run.existing_plant("removed").await?;
    run.remove(plant.id).await?;
    let listing = run.list("").await?;
    let stays = listing.contains(&plant.name);
    if stays {
        run.creating_stopped = Some(NOT_DELETED);
    }
    listing.response.expect(!stays, format_args!("a list without `{}`, which was deleted", plant.name))?;
    run.expect_listed(&listing, &fixtures)
}

async fn no_content_type(run: &mut Run) -> CheckResult {
    let plant = run.existing_plant("bare").await?;
    let response = run.delete(plant.id).await?;
    response.expect(response.is_success() && response.header("content-type").is_none(), "no Content-Type")
}

async fn unknown(run: &mut Run) -> CheckResult {
    let plant = run.existing_plant("twice").await?;
    run.remove(plant.id).await?;
    let again = run.delete(plant.id).await?;
    again.expect_error(40400)?;
    let never = run.tracker.new_id();
    let never = run.delete(never).await?;
    never.expect_error(40400)?;
    never.expect(never.body == again.body, "the same body for every unknown id")
}

/// Uses ids that no plant has if a server still reads a number from them, so that nothing is deleted.
async fn invalid_id(run: &mut Run) -> CheckResult {
    if !run.scopes.contains(Scope::Delete) {
        run.may_create()?;
    }
    let id = run.tracker.new_id();
    let mut bad: Vec<String> = vec!["none".to_owned(), format!("{id}.0"), format!("{id}e0"), format!("-0{}", -id)];
    // Some servers wrap or clamp them, and would delete the plant at the end of the range.
    if run.facts.ends_are_free {
        bad.extend(["9223372036854775808", "-9223372036854775809"].map(str::to_owned));
    }
    for id in bad {
        run.send(Request::new("DELETE", format!("/plants/{id}"))).await?.expect_error(40005)?;
    }
    Ok(())
}

async fn reads(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let fixture = run.fixture_plants().await?.swap_remove(0);
    let response = run.get(&format!("/plants/{}?include=id", fixture.id)).await?;
    let plant = response.plant()?;
    let is_same = plant.id.is_some() && fixture.is_shown_as(&plant);
    response.expect(is_same, format_args!("the plant `{}` with its id", fixture.name))
}

async fn reads_unknown(run: &mut Run) -> CheckResult {
    let id = run.tracker.new_id();
    let read = run.get(&format!("/plants/{id}")).await?;
    read.expect_error(40400)?;
    if run.scopes.contains(Scope::Delete) {
        let deleted = run.delete(id).await?;
        read.expect(read.body == deleted.body, "the same body as for a delete")?;
    }
    Ok(())
}

fn replacement(id: i64, body: impl Into<String>) -> Request {
    Request::json("PUT", format!("/plants/{id}"), body)
}

async fn replaces(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let plant = run.new_plant("typing eror").with_tag("old");
    run.create(&plant).await?.expect_success()?;
    let before = run.get("/plants?limit=1").await?;
    let corrected = run.new_plant("typing error").name;
    for tag in [Some("new".to_owned()), None] {
        let plant = TestPlant { name: corrected.clone(), tag, ..plant };
        let response = run.send(replacement(plant.id, plant.json())).await?;
        response.expect_status(200)?;
        response.expect(plant.is_shown_as(&response.plant()?), format_args!("the plant `{}`", plant.name))?;
        let read = run.get(&format!("/plants/{}", plant.id)).await?;
        read.expect(plant.is_shown_as(&read.plant()?), format_args!("the plant `{}`, as it was replaced", plant.name))?;
    }
    let after = run.get("/plants?limit=1").await?;
    after.expect(after.header("etag") != before.header("etag"), "another ETag after a replacement")?;
    run.remove(plant.id).await
}

async fn replaces_unknown(run: &mut Run) -> CheckResult {
    run.may_create()?;
    let plant = run.new_plant("never created");
    // A server that creates it instead must not keep it.
    let response = run.create_with(plant.id, replacement(plant.id, plant.json())).await?;
    response.expect_error(40400)?;
    let deleted = run.delete(plant.id).await?;
    response.expect(response.body == deleted.body, "the same body as for a delete")
}

async fn replace_invalid(run: &mut Run) -> CheckResult {
    let plant = run.existing_plant("unchanged").await?;
    let other = run.tracker.new_id();
    run.send(replacement(plant.id, "{}")).await?.expect_error(40001)?;
    run.send(replacement(plant.id, format!(r#"{{"id": {other}, "name": "x"}}"#))).await?.expect_error(40002)?;
    run.remove(plant.id).await
}
