//! Safe retries: what is sent again with its key is not done again.

use super::client::Ask;
use super::visit::{Visit, body, create_ask};
use super::{Check, Level, Outcome};

const KEY: &str = "idempotency-key";
const REPLAYED: &str = "idempotency-replayed";

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        Level::Full,
        "retry-create",
        "a create that is sent again with its key gets its answer again",
        |visit| Box::pin(create(visit)),
    ),
    Check::new(Level::Full, "retry-delete", "and so does a delete", |visit| Box::pin(delete(visit))),
    Check::new(Level::Full, "retry-refused", "and so does what was refused", |visit| Box::pin(refused(visit))),
    Check::new(Level::Full, "retry-other", "a key that comes with another request is 422", |visit| {
        Box::pin(other(visit))
    }),
    Check::new(Level::Full, "retry-bad-key", "a key that is malformed is 40007", |visit| Box::pin(bad_key(visit))),
];

/// A key of this visit: ids are random, and so are keys.
fn key(visit: &mut Visit) -> String {
    format!("check-{}", visit.ledger.id())
}

async fn create(visit: &mut Visit) -> Outcome {
    let (id, name, key) = (visit.ledger.id(), visit.ledger.name("again"), key(visit));
    let ask = create_ask(body(id, &name, Some("again"))).with(KEY, &*key);
    let first = visit.create(id, ask.clone()).await?;
    first.expect_success()?;
    first.expect(first.header(REPLAYED).is_none(), "a first answer that is no repetition")?;
    let again = visit.create(id, ask).await?;
    again.expect(again.status == first.status && again.body == first.body, "the first answer again")?;
    again.expect_header(REPLAYED, "true")?;
    visit.uproot(id).await
}

async fn delete(visit: &mut Visit) -> Outcome {
    let (id, name, key) = (visit.ledger.id(), visit.ledger.name("gone once"), key(visit));
    visit.plant(id, &name, None).await?;
    let ask = Ask::new("DELETE", format!("/plants/{id}")).with(KEY, &*key);
    visit.delete_with(id, ask.clone()).await?.expect_success()?;
    let again = visit.delete_with(id, ask).await?;
    again.expect_success()?;
    again.expect_header(REPLAYED, "true")
}

async fn refused(visit: &mut Visit) -> Outcome {
    let (id, name, key) = (visit.ledger.id(), visit.ledger.name("refused"), key(visit));
    let ask = create_ask(body(id, &name, Some("a\u{7}b"))).with(KEY, &*key);
    let first = visit.create(id, ask.clone()).await?;
    first.expect_error(400, 40003)?;
    let again = visit.create(id, ask).await?;
    again.expect(again.status == 400 && again.body == first.body, "the first answer again")?;
    again.expect_header(REPLAYED, "true")
}

async fn other(visit: &mut Visit) -> Outcome {
    let (id, name, key) = (visit.ledger.id(), visit.ledger.name("key"), key(visit));
    let first = visit.create(id, create_ask(body(id, &name, None)).with(KEY, &*key)).await?;
    first.expect_success()?;
    let other = visit.ledger.id();
    let name = visit.ledger.name("other request");
    let second = visit.create(other, create_ask(body(other, &name, None)).with(KEY, &*key)).await?;
    second.expect_error(422, 42200)?;
    visit.uproot(id).await
}

async fn bad_key(visit: &mut Visit) -> Outcome {
    for key in [String::new(), "x".repeat(256), "\"unfinished".to_owned()] {
        let (id, name) = (visit.ledger.id(), visit.ledger.name("bad key"));
        let answer = visit.create(id, create_ask(body(id, &name, None)).with(KEY, key)).await?;
        answer.expect_error(400, 40007)?;
    }
    Ok(())
}
