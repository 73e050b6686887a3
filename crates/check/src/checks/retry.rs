//! Retries with an idempotency key.

use crate::check::{Check, check};
use crate::error::CheckResult;
use crate::request::{Request, plant_json};
use crate::run::Run;

const KEY: &str = "idempotency-key";
const REPLAYED: &str = "idempotency-replayed";

pub(super) const CHECKS: &[Check] = &[
    check!(Full, "retry-create", "a create that is repeated with its key gets the same response", create),
    check!(Full, "retry-delete", "a delete that is repeated with its key gets the same response", delete),
    check!(Full, "retry-rejected", "a rejected request that is repeated with its key gets the same response", rejected),
    check!(Full, "retry-key-reused", "a key that is reused for another request is 422", key_reused),
    check!(Full, "retry-invalid-key", "a malformed key is 40007", invalid_key),
];

/// Returns a key of this run. It is random because ids are.
fn key(run: &mut Run) -> String {
    format!("check-{}", run.tracker.new_id())
}

async fn create(run: &mut Run) -> CheckResult {
    let (id, name, key) = (run.tracker.new_id(), run.tracker.name("again"), key(run));
    let request = Request::create(plant_json(id, &name, Some("again"))).with(KEY, &*key);
    let first = run.create(id, request.clone()).await?;
    first.expect_success()?;
    first.expect(first.header(REPLAYED).is_none(), "a first response without Idempotency-Replayed")?;
    let again = run.create(id, request).await?;
    again.expect(again.status == first.status && again.body == first.body, "the first response again")?;
    again.expect_header(REPLAYED, "true")?;
    run.remove(id).await
}

async fn delete(run: &mut Run) -> CheckResult {
    let (id, name, key) = (run.tracker.new_id(), run.tracker.name("gone once"), key(run));
    run.create_plant(id, &name, None).await?;
    let request = Request::new("DELETE", format!("/plants/{id}")).with(KEY, &*key);
    run.delete_with(id, request.clone()).await?.expect_success()?;
    let again = run.delete_with(id, request).await?;
    again.expect_success()?;
    again.expect_header(REPLAYED, "true")
}

async fn rejected(run: &mut Run) -> CheckResult {
    let (id, name, key) = (run.tracker.new_id(), run.tracker.name("rejected"), key(run));
    let request = Request::create(plant_json(id, &name, Some("a\u{7}b"))).with(KEY, &*key);
    let first = run.create(id, request.clone()).await?;
    first.expect_error(400, 40003)?;
    let again = run.create(id, request).await?;
    again.expect(again.status == 400 && again.body == first.body, "the first response again")?;
    again.expect_header(REPLAYED, "true")
}

async fn key_reused(run: &mut Run) -> CheckResult {
    let (id, name, key) = (run.tracker.new_id(), run.tracker.name("key"), key(run));
    let first = run.create(id, Request::create(plant_json(id, &name, None)).with(KEY, &*key)).await?;
    first.expect_success()?;
    let other = run.tracker.new_id();
    let name = run.tracker.name("other request");
    let second = run.create(other, Request::create(plant_json(other, &name, None)).with(KEY, &*key)).await?;
    second.expect_error(422, 42200)?;
    run.remove(id).await
}

async fn invalid_key(run: &mut Run) -> CheckResult {
    for key in [String::new(), "x".repeat(256), "\"unfinished".to_owned()] {
        let (id, name) = (run.tracker.new_id(), run.tracker.name("bad key"));
        let response = run.create(id, Request::create(plant_json(id, &name, None)).with(KEY, key)).await?;
        response.expect_error(400, 40007)?;
    }
    Ok(())
}
