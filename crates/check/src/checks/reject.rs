//! Bodies that are not plants: each is rejected with its error code.

use crate::cleanup_tracker::TestPlant;
use crate::client::Request;
use crate::response::Response;
use crate::run::{Check, Run, check};
use crate::verdict::CheckResult;

/// One byte more than a body may have.
const TOO_LARGE: usize = 16 * 1024 + 1;

pub(super) const CHECKS: &[Check] = &[
    check!(
        Interface,
        "reject-incomplete",
        "a plant without name or without id is 400",
        bad_requests,
        &[r#"{"id":ID}"#, r#"{"name":"NAME"}"#]
    ),
    check!(
        Interface,
        "reject-wrong-types",
        "an id that is a string, or a name that is not, is 400",
        bad_requests,
        &[r#"{"id":"ID","name":"NAME"}"#, r#"{"id":ID,"name":7}"#]
    ),
    check!(Full, "reject-missing", "a missing field is 40001, and the message names all faults", missing),
    check!(
        Full,
        "reject-not-json",
        "a body that is not JSON is 40000",
        rejected,
        40000,
        &["", "name=Rose", r#"{"id":ID,"name":"NAME""#, r#"{"id":ID,"name":"NAME"} {"id":ID,"name":"NAME"}"#]
    ),
    check!(
        Full,
        "reject-not-object",
        "JSON that is not an object is 40002",
        rejected,
        40002,
        &[r#"[{"id":ID,"name":"NAME"}]"#, r#""Rose""#, "7", "null"]
    ),
    check!(Full, "reject-ids", "an id that is not an int64 is 40002", ids),
    check!(Full, "reject-null-name", "a null name is 40002", rejected, 40002, &[r#"{"id":ID,"name":null}"#]),
    check!(
        Full,
        "reject-repeated-key",
        "a repeated key is 40002",
        rejected,
        40002,
        &[r#"{"id":ID,"name":"NAME","name":"NAME"}"#, r#"{"id":ID,"name":"NAME","id":ID}"#]
    ),
    check!(Full, "reject-lengths", "an empty name, or a name or tag that is too long, is 40003", lengths),
    check!(Full, "reject-control-characters", "control characters are 40003", control),
    check!(Full, "reject-media-type", "a body of another media type is 415", media_type),
    check!(Full, "reject-too-large", "a body of more than 16 KiB is 413", large),
];

/// Sends bodies and returns the responses. `ID` and `NAME` are those of a new plant, deleted if a server accepts it.
async fn send(run: &mut Run, bodies: &[&str]) -> CheckResult<Vec<Response>> {
    let TestPlant { id, name, .. } = run.new_plant("rejected");
    let mut responses = Vec::new();
    for body in bodies {
        let body = body.replace("ID", &id.to_string()).replace("NAME", &name);
        responses.push(run.create_with(id, Request::create(body)).await?);
    }
    Ok(responses)
}

async fn bad_requests(run: &mut Run, bodies: &[&str]) -> CheckResult {
    send(run, bodies).await?.iter().try_for_each(|response| response.expect_status(400))
}

async fn rejected(run: &mut Run, code: i64, bodies: &[&str]) -> CheckResult {
    send(run, bodies).await?.iter().try_for_each(|response| response.expect_error(code))
}

async fn missing(run: &mut Run) -> CheckResult {
    let bodies = [r#"{"id":ID}"#, r#"{"name":"NAME"}"#, r#"{"id":ID,"tag":7}"#];
    rejected(run, 40001, &bodies).await?;
    let response = send(run, &bodies[2..]).await?.swap_remove(0);
    let message = response.json()?["message"].as_str().unwrap_or_default().to_owned();
    response.expect(message.contains("name") && message.contains("tag"), "a message that names `name` and `tag`")
}

async fn ids(run: &mut Run) -> CheckResult {
    for id in ["ID.0", "IDe0", "\"ID\"", "null", "true"] {
        rejected(run, 40002, &[&format!(r#"{{"id":{id},"name":"NAME"}}"#)]).await?;
    }
    // Some servers wrap or clamp them to an id that may be taken: the create must not replace that plant.
    if !run.facts.duplicates_rejected || !run.facts.ids_shown {
        return Ok(());
    }
    let name = run.tracker.name("bad id");
    for beyond in ["9223372036854775808", "-9223372036854775809"] {
        let response = run.send(Request::create(format!(r#"{{"id":{beyond},"name":"{name}"}}"#))).await?;
        if response.is_success() {
            run.remove_named(&name).await?;
        }
        response.expect_error(40002)?;
    }
    Ok(())
}

async fn lengths(run: &mut Run) -> CheckResult {
    let name = run.tracker.name("length");
    let name = format!("{name}{}", "x".repeat(1_001 - name.chars().count()));
    let long_name = format!(r#"{{"id":ID,"name":"{name}"}}"#);
    let long_tag = format!(r#"{{"id":ID,"name":"NAME","tag":"{}"}}"#, "x".repeat(201));
    rejected(run, 40003, &[r#"{"id":ID,"name":""}"#, &long_name, &long_tag]).await
}

async fn control(run: &mut Run) -> CheckResult {
    for character in [r"\u0000", r"\n", "\u{7f}", "\u{85}"] {
        let name = format!(r#"{{"id":ID,"name":"NAME{character}"}}"#);
        let tag = format!(r#"{{"id":ID,"name":"NAME","tag":"{character}"}}"#);
        rejected(run, 40003, &[&name, &tag]).await?;
    }
    Ok(())
}

async fn media_type(run: &mut Run) -> CheckResult {
    let plant = run.new_plant("media type");
    for wrong in [Some("text/plain"), Some("application/x-www-form-urlencoded"), None] {
        let mut request = Request::create(plant.json());
        request.headers = wrong.map(|value| ("content-type", value.to_owned())).into_iter().collect();
        run.create_with(plant.id, request).await?.expect_error(41500)?;
    }
    Ok(())
}

async fn large(run: &mut Run) -> CheckResult {
    let plant = run.new_plant("large");
    run.create_with(plant.id, Request::create(format!("{:TOO_LARGE$}", plant.json()))).await?.expect_error(41300)
}
