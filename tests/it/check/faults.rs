//! Faults of a server, each with the checks that must report it.

use serde_json::{Value, json};

use super::{OWN, check, names, text, token, with_verdict};
use crate::support::broken::{Asked, Broken, Fault, Reply, Upstream};
use crate::support::{Answer, Client, Server};

pub(super) struct Case {
    name: &'static str,
    /// Exactly these fail.
    fails: Failing,
    /// The check can delete the plants it has created.
    cleans: bool,
    /// Plants of the user before the check, which must be unchanged after it.
    pub(super) own: &'static [i64],
    fault: Fault,
}

enum Failing {
    Exactly(&'static [&'static str]),
    /// These, and others that follow from them.
    Among(&'static [&'static str]),
}
use Failing::{Among, Exactly};

const fn case(name: &'static str, fails: Failing, fault: Fault) -> Case {
    Case { name, fails, cleans: true, own: &OWN, fault }
}

/// Why a fault was not caught as it should be, if so.
pub(super) fn missed(case: &Case, server: &Server, ada: &Client) -> Option<String> {
    let proxy = Broken::start(server.address(), case.fault);
    let output = check(token(ada), &proxy.url(), &["--json"]);
    let failing = with_verdict(&output, "fails");
    let right = match case.fails {
        Exactly(expected) => failing == names(expected),
        Among(expected) => failing.is_superset(&names(expected)),
    };
    let name = case.name;
    let left = ada.ids();
    let own = case.own.iter().all(|id| left.contains(id));
    if !own || (case.cleans && left.len() > case.own.len()) {
        return Some(format!("{name}: {left:?} are left"));
    }
    if !right || output.status.code() != Some(1) {
        return Some(format!("{name}: {failing:?}\n{}", text(&output.stdout)));
    }
    None
}

/// The answer of the real server, changed.
fn changed(asked: &Asked, server: Upstream, change: impl FnOnce(Answer) -> Answer) -> Reply {
    Reply::Answer(change(server.ask(asked)))
}

/// Another answer instead of an error of this number.
fn instead_of(number: i64, asked: &Asked, server: Upstream, other: impl FnOnce(Answer) -> Answer) -> Reply {
    changed(asked, server, |answer| if answer.number() == Some(number) { other(answer) } else { answer })
}

fn is_list(asked: &Asked) -> bool {
    asked.is("GET", "/plants") && !asked.is("GET", "/plants/")
}

fn plants(answer: &Answer) -> Option<Vec<Value>> {
    (answer.status == 200).then(|| answer.json().as_array().cloned()).flatten()
}

/// A list whose plants are changed.
fn relisted(asked: &Asked, server: Upstream, change: impl FnOnce(&mut Vec<Value>)) -> Reply {
    changed(asked, server, |answer| match is_list(asked).then(|| plants(&answer)).flatten() {
        Some(mut plants) => {
            change(&mut plants);
            answer.with_json(&plants.into())
        }
        None => answer,
    })
}

fn limit(asked: &Asked) -> Option<usize> {
    let query = asked.path.split_once('?')?.1;
    query.split('&').find_map(|part| part.strip_prefix("limit=")?.parse().ok())
}

fn without_parameter(asked: &Asked, name: &str) -> Asked {
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    let start = format!("{name}=");
    let rest: Vec<&str> = query.split('&').filter(|part| !part.starts_with(&start)).collect();
    Asked { path: format!("{path}?{}", rest.join("&")), ..asked.clone() }
}

/// A server that takes the numbers next to the range, above and below it, for these.
fn confined(asked: &Asked, server: Upstream, above: i64, below: i64) -> Reply {
    let [above, below] = [above, below].map(|id| id.to_string());
    let confine = |text: &str, before: &str| {
        let above = text.replace(&format!("{before}9223372036854775808"), &format!("{before}{above}"));
        above.replace(&format!("{before}-9223372036854775809"), &format!("{before}{below}"))
    };
    let (path, body) = (confine(&asked.path, "/"), confine(&text(&asked.body), ":").into_bytes());
    changed(&Asked { path, body, ..asked.clone() }, server, |answer| answer)
}

