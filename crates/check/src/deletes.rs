//! Deleting plants.

use super::client::Ask;
use super::visit::Visit;
use super::{Check, Level, Outcome};

/// Why nothing is created any more once a delete has failed.
const STAYS: &str = "what is created here stays: no more plants are created";

pub(super) const CHECKS: &[Check] = &[
    Check::new(Level::Interface, "delete-answers", "a delete is answered 204 without a body", |visit| {
        Box::pin(answers(visit))
    }),
    Check::new(Level::Interface, "delete-removes", "what was deleted is gone, and nothing else", |visit| {
        Box::pin(removes(visit))
    }),
    Check::new(Level::Full, "delete-bare", "the answer to a delete has no Content-Type", |visit| Box::pin(bare(visit))),
    Check::new(Level::Full, "delete-unknown", "an id that is not there is 404, always in the same words", |visit| {
        Box::pin(unknown(visit))
    }),
    Check::new(Level::Full, "delete-bad-id", "what is no int64 in the path is 400", |visit| Box::pin(bad_id(visit))),
];

async fn answers(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("delete"));
    visit.plant(id, &name, None).await?;
    let answer = visit.delete(id).await?;
    answer.expect_status(204)?;
    answer.expect(answer.body.is_empty(), "no body")
}

async fn removes(visit: &mut Visit) -> Outcome {
    visit.may_read()?;
    let bed = visit.bed().await?;
    let (id, name) = (visit.ledger.id(), visit.ledger.name("removed"));
    visit.plant(id, &name, None).await?;
    visit.uproot(id).await?;
    let listing = visit.list("").await?;
    let stays = listing.plants.iter().any(|plant| plant.name == name);
    if stays {
        visit.planting_stopped = Some(STAYS);
    }
    listing.answer.expect(!stays, format_args!("a list without `{name}`, which was deleted"))?;
    let names: Vec<&str> = bed.iter().map(|plant| plant.name.as_str()).collect();
    visit.expect_listed(&listing, &names)
}

async fn bare(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("bare"));
    visit.plant(id, &name, None).await?;
    let answer = visit.delete(id).await?;
    answer.expect(answer.is_success() && answer.header("content-type").is_none(), "no Content-Type")
}

async fn unknown(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("twice"));
    visit.plant(id, &name, None).await?;
    visit.uproot(id).await?;
    let again = visit.delete(id).await?;
    again.expect_error(404, 40400)?;
    let never = visit.ledger.id();
    let never = visit.delete(never).await?;
    never.expect_error(404, 40400)?;
    never.expect(never.body == again.body, "the same words for every plant that is not there")
}

/// Should the server read a number out of them all the same, it is one that nobody has: nothing may be deleted by this.
async fn bad_id(visit: &mut Visit) -> Outcome {
    if !visit.scopes.delete {
        visit.may_plant()?;
    }
    let id = visit.ledger.id();
    let mut bad: Vec<String> = vec!["none".to_owned(), format!("{id}.0"), format!("{id}e0"), format!("-0{}", -id)];
    // Some servers let them overflow, others stop at the end of the range: what is there would be deleted.
    if visit.known.ends_are_free {
        bad.extend(["9223372036854775808", "-9223372036854775809"].map(str::to_owned));
    }
    for id in bad {
        visit.ask(Ask::new("DELETE", format!("/plants/{id}"))).await?.expect_error(400, 40005)?;
    }
    Ok(())
}
