//! Reading one plant.

use crate::check::{Check, check};
use crate::error::CheckResult;
use crate::run::Run;

pub(super) const CHECKS: &[Check] = &[
    check!(Full, "read-plant", "a plant can be read at the address that Location has", reads),
    check!(Full, "read-unknown", "an unknown id is the same 404 as for a delete", unknown),
];

async fn reads(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let fixture = run.fixture_plants().await?.swap_remove(0);
    let response = run.get(&format!("/plants/{}?include=id", fixture.id)).await?;
    let plant = response.plant()?;
    let same = plant.id == Some(fixture.id) && plant.name == fixture.name && plant.tag == fixture.tag;
    response.expect(same, format_args!("the plant `{}` with its id", fixture.name))
}

async fn unknown(run: &mut Run) -> CheckResult {
    let id = run.tracker.new_id();
    let read = run.get(&format!("/plants/{id}")).await?;
    read.expect_error(404, 40400)?;
    if run.scopes.delete {
        let deleted = run.delete(id).await?;
        read.expect(read.body == deleted.body, "the same body as for a delete")?;
    }
    Ok(())
}
