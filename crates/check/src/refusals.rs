//! Bodies that are no plants: each is refused, with a number that says why.

use serde_json::json;

use super::visit::{Visit, create_ask};
use super::{Check, Level, Outcome};

/// One byte more than a body may have.
const TOO_LARGE: usize = 16 * 1024 + 1;

pub(super) const CHECKS: &[Check] = &[
    Check::new(Level::Interface, "refuse-incomplete", "a plant without name or without id is 400", |visit| {
        Box::pin(incomplete(visit))
    }),
    Check::new(Level::Interface, "refuse-wrong-types", "an id that is text, or a name that is none, is 400", |visit| {
        Box::pin(wrong_types(visit))
    }),
    Check::new(Level::Full, "refuse-missing", "a missing field is 40001, and all faults are named at once", |visit| {
        Box::pin(missing(visit))
    }),
    Check::new(Level::Full, "refuse-not-json", "a body that is not JSON is 40000", |visit| Box::pin(not_json(visit))),
    Check::new(Level::Full, "refuse-no-object", "JSON that is no object is 40002", |visit| Box::pin(no_object(visit))),
    Check::new(Level::Full, "refuse-ids", "an id must be an integer of 64 bits, or it is 40002", |visit| {
        Box::pin(ids(visit))
    }),
    Check::new(Level::Full, "refuse-null-name", "a name that is null is 40002", |visit| Box::pin(null_name(visit))),
    Check::new(Level::Full, "refuse-repeated-key", "a key that is given twice is 40002", |visit| {
        Box::pin(repeated_key(visit))
    }),
    Check::new(Level::Full, "refuse-lengths", "an empty name, or a text that is too long, is 40003", |visit| {
        Box::pin(lengths(visit))
    }),
    Check::new(Level::Full, "refuse-control", "control characters are 40003", |visit| Box::pin(control(visit))),
    Check::new(Level::Full, "refuse-media-type", "a body of another media type is 415", |visit| {
        Box::pin(media_type(visit))
    }),
    Check::new(Level::Full, "refuse-large", "a body of more than 16 KiB is 413", |visit| Box::pin(large(visit))),
];

/// Sends a body that must be refused with this number. Should it be accepted, its plant has this id.
async fn refused(visit: &mut Visit, id: i64, body: String, number: i64) -> Outcome {
    let answer = visit.create(id, create_ask(body)).await?;
    answer.expect_error(u16::try_from(number / 100).unwrap_or_default(), number)
}

async fn incomplete(visit: &mut Visit) -> Outcome {
    let id = visit.ledger.id();
    let nameless = json!({ "id": id }).to_string();
    visit.create(id, create_ask(nameless)).await?.expect_status(400)?;
    let anonymous = json!({ "name": visit.ledger.name("no id") }).to_string();
    visit.create(id, create_ask(anonymous)).await?.expect_status(400)
}

async fn wrong_types(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("wrong type"));
    let text = json!({ "id": id.to_string(), "name": name }).to_string();
    visit.create(id, create_ask(text)).await?.expect_status(400)?;
    let number = json!({ "id": id, "name": 7 }).to_string();
    visit.create(id, create_ask(number)).await?.expect_status(400)
}

async fn missing(visit: &mut Visit) -> Outcome {
    let id = visit.ledger.id();
    refused(visit, id, json!({ "id": id }).to_string(), 40001).await?;
    let name = visit.ledger.name("no id");
    refused(visit, id, json!({ "name": name }).to_string(), 40001).await?;
    let answer = visit.create(id, create_ask(json!({ "id": id, "tag": 7 }).to_string())).await?;
    answer.expect_error(400, 40001)?;
    let message = answer.json()?["message"].as_str().unwrap_or_default().to_owned();
    answer.expect(message.contains("name") && message.contains("tag"), "a message that names `name` and `tag`")
}

async fn not_json(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("not JSON"));
    let two = format!("{0} {0}", json!({ "id": id, "name": name }));
    for body in [String::new(), "name=Rose".to_owned(), format!("{{\"id\":{id},\"name\":\"{name}\""), two] {
        refused(visit, id, body, 40000).await?;
    }
    Ok(())
}

async fn no_object(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("no object"));
    for body in [json!([{ "id": id, "name": name }]), json!("Rose"), json!(7), json!(null)] {
        refused(visit, id, body.to_string(), 40002).await?;
    }
    Ok(())
}

async fn ids(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("bad id"));
    for bad in [format!("{id}.0"), format!("{id}e0"), format!("\"{id}\""), "null".into(), "true".into()] {
        refused(visit, id, format!(r#"{{"id":{bad},"name":"{name}"}}"#), 40002).await?;
    }
    // Some servers let them overflow, others stop at the end of the range: what comes of them may be the id of somebody's
    // plant. So it must not take that one's place, and is found by its name.
    if !visit.known.duplicates_refused || !visit.known.ids_shown {
        return Ok(());
    }
    for beyond in ["9223372036854775808", "-9223372036854775809"] {
        let answer = visit.ask(create_ask(format!(r#"{{"id":{beyond},"name":"{name}"}}"#))).await?;
        if answer.is_success() {
            visit.uproot_named(&name).await?;
        }
        answer.expect_error(400, 40002)?;
    }
    Ok(())
}

async fn null_name(visit: &mut Visit) -> Outcome {
    let id = visit.ledger.id();
    refused(visit, id, json!({ "id": id, "name": null }).to_string(), 40002).await
}

async fn repeated_key(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("repeated"));
    refused(visit, id, format!(r#"{{"id":{id},"name":"{name}","name":"{name}"}}"#), 40002).await?;
    refused(visit, id, format!(r#"{{"id":{id},"name":"{name}","id":{id}}}"#), 40002).await
}

async fn lengths(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("length"));
    refused(visit, id, json!({ "id": id, "name": "" }).to_string(), 40003).await?;
    let long = format!("{name}{}", "x".repeat(1_001 - name.chars().count()));
    refused(visit, id, json!({ "id": id, "name": long }).to_string(), 40003).await?;
    refused(visit, id, json!({ "id": id, "name": name, "tag": "x".repeat(201) }).to_string(), 40003).await
}

async fn control(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("control"));
    for character in ['\0', '\n', '\u{7f}', '\u{85}'] {
        refused(visit, id, json!({ "id": id, "name": format!("{name}{character}") }).to_string(), 40003).await?;
        let tag = character.to_string();
        refused(visit, id, json!({ "id": id, "name": name, "tag": tag }).to_string(), 40003).await?;
    }
    Ok(())
}

async fn media_type(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("media type"));
    for wrong in [Some("text/plain"), Some("application/x-www-form-urlencoded"), None] {
        let mut ask = create_ask(json!({ "id": id, "name": name }).to_string());
        ask.headers = wrong.map(|value| ("content-type", value.to_owned())).into_iter().collect();
        visit.create(id, ask).await?.expect_error(415, 41500)?;
    }
    Ok(())
}

async fn large(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("large"));
    let plant = json!({ "id": id, "name": name }).to_string();
    let padded = format!("{plant:TOO_LARGE$}");
    refused(visit, id, padded, 41300).await
}
