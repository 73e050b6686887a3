//! Bodies that are not plants: each is rejected with its error code.

use serde_json::json;

use crate::cleanup_tracker::TestPlant;
use crate::client::Request;
use crate::run::{Check, Run, check};
use crate::verdict::CheckResult;

/// One byte more than a body may have.
const TOO_LARGE: usize = 16 * 1024 + 1;

pub(super) const CHECKS: &[Check] = &[
    check!(Interface, "reject-incomplete", "a plant without name or without id is 400", incomplete),
    check!(Interface, "reject-wrong-types", "an id that is a string, or a name that is not, is 400", wrong_types),
    check!(Full, "reject-missing", "a missing field is 40001, and the message names all faults", missing),
    check!(Full, "reject-not-json", "a body that is not JSON is 40000", not_json),
    check!(Full, "reject-not-object", "JSON that is not an object is 40002", not_object),
    check!(Full, "reject-ids", "an id that is not an int64 is 40002", ids),
    check!(Full, "reject-null-name", "a null name is 40002", null_name),
    check!(Full, "reject-repeated-key", "a repeated key is 40002", repeated_key),
    check!(Full, "reject-lengths", "an empty name, or a name or tag that is too long, is 40003", lengths),
    check!(Full, "reject-control-characters", "control characters are 40003", control),
    check!(Full, "reject-media-type", "a body of another media type is 415", media_type),
    check!(Full, "reject-too-large", "a body of more than 16 KiB is 413", large),
];

/// Sends a body that must be rejected with this error code. Its plant has this id if it is accepted.
async fn rejected(run: &mut Run, id: i64, body: String, code: i64) -> CheckResult {
    let response = run.create_with(id, Request::create(body)).await?;
    response.expect_error(u16::try_from(code / 100).unwrap_or_default(), code)
}

async fn incomplete(run: &mut Run) -> CheckResult {
    let id = run.tracker.new_id();
    let without_name = json!({ "id": id }).to_string();
    run.create_with(id, Request::create(without_name)).await?.expect_status(400)?;
    let without_id = json!({ "name": run.tracker.name("no id") }).to_string();
    run.create_with(id, Request::create(without_id)).await?.expect_status(400)
}

async fn wrong_types(run: &mut Run) -> CheckResult {
    let TestPlant { id, name, .. } = run.new_plant("wrong type");
    let text = json!({ "id": id.to_string(), "name": name }).to_string();
    run.create_with(id, Request::create(text)).await?.expect_status(400)?;
    let number = json!({ "id": id, "name": 7 }).to_string();
    run.create_with(id, Request::create(number)).await?.expect_status(400)
}

async fn missing(run: &mut Run) -> CheckResult {
    let id = run.tracker.new_id();
    rejected(run, id, json!({ "id": id }).to_string(), 40001).await?;
    let name = run.tracker.name("no id");
    rejected(run, id, json!({ "name": name }).to_string(), 40001).await?;
    let response = run.create_with(id, Request::create(json!({ "id": id, "tag": 7 }).to_string())).await?;
    response.expect_error(400, 40001)?;
    let message = response.json()?["message"].as_str().unwrap_or_default().to_owned();
    response.expect(message.contains("name") && message.contains("tag"), "a message that names `name` and `tag`")
}

async fn not_json(run: &mut Run) -> CheckResult {
    let TestPlant { id, name, .. } = run.new_plant("not JSON");
    let two = format!("{0} {0}", json!({ "id": id, "name": name }));
    for body in [String::new(), "name=Rose".to_owned(), format!("{{\"id\":{id},\"name\":\"{name}\""), two] {
        rejected(run, id, body, 40000).await?;
    }
    Ok(())
}

async fn not_object(run: &mut Run) -> CheckResult {
    let TestPlant { id, name, .. } = run.new_plant("no object");
    for body in [json!([{ "id": id, "name": name }]), json!("Rose"), json!(7), json!(null)] {
        rejected(run, id, body.to_string(), 40002).await?;
    }
    Ok(())
}

async fn ids(run: &mut Run) -> CheckResult {
    let TestPlant { id, name, .. } = run.new_plant("bad id");
    for bad in [format!("{id}.0"), format!("{id}e0"), format!("\"{id}\""), "null".into(), "true".into()] {
        rejected(run, id, format!(r#"{{"id":{bad},"name":"{name}"}}"#), 40002).await?;
    }
    // Some servers wrap or clamp them to an id that may be taken. The create must not replace that plant, and the new one is
    // found by its name.
    if !run.facts.duplicates_rejected || !run.facts.ids_shown {
        return Ok(());
    }
    for beyond in ["9223372036854775808", "-9223372036854775809"] {
        let response = run.send(Request::create(format!(r#"{{"id":{beyond},"name":"{name}"}}"#))).await?;
        if response.is_success() {
            run.remove_named(&name).await?;
        }
        response.expect_error(400, 40002)?;
    }
    Ok(())
}

async fn null_name(run: &mut Run) -> CheckResult {
    let id = run.tracker.new_id();
    rejected(run, id, json!({ "id": id, "name": null }).to_string(), 40002).await
}

async fn repeated_key(run: &mut Run) -> CheckResult {
    let TestPlant { id, name, .. } = run.new_plant("repeated");
    rejected(run, id, format!(r#"{{"id":{id},"name":"{name}","name":"{name}"}}"#), 40002).await?;
    rejected(run, id, format!(r#"{{"id":{id},"name":"{name}","id":{id}}}"#), 40002).await
}

async fn lengths(run: &mut Run) -> CheckResult {
    let TestPlant { id, name, .. } = run.new_plant("length");
    rejected(run, id, json!({ "id": id, "name": "" }).to_string(), 40003).await?;
    let long = format!("{name}{}", "x".repeat(1_001 - name.chars().count()));
    rejected(run, id, json!({ "id": id, "name": long }).to_string(), 40003).await?;
    rejected(run, id, json!({ "id": id, "name": name, "tag": "x".repeat(201) }).to_string(), 40003).await
}

async fn control(run: &mut Run) -> CheckResult {
    let TestPlant { id, name, .. } = run.new_plant("control");
    for character in ['\0', '\n', '\u{7f}', '\u{85}'] {
        rejected(run, id, json!({ "id": id, "name": format!("{name}{character}") }).to_string(), 40003).await?;
        let tag = character.to_string();
        rejected(run, id, json!({ "id": id, "name": name, "tag": tag }).to_string(), 40003).await?;
    }
    Ok(())
}

async fn media_type(run: &mut Run) -> CheckResult {
    let TestPlant { id, name, .. } = run.new_plant("media type");
    for wrong in [Some("text/plain"), Some("application/x-www-form-urlencoded"), None] {
        let mut request = Request::create(json!({ "id": id, "name": name }).to_string());
        request.headers = wrong.map(|value| ("content-type", value.to_owned())).into_iter().collect();
        run.create_with(id, request).await?.expect_error(415, 41500)?;
    }
    Ok(())
}

async fn large(run: &mut Run) -> CheckResult {
    let TestPlant { id, name, .. } = run.new_plant("large");
    let plant = json!({ "id": id, "name": name }).to_string();
    let padded = format!("{plant:TOO_LARGE$}");
    rejected(run, id, padded, 41300).await
}
