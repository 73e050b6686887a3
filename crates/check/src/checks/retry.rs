//! Retries with an idempotency key.

use crate::check::Check;
use crate::error::Outcome;
use crate::options::Level;
use crate::request::{Request, plant_json};
use crate::run::Run;

const KEY: &str = "idempotency-key";
const REPLAYED: &str = "idempotency-replayed";

pub(super) const CHECKS: &[Check] = &[
    Check::new(Level::Full, "retry-create", "a create that is sent again with its key gets its answer again", |run| {
        Box::pin(create(run))
    }),
    Check::new(Level::Full, "retry-delete", "and so does a delete", |run| Box::pin(delete(run))),
    Check::new(Level::Full, "retry-refused", "and so does what was refused", |run| Box::pin(rejected(run))),
    Check::new(Level::Full, "retry-other", "a key that comes with another request is 422", |run| Box::pin(other(run))),
    Check::new(Level::Full, "retry-bad-key", "a key that is malformed is 40007", |run| Box::pin(bad_key(run))),
];

/// Returns a key of this run. It is random because ids are.
fn key(run: &mut Run) -> String {
    format!("check-{}", run.tracker.new_id())
}

async fn create(run: &mut Run) -> Outcome {
    let (id, name, key) = (run.tracker.new_id(), run.tracker.name("again"), key(run));
    let request = Request::create(plant_json(id, &name, Some("again"))).with(KEY, &*key);
    let first = run.create(id, request.clone()).await?;
    first.expect_success()?;
    first.expect(first.header(REPLAYED).is_none(), "a first answer that is no repetition")?;
    let again = run.create(id, request).await?;
    again.expect(again.status == first.status && again.body == first.body, "the first answer again")?;
    again.expect_header(REPLAYED, "true")?;
    run.remove(id).await
}

async fn delete(run: &mut Run) -> Outcome {
    let (id, name, key) = (run.tracker.new_id(), run.tracker.name("gone once"), key(run));
    run.create_plant(id, &name, None).await?;
    let request = Request::new("DELETE", format!("/plants/{id}")).with(KEY, &*key);
    run.delete_with(id, request.clone()).await?.expect_success()?;
    let again = run.delete_with(id, request).await?;
    again.expect_success()?;
    again.expect_header(REPLAYED, "true")
}

async fn rejected(run: &mut Run) -> Outcome {
    let (id, name, key) = (run.tracker.new_id(), run.tracker.name("refused"), key(run));
    let request = Request::create(plant_json(id, &name, Some("a\u{7}b"))).with(KEY, &*key);
    let first = run.create(id, request.clone()).await?;
    first.expect_error(400, 40003)?;
    let again = run.create(id, request).await?;
    again.expect(again.status == 400 && again.body == first.body, "the first answer again")?;
    again.expect_header(REPLAYED, "true")
}

async fn other(run: &mut Run) -> Outcome {
    let (id, name, key) = (run.tracker.new_id(), run.tracker.name("key"), key(run));
    let first = run.create(id, Request::create(plant_json(id, &name, None)).with(KEY, &*key)).await?;
    first.expect_success()?;
    let other = run.tracker.new_id();
    let name = run.tracker.name("other request");
    let second = run.create(other, Request::create(plant_json(other, &name, None)).with(KEY, &*key)).await?;
    second.expect_error(422, 42200)?;
    run.remove(id).await
}

async fn bad_key(run: &mut Run) -> Outcome {
    for key in [String::new(), "x".repeat(256), "\"unfinished".to_owned()] {
        let (id, name) = (run.tracker.new_id(), run.tracker.name("bad key"));
        let response = run.create(id, Request::create(plant_json(id, &name, None)).with(KEY, key)).await?;
        response.expect_error(400, 40007)?;
    }
    Ok(())
}