fn saturated(asked: &Asked, server: Upstream) -> Reply {
    confined(asked, server, i64::MAX, i64::MIN)
}

fn overflowed(asked: &Asked, server: Upstream) -> Reply {
    confined(asked, server, i64::MIN, i64::MAX)
}

fn text_of<'a>(json: &'a Value, name: &str) -> &'a str {
    json[name].as_str().unwrap_or_default()
}

pub(super) const ALL: &[Case] = &[
    case("a create is 201", Exactly(&["create-answers"]), |asked, server| {
        changed(asked, server, |answer| {
            if asked.method == "POST" && answer.status == 200 { answer.with_status(201) } else { answer }
        })
    }),
    case("a create is answered with its id", Exactly(&["create-shows-no-id", "create-location"]), |asked, server| {
        changed(asked, server, |answer| match asked.json().filter(|_| answer.status == 200) {
            Some(sent) => {
                let mut json = answer.json();
                // Only where it is a create of tests about ids: a name and nothing else has one member.
                if !text_of(&sent, "name").ends_with("null") && !text_of(&sent, "name").ends_with("unknown") {
                    json["id"] = sent["id"].clone();
                }
                answer.with_json(&json)
            }
            None => answer,
        })
    }),
    case(
        "an absent tag is null",
        Exactly(&["create-without-tag", "create-tag-null", "create-unknown-fields"]),
        |asked, server| {
            changed(asked, server, |answer| {
                if asked.method != "POST" || answer.status != 200 || !answer.json()["tag"].is_null() {
                    return answer;
                }
                let mut json = answer.json();
                json["tag"] = Value::Null;
                answer.with_json(&json)
            })
        },
    ),
    case("an absent tag is null in lists", Exactly(&["list-answers"]), |asked, server| {
        relisted(asked, server, |plants| {
            for plant in plants {
                plant.as_object_mut().unwrap().entry("tag").or_insert(Value::Null);
            }
        })
    }),
    case("a list shows ids unasked", Exactly(&["list-answers"]), |asked, server| {
        if is_list(asked) && !asked.path.contains("include") {
            let separator = if asked.path.contains('?') { '&' } else { '?' };
            let more = Asked { path: format!("{}{separator}include=id", asked.path), ..asked.clone() };
            return changed(&more, server, |answer| {
                let same = answer.next().map(|next| format!("<{}>; rel=\"next\"", next.replace("&include=id", "")));
                match same {
                    Some(link) => answer.with("link", &link),
                    None => answer,
                }
            });
        }
        changed(asked, server, |answer| answer)
    }),
    case("a list is 206", Exactly(&["list-answers"]), |asked, server| {
        changed(asked, server, |answer| {
            if asked.method == "GET" && is_list(asked) && answer.status == 200 && !asked.path.contains("limit=1") {
                answer.with_status(206)
            } else {
                answer
            }
        })
    }),
    case("lists are upside down", Among(&["list-order"]), |asked, server| {
        relisted(asked, server, |plants| plants.reverse())
    }),
    case("two plants are out of order", Exactly(&["list-order"]), |asked, server| {
        relisted(asked, server, |plants| {
            if limit(asked).is_none() && plants.len() > 3 {
                let last = plants.len() - 1;
                plants.swap(last, last - 1);
            }
        })
    }),
    case("a limit is one too many", Among(&["list-limit", "list-limit-exact"]), |asked, server| match limit(asked) {
        Some(limit @ 1..100) => {
            let path = asked.path.replace(&format!("limit={limit}"), &format!("limit={}", limit + 1));
            changed(&Asked { path, ..asked.clone() }, server, |answer| answer)
        }
        _ => changed(asked, server, |answer| answer),
    }),
    case("a limit is one too few", Among(&["list-limit-exact"]), |asked, server| {
        relisted(asked, server, |plants| {
            if limit(asked).is_some() {
                plants.pop();
            }
        })
    }),
    case("the first plants are missing", Among(&["create-listed"]), |asked, server| {
        relisted(asked, server, |plants| plants.retain(|plant| !text_of(plant, "name").ends_with("bed 0")))
    }),
    case("a plant is listed twice", Exactly(&["create-listed"]), |asked, server| {
        relisted(asked, server, |plants| {
            let bed = plants.iter().position(|plant| text_of(plant, "name").ends_with("bed 3"));
            if let Some(bed) = bed.filter(|_| limit(asked).is_none() && !asked.path.contains("include")) {
                plants.insert(bed, plants[bed].clone());
            }
        })
    }),
    case("ids are doubles in lists", Among(&["list-ids", "create-any-id"]), |asked, server| {
        relisted(asked, server, |plants| {
            for plant in plants {
                if let Some(id) = plant["id"].as_i64() {
                    #[expect(
                        clippy::cast_precision_loss,
                        clippy::cast_possible_truncation,
                        reason = "the fault itself"
                    )]
                    let lossy = (id as f64) as i64;
                    plant["id"] = lossy.into();
                }
            }
        })
    }),
    case("ids are doubles", Among(&["ids-apart"]), |asked, server| {
        let lossy = |id: i64| id & !1_023;
        let mut other = asked.clone();
        if let Some(mut json) = asked.json().filter(|json| json["id"].is_i64()) {
            json["id"] = lossy(json["id"].as_i64().unwrap()).into();
            other = asked.with_json(&json);
        }
        if let Some(id) = asked.path.strip_prefix("/plants/").and_then(|id| id.parse().ok()) {
            other.path = format!("/plants/{}", lossy(id));
        }
        changed(&other, server, |answer| answer)
    }),
    case("text is trimmed", Exactly(&["create-exact-text"]), |asked, server| match asked.json() {
        Some(mut json) if text_of(&json, "name").starts_with("plantstore") && text_of(&json, "name").ends_with(' ') => {
            json["name"] = text_of(&json, "name").trim_end_matches(' ').into();
            changed(&asked.with_json(&json), server, |answer| answer)
        }
        _ => changed(asked, server, |answer| answer),
    }),
    case("long names are cut", Exactly(&["create-longest"]), |asked, server| match asked.json() {
        Some(mut json) if text_of(&json, "name").chars().count() == 1_000 => {
            json["name"] = text_of(&json, "name").chars().take(999).collect::<String>().into();
            changed(&asked.with_json(&json), server, |answer| answer)
        }
        _ => changed(asked, server, |answer| answer),
    }),
    case("a duplicate takes the place", Exactly(&["create-duplicate"]), |asked, server| {
        instead_of(40900, asked, server, |_| {
            let id = asked.json().unwrap()["id"].to_string();
            let bare = asked.without("content-type");
            server.ask(&Asked { method: "DELETE".into(), path: format!("/plants/{id}"), body: Vec::new(), ..bare });
            server.ask(asked)
        })
    }),
    case("a duplicate is 409 and takes the place", Exactly(&["create-duplicate"]), |asked, server| {
        instead_of(40900, asked, server, |refused| {
            if !text_of(&asked.json().unwrap(), "name").ends_with("second") {
                return refused;
            }
            let id = asked.json().unwrap()["id"].to_string();
            let bare = asked.without("content-type");
            server.ask(&Asked { method: "DELETE".into(), path: format!("/plants/{id}"), body: Vec::new(), ..bare });
            server.ask(asked);
            refused
        })
    }),
    case("a duplicate is 400", Exactly(&["create-duplicate"]), |asked, server| {
        instead_of(40900, asked, server, |answer| {
            answer.with_status(400).with_json(&json!({ "error": 40002, "message": "taken" }))
        })
    }),
    case("a create goes nowhere", Among(&["create-listed"]), |asked, server| {
        changed(asked, server, |answer| {
            if asked.method == "POST" && answer.status == 200 {
                let id = asked.json().unwrap()["id"].to_string();
                let bare = asked.without("content-type");
                server.ask(&Asked { method: "DELETE".into(), path: format!("/plants/{id}"), body: Vec::new(), ..bare });
            }
            answer
        })
    }),
    case("no Location", Exactly(&["create-location"]), |asked, server| {
        changed(asked, server, |answer| answer.without("location"))
    }),
    case("a tag of null is refused", Exactly(&["create-tag-null"]), |asked, server| match asked.json() {
        Some(json) if json.get("tag").is_some_and(Value::is_null) => {
            changed(&asked.with_json(&json!({ "id": json["id"], "name": json["name"], "tag": 7 })), server, |answer| {
                answer
            })
        }
        _ => changed(asked, server, |answer| answer),
    }),
    case("unknown fields are refused", Exactly(&["create-unknown-fields"]), |asked, server| match asked.json() {
        Some(json) if json.get("colour").is_some() => {
            changed(&asked.with_json(&json!({ "id": json["id"] })), server, |answer| answer)
        }
        _ => changed(asked, server, |answer| answer),
    }),
    case("a charset is refused", Exactly(&["create-charset"]), |asked, server| {
        let other = match asked.header("content-type") {
            Some(value) if value.contains("charset") => asked.with("content-type", "text/plain"),
            _ => asked.clone(),
        };
        changed(&other, server, |answer| answer)
    }),
    case("a delete is 200", Exactly(&["delete-answers"]), |asked, server| {
        changed(asked, server, |answer| if answer.status == 204 { answer.with_status(200) } else { answer })
    }),
    Case {
        name: "a delete does nothing",
        fails: Among(&["delete-removes", "nothing-left"]),
        cleans: false,
        own: &OWN,
        fault: |asked, server| {
            if !asked.is("DELETE", "/plants/-") {
                return changed(asked, server, |answer| answer);
            }
            let probe = Asked { path: "/plants/123456789".into(), ..asked.without("idempotency-key") };
            changed(&probe, server, |answer| Answer {
                body: Vec::new(),
                ..answer.without("content-type").with_status(204)
            })
        },
    },
    case("an unknown plant is deleted", Exactly(&["delete-unknown"]), |asked, server| {
        instead_of(40400, asked, server, |answer| Answer {
            body: Vec::new(),
            ..answer.without("content-type").with_status(204)
        })
    }),
    case("a bad id in the path is 404", Exactly(&["delete-bad-id"]), |asked, server| {
        instead_of(40005, asked, server, |answer| {
            answer.with_status(404).with_json(&json!({ "error": 40400, "message": "no" }))
        })
    }),
    case("a name is not needed", Exactly(&["refuse-incomplete", "refuse-missing"]), |asked, server| {
        match asked.json() {
            Some(mut json) if json["id"].is_i64() && json.get("name").is_none() && json.get("colour").is_none() => {
                json["name"] = "nameless".into();
                changed(&asked.with_json(&json), server, |answer| answer)
            }
            _ => changed(asked, server, |answer| answer),
        }
    }),
    case("an id may be text", Exactly(&["refuse-wrong-types", "refuse-ids"]), |asked, server| match asked.json() {
        Some(mut json) if json["id"].is_string() => {
            json["id"] = text_of(&json, "id").parse::<i64>().unwrap().into();
            changed(&asked.with_json(&json), server, |answer| answer)
        }
        _ => changed(asked, server, |answer| answer),
    }),
    Case { own: &[], ..case("ids saturate", Exactly(&["refuse-ids", "delete-bad-id"]), saturated) },
    // The created plant gets the highest id. The lowest belongs to the user and must not be deleted instead.
    Case { own: &[i64::MIN], ..case("ids saturate beside the lowest", Exactly(&["refuse-ids"]), saturated) },
    Case { own: &[i64::MAX], ..case("ids saturate at the highest", Exactly(&["refuse-ids"]), saturated) },
    Case { own: &[], ..case("ids overflow", Exactly(&["refuse-ids", "delete-bad-id"]), overflowed) },
    Case { own: &[i64::MIN], ..case("ids overflow onto the lowest", Exactly(&["refuse-ids"]), overflowed) },
    Case { own: &[i64::MAX], ..case("ids overflow beside the highest", Exactly(&["refuse-ids"]), overflowed) },
    case("faults of a body have one number", Among(&["refuse-missing"]), |asked, server| {
        instead_of(40001, asked, server, |answer| {
            answer.with_json(&json!({ "error": 40002, "message": "`name`, `tag`" }))
        })
    }),
    case("one fault at a time", Exactly(&["refuse-missing"]), |asked, server| {
        instead_of(40001, asked, server, |answer| answer.with_json(&json!({ "error": 40001, "message": "`name`" })))
    }),
    case("a repeated key is taken", Exactly(&["refuse-repeated-key"]), |asked, server| {
        instead_of(40002, asked, server, |answer| {
            let body = text(&asked.body);
            if body.matches("\"name\"").count() > 1 || body.matches("\"id\"").count() > 1 && !body.starts_with('[') {
                // The parser of the tests takes the last of each.
                return server.ask(&asked.with_json(&asked.json().unwrap()));
            }
            answer
        })
    }),
    case("any length is taken", Exactly(&["refuse-lengths"]), |asked, server| {
        instead_of(40003, asked, server, |answer| {
            let mut json = asked.json().unwrap();
            if text(&asked.body).contains("\\u")
                || text(&asked.body).contains(['\u{7f}', '\u{85}'])
                || text(&asked.body).contains("\\n")
            {
                return answer;
            }
            let name = text_of(&json, "name").chars().chain("x".chars()).take(900).collect::<String>();
            json["name"] = name.into();
            if json["tag"].is_string() {
                json["tag"] = "short".into();
            }
            server.ask(&asked.with_json(&json))
        })
    }),
    case("control characters are kept", Exactly(&["refuse-control", "retry-refused"]), |asked, server| {
        instead_of(40003, asked, server, |answer| {
            let mut json = asked.json().unwrap();
            let controlled = |text: &str| text.contains(char::is_control);
            if !controlled(text_of(&json, "name")) && !controlled(text_of(&json, "tag")) {
                return answer;
            }
            json["name"] = text_of(&json, "name").replace(char::is_control, "").into();
            json["tag"] = "clean".into();
            server.ask(&asked.without("idempotency-key").with_json(&json))
        })
    }),
    case("any media type is taken", Exactly(&["refuse-media-type"]), |asked, server| {
        changed(&asked.with("content-type", "application/json"), server, |answer| answer)
    }),
    case("any size is taken", Exactly(&["refuse-large"]), |asked, server| {
        let body = text(&asked.body).trim_end().as_bytes().to_vec();
        changed(&Asked { body, ..asked.clone() }, server, |answer| answer)
    }),
    case("what is refused is kept", Exactly(&["nothing-left"]), |asked, server| {
        changed(asked, server, |answer| {
            if let Some(mut json) = asked.json().filter(|_| answer.number() == Some(40003)) {
                json["name"] =
                    text_of(&json, "name").replace(char::is_control, "").chars().take(99).collect::<String>().into();
                json["tag"] = "kept".into();
                server.ask(&asked.without("idempotency-key").with_json(&json));
            }
            answer
        })
    }),
    case("a bad limit is ignored", Exactly(&["list-limit-bad"]), |asked, server| {
        instead_of(40004, asked, server, |_| server.ask(&without_parameter(asked, "limit")))
    }),
    case("include is ignored", Among(&["list-ids", "create-any-id"]), |asked, server| {
        changed(&without_parameter(asked, "include"), server, |answer| answer)
    }),
    case("any include is taken", Exactly(&["list-include-bad"]), |asked, server| {
        instead_of(40007, asked, server, |answer| {
            if asked.path.contains("include") { server.ask(&without_parameter(asked, "include")) } else { answer }
        })
    }),
    case("unknown parameters are refused", Exactly(&["list-unknown-parameters"]), |asked, server| {
        let path = asked.path.replace("colour=green&limit=1", "limit=x");
        changed(&Asked { path, ..asked.clone() }, server, |answer| answer)
    }),
    case("lists are public", Exactly(&["list-caching"]), |asked, server| {
        changed(asked, server, |answer| match answer.header("cache-control") {
            Some("private, no-cache") => answer.with("cache-control", "public, max-age=60"),
            _ => answer,
        })
    }),
    case("lists do not vary", Exactly(&["list-caching"]), |asked, server| {
        changed(asked, server, |answer| answer.without("vary"))
    }),
    case("never 304", Exactly(&["list-etag"]), |asked, server| {
        changed(&asked.without("if-none-match"), server, |answer| answer)
    }),
    case("always 304", Exactly(&["list-etag-moves"]), |asked, server| {
        if asked.header("if-none-match").is_none() {
            return changed(asked, server, |answer| answer);
        }
        changed(&asked.with("if-none-match", "*"), server, |answer| {
            answer.with("etag", asked.header("if-none-match").unwrap())
        })
    }),
    case("the ETag never changes", Exactly(&["list-etag-moves"]), |asked, server| {
        let same = asked.header("if-none-match") == Some("W/\"same\"");
        let asked = if same { asked.with("if-none-match", "*") } else { asked.clone() };
        changed(&asked, server, |answer| {
            if is_list(&asked) || asked.method == "HEAD" { answer.with("etag", "W/\"same\"") } else { answer }
        })
    }),
    case("no ETag", Exactly(&["list-etag", "list-etag-moves"]), |asked, server| {
        changed(asked, server, |answer| answer.without("etag"))
    }),
    case("HEAD is different", Exactly(&["list-head"]), |asked, server| {
        changed(asked, server, |answer| if asked.method == "HEAD" { answer.without("vary") } else { answer })
    }),
    case("HEAD is not allowed", Exactly(&["list-head"]), |asked, server| {
        changed(asked, server, |answer| if asked.method == "HEAD" { answer.with_status(405) } else { answer })
    }),
    case("no Link", Exactly(&["page-link", "page-walk", "page-cursor-lasts"]), |asked, server| {
        changed(asked, server, |answer| answer.without("link"))
    }),
    case("links lead in circles", Among(&["page-walk"]), |asked, server| {
        changed(asked, server, |answer| match limit(asked) {
            Some(limit) if answer.header("link").is_some() => {
                let again = format!("</plants?limit={limit}&include=id>; rel=\"next\"");
                answer.with("link", &again)
            }
            _ => answer,
        })
    }),
    case("a page repeats a plant", Among(&["page-walk"]), |asked, server| {
        // The cursor is that of the page before its last plant.
        let Some(limit @ 2..) = limit(asked).filter(|_| asked.path.contains("include=id")) else {
            return changed(asked, server, |answer| answer);
        };
        let shorter = asked.path.replace(&format!("limit={limit}"), &format!("limit={}", limit - 1));
        let link = server.ask(&Asked { path: shorter, ..asked.clone() }).next();
        changed(asked, server, |answer| match link {
            Some(link) if answer.header("link").is_some() => {
                let link = link.replace(&format!("limit={}", limit - 1), &format!("limit={limit}"));
                answer.with("link", &format!("<{link}>; rel=\"next\""))
            }
            _ => answer,
        })
    }),
    case("any cursor is taken", Exactly(&["page-cursor-bad"]), |asked, server| {
        instead_of(40006, asked, server, |_| server.ask(&without_parameter(asked, "after")))
    }),
    case("no token is needed", Among(&["access-no-token", "access-challenge"]), |asked, server| {
        if asked.header("authorization").is_none() && is_list(asked) {
            let answer = Answer { status: 200, reason: "OK".into(), headers: Vec::new(), body: b"[]".to_vec() };
            return Reply::Answer(
                answer
                    .with("content-type", "application/json")
                    .with("x-content-type-options", "nosniff")
                    .with("x-request-id", "x"),
            );
        }
        changed(asked, server, |answer| answer)
    }),
    case("any token is taken", Exactly(&["access-wrong-token", "access-invalid"]), |asked, server| {
        instead_of(40101, asked, server, |answer| {
            if is_list(asked) { answer.with_status(200).with_json(&json!([])) } else { answer }
        })
    }),
    case("no WWW-Authenticate", Exactly(&["access-challenge", "access-invalid"]), |asked, server| {
        changed(asked, server, |answer| answer.without("www-authenticate"))
    }),
    case("no token is 403", Exactly(&["access-challenge", "access-first"]), |asked, server| {
        instead_of(40100, asked, server, |answer| {
            answer.with_status(403).with_json(&json!({ "error": 40300, "message": "no" }))
        })
    }),
    case("unknown tokens are told apart", Exactly(&["access-invalid"]), |asked, server| {
        instead_of(40101, asked, server, |answer| {
            let malformed = asked.header("authorization") == Some("Bearer pst_malformed");
            if malformed { answer.with_json(&json!({ "error": 40101, "message": "malformed" })) } else { answer }
        })
    }),
    case("addresses are told before the token", Exactly(&["access-first"]), |asked, server| {
        instead_of(40100, asked, server, |answer| {
            if asked.path != "/no/such/address" {
                return answer;
            }
            answer.with_status(404).with_json(&json!({ "error": 40401, "message": "no" }))
        })
    }),
    case("the scheme has a capital letter", Exactly(&["access-scheme"]), |asked, server| {
        let exact = asked
            .header("authorization")
            .is_none_or(|value| value.starts_with("Bearer ") || value.starts_with("Basic "));
        changed(&if exact { asked.clone() } else { asked.without("authorization") }, server, |answer| answer)
    }),
    case(
        "keys are ignored",
        Exactly(&["retry-create", "retry-delete", "retry-refused", "retry-other", "retry-bad-key"]),
        |asked, server| changed(&asked.without("idempotency-key"), server, |answer| answer),
    ),
    case("repetitions are not marked", Exactly(&["retry-create", "retry-delete", "retry-refused"]), |asked, server| {
        changed(asked, server, |answer| answer.without("idempotency-replayed"))
    }),
    case("a key serves for anything", Exactly(&["retry-other"]), |asked, server| {
        instead_of(42200, asked, server, |_| server.ask(&asked.without("idempotency-key")))
    }),
    case("an address that leads nowhere is a page", Exactly(&["route-unknown", "error-shape"]), |asked, server| {
        instead_of(40401, asked, server, |answer| Answer {
            body: b"<h1>Not Found</h1>".to_vec(),
            ..answer.with("content-type", "text/html")
        })
    }),
    case("no Allow", Exactly(&["method-unknown"]), |asked, server| {
        changed(asked, server, |answer| answer.without("allow"))
    }),
    case("the request id is always new", Exactly(&["request-id"]), |asked, server| {
        changed(&asked.without("x-request-id"), server, |answer| answer)
    }),
    case("no request id with errors", Exactly(&["request-id-always"]), |asked, server| {
        changed(asked, server, |answer| if answer.status == 409 { answer.without("x-request-id") } else { answer })
    }),
    case("no nosniff with deletes", Exactly(&["nosniff-always"]), |asked, server| {
        changed(
            asked,
            server,
            |answer| {
                if answer.status == 204 { answer.without("x-content-type-options") } else { answer }
            },
        )
    }),
    case("errors close the connection", Exactly(&["connection-kept"]), |asked, server| {
        changed(asked, server, |answer| if answer.status >= 400 { answer.with("connection", "close") } else { answer })
    }),
    case("no probes", Exactly(&["probes"]), |asked, server| {
        let path = if asked.path == "/readyz" { "/plants" } else { &asked.path };
        changed(&Asked { path: path.to_owned(), ..asked.clone() }, server, |answer| answer)
    }),
    case("no description", Exactly(&["openapi"]), |asked, server| {
        let path = if asked.path == "/openapi.json" { "/livez" } else { &asked.path };
        changed(&Asked { path: path.to_owned(), ..asked.clone() }, server, |answer| answer)
    }),
    case("no page about it", Exactly(&["docs"]), |asked, server| {
        let path = if asked.path == "/docs" { "/livez" } else { &asked.path };
        changed(&Asked { path: path.to_owned(), ..asked.clone() }, server, |answer| answer)
    }),
    case("errors are text", Among(&["error-shape"]), |asked, server| {
        changed(asked, server, |answer| {
            if answer.status >= 400 { answer.with_json(&json!("something is wrong")) } else { answer }
        })
    }),
    case("error numbers are text", Among(&["error-shape"]), |asked, server| {
        changed(asked, server, |answer| match answer.number() {
            Some(number) => answer.with_json(&json!({ "error": number.to_string(), "message": "no" })),
            None => answer,
        })
    }),
    case(
        "error numbers are too large",
        Exactly(&["delete-bad-id", "error-shape", "error-numbers"]),
        |asked, server| {
            instead_of(40005, asked, server, |answer| {
                answer.with_json(&json!({ "error": 4_000_500_000_i64, "message": "no" }))
            })
        },
    ),
    case("an error number is unknown", Exactly(&["delete-bad-id", "error-numbers"]), |asked, server| {
        instead_of(40005, asked, server, |answer| answer.with_json(&json!({ "error": 40099, "message": "no" })))
    }),
    case("errors say more", Exactly(&["error-members"]), |asked, server| {
        instead_of(40005, asked, server, |answer| {
            answer.with_json(&json!({ "error": 40005, "message": "no", "more": 1 }))
        })
    }),
    case("errors say nothing", Exactly(&["error-members"]), |asked, server| {
        instead_of(40005, asked, server, |answer| answer.with_json(&json!({ "error": 40005, "message": "" })))
    }),
    case("errors are called text", Exactly(&["error-shape"]), |asked, server| {
        instead_of(40005, asked, server, |answer| answer.with("content-type", "text/plain"))
    }),
    case(
        "a fault of the client is one of the server",
        Exactly(&["delete-bad-id", "no-server-error"]),
        |asked, server| {
            instead_of(40005, asked, server, |answer| {
                answer.with_status(500).with_json(&json!({ "error": 50000, "message": "no" }))
            })
        },
    ),
    case("the server breaks down over a text", Exactly(&["create-longest"]), |asked, server| {
        if text(&asked.body).contains("🌱🌱") { Reply::Cut } else { changed(asked, server, |answer| answer) }
    }),
    case("a list never ends", Among(&["list-limit", "list-limit-exact"]), |asked, server| {
        if is_list(asked) && limit(asked) == Some(1) { Reply::Endless } else { changed(asked, server, |answer| answer) }
    }),
    case("a list ends early", Among(&["list-limit"]), |asked, server| {
        if is_list(asked) && limit(asked) == Some(1) {
            Reply::Half(server.ask(asked))
        } else {
            changed(asked, server, |answer| answer)
        }
    }),
    case("answers are no JSON", Exactly(&["create-answers"]), |asked, server| {
        changed(asked, server, |answer| match asked.json() {
            Some(json) if text_of(&json, "name").ends_with(" create") => answer.with("content-type", "text/plain"),
            _ => answer,
        })
    }),
];
