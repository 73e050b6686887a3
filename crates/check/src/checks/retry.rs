//! Retries with an idempotency key.

use crate::cleanup_tracker::TestPlant;
use crate::client::Request;
use crate::run::{Check, Run, check};
use crate::verdict::CheckResult;

const KEY: &str = "idempotency-key";
const REPLAYED: &str = "idempotency-replayed";

pub(super) const CHECKS: &[Check] = &[
    check!(Full, "retry-create", "a create that is repeated with its key gets the same response", create),
    check!(Full, "retry-delete", "a delete that is repeated with its key gets the same response", delete),
    check!(Full, "retry-rejected", "a rejected request that is repeated with its key gets the same response", rejected),
    check!(Full, "retry-key-reused", "a key that is reused for another request is 422", key_reused),
    check!(Full, "retry-invalid-key", "a malformed key is 40007", invalid_key),
];

/// Returns a create with a key of this run, which is random because ids are.
fn keyed(plant: &TestPlant) -> Request {
    Request::create(plant.json()).with(KEY, format!("check-{}", plant.id))
}

async fn create(run: &mut Run) -> CheckResult {
    let plant = run.new_plant("again").with_tag("again");
    let first = run.create_with(plant.id, keyed(&plant)).await?;
    first.expect_success()?;
    first.expect(first.header(REPLAYED).is_none(), "a first response without Idempotency-Replayed")?;
    let again = run.create_with(plant.id, keyed(&plant)).await?;
    again.expect(again.status == first.status && again.body == first.body, "the first response again")?;
    again.expect_header(REPLAYED, "true")?;
    run.remove(plant.id).await
}

async fn delete(run: &mut Run) -> CheckResult {
    let plant = run.existing_plant("gone once").await?;
    let request = Request::new("DELETE", format!("/plants/{}", plant.id)).with(KEY, format!("check-{}", plant.id));
    run.delete_with(plant.id, request.clone()).await?.expect_success()?;
    let again = run.delete_with(plant.id, request).await?;
    again.expect_success()?;
    again.expect_header(REPLAYED, "true")
}

async fn rejected(run: &mut Run) -> CheckResult {
    let plant = run.new_plant("rejected").with_tag("a\u{7}b");
    let first = run.create_with(plant.id, keyed(&plant)).await?;
    first.expect_error(40003)?;
    let again = run.create_with(plant.id, keyed(&plant)).await?;
    again.expect(again.status == 400 && again.body == first.body, "the first response again")?;
    again.expect_header(REPLAYED, "true")
}

async fn key_reused(run: &mut Run) -> CheckResult {
    let plant = run.new_plant("key");
    let request = keyed(&plant);
    run.create_with(plant.id, request.clone()).await?.expect_success()?;
    let other = run.new_plant("other request");
    let reused = Request { body: other.json(), ..request };
    run.create_with(other.id, reused).await?.expect_error(42200)?;
    run.remove(plant.id).await
}

async fn invalid_key(run: &mut Run) -> CheckResult {
    for key in [String::new(), "x".repeat(256), "\"unfinished".to_owned()] {
        let plant = run.new_plant("bad key");
        let request = Request::create(plant.json()).with(KEY, key);
        run.create_with(plant.id, request).await?.expect_error(40007)?;
    }
    Ok(())
}
