//! Deleting plants.

use crate::check::Check;
use crate::error::Outcome;
use crate::options::Level;
use crate::request::Request;
use crate::run::Run;

/// The reason to create no more plants after a failed delete.
const STAYS: &str = "what is created here stays: no more plants are created";

pub(super) const CHECKS: &[Check] = &[
    Check::new(Level::Interface, "delete-answers", "a delete is answered 204 without a body", |run| {
        Box::pin(responds(run))
    }),
    Check::new(Level::Interface, "delete-removes", "what was deleted is gone, and nothing else", |run| {
        Box::pin(removes(run))
    }),
    Check::new(Level::Full, "delete-bare", "the answer to a delete has no Content-Type", |run| Box::pin(bare(run))),
    Check::new(Level::Full, "delete-unknown", "an id that is not there is 404, always in the same words", |run| {
        Box::pin(unknown(run))
    }),
    Check::new(Level::Full, "delete-bad-id", "what is no int64 in the path is 400", |run| Box::pin(bad_id(run))),
];

async fn responds(run: &mut Run) -> Outcome {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("delete"));
    run.create_plant(id, &name, None).await?;
    let response = run.delete(id).await?;
    response.expect_status(204)?;
    response.expect(response.body.is_empty(), "no body")
}

async fn removes(run: &mut Run) -> Outcome {
    run.may_read()?;
    let fixtures = run.fixture_plants().await?;
    let (id, name) = (run.tracker.new_id(), run.tracker.name("removed"));
    run.create_plant(id, &name, None).await?;
    run.remove(id).await?;
    let listing = run.list("").await?;
    let stays = listing.plants.iter().any(|plant| plant.name == name);
    if stays {
        run.creating_stopped = Some(STAYS);
    }
    listing.response.expect(!stays, format_args!("a list without `{name}`, which was deleted"))?;
    let names: Vec<&str> = fixtures.iter().map(|plant| plant.name.as_str()).collect();
    run.expect_listed(&listing, &names)
}

async fn bare(run: &mut Run) -> Outcome {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("bare"));
    run.create_plant(id, &name, None).await?;
    let response = run.delete(id).await?;
    response.expect(response.is_success() && response.header("content-type").is_none(), "no Content-Type")
}

async fn unknown(run: &mut Run) -> Outcome {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("twice"));
    run.create_plant(id, &name, None).await?;
    run.remove(id).await?;
    let again = run.delete(id).await?;
    again.expect_error(404, 40400)?;
    let never = run.tracker.new_id();
    let never = run.delete(never).await?;
    never.expect_error(404, 40400)?;
    never.expect(never.body == again.body, "the same words for every plant that is not there")
}

/// Uses ids that no plant has if a server still reads a number from them, so that nothing is deleted.
async fn bad_id(run: &mut Run) -> Outcome {
    if !run.scopes.delete {
        run.may_create()?;
    }
    let id = run.tracker.new_id();
    let mut bad: Vec<String> = vec!["none".to_owned(), format!("{id}.0"), format!("{id}e0"), format!("-0{}", -id)];
    // Some servers wrap or clamp them, and would delete the plant at the end of the range.
    if run.facts.ends_are_free {
        bad.extend(["9223372036854775808", "-9223372036854775809"].map(str::to_owned));
    }
    for id in bad {
        run.send(Request::new("DELETE", format!("/plants/{id}"))).await?.expect_error(400, 40005)?;
    }
    Ok(())
}
