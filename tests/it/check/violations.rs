//! Violations of the interface by a server, each with the checks that must report it.

use std::sync::Mutex;

use serde_json::{Value, json};

use super::{OWN, check, names, text, token, user_with_plants, with_verdict};
use crate::support::rewriting_proxy::{ProxiedRequest, Reply, RewritingProxy, Upstream, Violation};
use crate::support::{Client, Engine, Response, Server, Service};

struct Case {
    name: &'static str,
    /// Checks that must fail.
    fails: Failing,
    /// The check can delete the plants it has created.
    cleans: bool,
    /// Plants of the user before the check, which must be unchanged after it.
    own: &'static [i64],
    violation: Violation,
}

enum Failing {
    Exactly(&'static [&'static str]),
    /// At least these. Other checks may fail as a consequence.
    Among(&'static [&'static str]),
}
use Failing::{Among, Exactly};

const fn case(name: &'static str, fails: Failing, violation: Violation) -> Case {
    Case { name, fails, cleans: true, own: &OWN, violation }
}

/// Runs the check against a server with the violation. Returns a message unless the expected checks fail and only the plants of
/// the user are left.
fn verify(case: &Case, server: &Server, ada: &Client) -> Option<String> {
    let proxy = RewritingProxy::start(server.address(), case.violation);
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

/// Forwards the request and changes the response.
fn changed(request: &ProxiedRequest, server: Upstream, change: impl FnOnce(Response) -> Response) -> Reply {
    Reply::Response(change(server.send(request)))
}

/// Forwards the request and replaces a response with this error code.
fn instead_of(
    code: i64,
    request: &ProxiedRequest,
    server: Upstream,
    other: impl FnOnce(Response) -> Response,
) -> Reply {
    changed(request, server, |response| if response.error_code() == Some(code) { other(response) } else { response })
}

fn is_list(request: &ProxiedRequest) -> bool {
    request.is("GET", "/plants") && !request.is("GET", "/plants/")
}

fn plants(response: &Response) -> Option<Vec<Value>> {
    (response.status == 200).then(|| response.json().as_array().cloned()).flatten()
}

/// Forwards the request and changes the plants of a list.
fn relisted(request: &ProxiedRequest, server: Upstream, change: impl FnOnce(&mut Vec<Value>)) -> Reply {
    changed(request, server, |response| match is_list(request).then(|| plants(&response)).flatten() {
        Some(mut plants) => {
            change(&mut plants);
            response.with_json(&plants.into())
        }
        None => response,
    })
}

fn limit(request: &ProxiedRequest) -> Option<usize> {
    let query = request.path.split_once('?')?.1;
    query.split('&').find_map(|part| part.strip_prefix("limit=")?.parse().ok())
}

fn without_parameter(request: &ProxiedRequest, name: &str) -> ProxiedRequest {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let start = format!("{name}=");
    let rest: Vec<&str> = query.split('&').filter(|part| !part.starts_with(&start)).collect();
    ProxiedRequest { path: format!("{path}?{}", rest.join("&")), ..request.clone() }
}

/// Replaces the numbers next to the range of int64: 2^63 by `above`, and -2^63 - 1 by `below`.
fn confined(request: &ProxiedRequest, server: Upstream, above: i64, below: i64) -> Reply {
    let [above, below] = [above, below].map(|id| id.to_string());
    let confine = |text: &str, before: &str| {
        let above = text.replace(&format!("{before}9223372036854775808"), &format!("{before}{above}"));
        above.replace(&format!("{before}-9223372036854775809"), &format!("{before}{below}"))
    };
    let (path, body) = (confine(&request.path, "/"), confine(&text(&request.body), ":").into_bytes());
    changed(&ProxiedRequest { path, body, ..request.clone() }, server, |response| response)
}

fn saturated(request: &ProxiedRequest, server: Upstream) -> Reply {
    confined(request, server, i64::MAX, i64::MIN)
}

fn overflowed(request: &ProxiedRequest, server: Upstream) -> Reply {
    confined(request, server, i64::MIN, i64::MAX)
}

fn text_of<'a>(json: &'a Value, name: &str) -> &'a str {
    json[name].as_str().unwrap_or_default()
}

const ALL: &[Case] = &[
    case("a create is 201", Exactly(&["create-response"]), |request, server| {
        changed(request, server, |response| {
            if request.method == "POST" && response.status == 200 { response.with_status(201) } else { response }
        })
    }),
    case("a create returns its id", Exactly(&["create-response-without-id", "create-location"]), |request, server| {
        changed(request, server, |response| match request.json().filter(|_| response.status == 200) {
            Some(sent) => {
                let mut json = response.json();
                // Not in the creates of `create-tag-null` and `create-unknown-fields`, which would fail, too.
                if !text_of(&sent, "name").ends_with("null") && !text_of(&sent, "name").ends_with("unknown") {
                    json["id"] = sent["id"].clone();
                }
                response.with_json(&json)
            }
            None => response,
        })
    }),
    case(
        "an absent tag is null",
        Exactly(&["create-without-tag", "create-tag-null", "create-unknown-fields"]),
        |request, server| {
            changed(request, server, |response| {
                if request.method != "POST" || response.status != 200 || !response.json()["tag"].is_null() {
                    return response;
                }
                let mut json = response.json();
                json["tag"] = Value::Null;
                response.with_json(&json)
            })
        },
    ),
    case("an absent tag is null in lists", Exactly(&["list-response"]), |request, server| {
        relisted(request, server, |plants| {
            for plant in plants {
                plant.as_object_mut().unwrap().entry("tag").or_insert(Value::Null);
            }
        })
    }),
    case("a list shows ids without `include`", Exactly(&["list-response"]), |request, server| {
        if is_list(request) && !request.path.contains("include") {
            let separator = if request.path.contains('?') { '&' } else { '?' };
            let more = ProxiedRequest { path: format!("{}{separator}include=id", request.path), ..request.clone() };
            return changed(&more, server, |response| {
                let same = response.next().map(|next| format!("<{}>; rel=\"next\"", next.replace("&include=id", "")));
                match same {
                    Some(link) => response.with("link", &link),
                    None => response,
                }
            });
        }
        changed(request, server, |response| response)
    }),
    case("a list is 206", Exactly(&["list-response"]), |request, server| {
        changed(request, server, |response| {
            if request.method == "GET"
                && is_list(request)
                && response.status == 200
                && !request.path.contains("limit=1")
            {
                response.with_status(206)
            } else {
                response
            }
        })
    }),
    case("lists are in descending order", Among(&["list-order"]), |request, server| {
        relisted(request, server, |plants| plants.reverse())
    }),
    case("two plants are out of order", Exactly(&["list-order"]), |request, server| {
        relisted(request, server, |plants| {
            if limit(request).is_none() && plants.len() > 3 {
                let last = plants.len() - 1;
                plants.swap(last, last - 1);
            }
        })
    }),
    case("a list has one plant more than the limit", Among(&["list-limit", "list-limit-exact"]), |request, server| {
        match limit(request) {
            Some(limit @ 1..100) => {
                let path = request.path.replace(&format!("limit={limit}"), &format!("limit={}", limit + 1));
                changed(&ProxiedRequest { path, ..request.clone() }, server, |response| response)
            }
            _ => changed(request, server, |response| response),
        }
    }),
    case("a list has one plant less than the limit", Among(&["list-limit-exact"]), |request, server| {
        relisted(request, server, |plants| {
            if limit(request).is_some() {
                plants.pop();
            }
        })
    }),
    case("the first plants are missing", Among(&["create-listed"]), |request, server| {
        relisted(request, server, |plants| plants.retain(|plant| !text_of(plant, "name").ends_with("fixture 0")))
    }),
    case("a plant is listed twice", Exactly(&["create-listed"]), |request, server| {
        relisted(request, server, |plants| {
            let fixture = plants.iter().position(|plant| text_of(plant, "name").ends_with("fixture 3"));
            if let Some(fixture) = fixture.filter(|_| limit(request).is_none() && !request.path.contains("include")) {
                plants.insert(fixture, plants[fixture].clone());
            }
        })
    }),
    case("ids are doubles in lists", Among(&["list-ids", "create-id-range"]), |request, server| {
        relisted(request, server, |plants| {
            for plant in plants {
                if let Some(id) = plant["id"].as_i64() {
                    #[expect(
                        clippy::cast_precision_loss,
                        clippy::cast_possible_truncation,
                        reason = "the violation itself"
                    )]
                    let lossy = (id as f64) as i64;
                    plant["id"] = lossy.into();
                }
            }
        })
    }),
    case("ids are doubles", Among(&["create-id-precision"]), |request, server| {
        let lossy = |id: i64| id & !1_023;
        let mut other = request.clone();
        if let Some(mut json) = request.json().filter(|json| json["id"].is_i64()) {
            json["id"] = lossy(json["id"].as_i64().unwrap()).into();
            other = request.with_json(&json);
        }
        if let Some(id) = request.path.strip_prefix("/plants/").and_then(|id| id.parse().ok()) {
            other.path = format!("/plants/{}", lossy(id));
        }
        changed(&other, server, |response| response)
    }),
    case("text is trimmed", Exactly(&["create-exact-text"]), |request, server| match request.json() {
        Some(mut json) if text_of(&json, "name").starts_with("plantstore") && text_of(&json, "name").ends_with(' ') => {
            json["name"] = text_of(&json, "name").trim_end_matches(' ').into();
            changed(&request.with_json(&json), server, |response| response)
        }
        _ => changed(request, server, |response| response),
    }),
    case("long names are cut", Exactly(&["create-max-lengths"]), |request, server| match request.json() {
        Some(mut json) if text_of(&json, "name").chars().count() == 1_000 => {
            json["name"] = text_of(&json, "name").chars().take(999).collect::<String>().into();
            changed(&request.with_json(&json), server, |response| response)
        }
        _ => changed(request, server, |response| response),
    }),
    case("a duplicate replaces the plant", Exactly(&["create-duplicate"]), |request, server| {
        instead_of(40900, request, server, |_| {
            let id = request.json().unwrap()["id"].to_string();
            let bare = request.without("content-type");
            server.send(&ProxiedRequest {
                method: "DELETE".into(),
                path: format!("/plants/{id}"),
                body: Vec::new(),
                ..bare
            });
            server.send(request)
        })
    }),
    case("a duplicate is 409 and replaces the plant", Exactly(&["create-duplicate"]), |request, server| {
        instead_of(40900, request, server, |rejected| {
            if !text_of(&request.json().unwrap(), "name").ends_with("second") {
                return rejected;
            }
            let id = request.json().unwrap()["id"].to_string();
            let bare = request.without("content-type");
            server.send(&ProxiedRequest {
                method: "DELETE".into(),
                path: format!("/plants/{id}"),
                body: Vec::new(),
                ..bare
            });
            server.send(request);
            rejected
        })
    }),
    case("a duplicate is 400", Exactly(&["create-duplicate"]), |request, server| {
        instead_of(40900, request, server, |response| {
            response.with_status(400).with_json(&json!({ "error": 40002, "message": "taken" }))
        })
    }),
    case("a create stores nothing", Among(&["create-listed"]), |request, server| {
        changed(request, server, |response| {
            if request.method == "POST" && response.status == 200 {
                let id = request.json().unwrap()["id"].to_string();
                let bare = request.without("content-type");
                server.send(&ProxiedRequest {
                    method: "DELETE".into(),
                    path: format!("/plants/{id}"),
                    body: Vec::new(),
                    ..bare
                });
            }
            response
        })
    }),
    case("no Location", Exactly(&["create-location"]), |request, server| {
        changed(request, server, |response| response.without("location"))
    }),
    case("a tag of null is rejected", Exactly(&["create-tag-null"]), |request, server| match request.json() {
        Some(json) if json.get("tag").is_some_and(Value::is_null) => changed(
            &request.with_json(&json!({ "id": json["id"], "name": json["name"], "tag": 7 })),
            server,
            |response| response,
        ),
        _ => changed(request, server, |response| response),
    }),
    case("unknown fields are rejected", Exactly(&["create-unknown-fields"]), |request, server| match request.json() {
        Some(json) if json.get("colour").is_some() => {
            changed(&request.with_json(&json!({ "id": json["id"] })), server, |response| response)
        }
        _ => changed(request, server, |response| response),
    }),
    case("a charset is rejected", Exactly(&["create-charset"]), |request, server| {
        let other = match request.header("content-type") {
            Some(value) if value.contains("charset") => request.with("content-type", "text/plain"),
            _ => request.clone(),
        };
        changed(&other, server, |response| response)
    }),
    case("a delete is 200", Exactly(&["delete-response", "account-tokens", "account-shares"]), |request, server| {
        changed(request, server, |response| if response.status == 204 { response.with_status(200) } else { response })
    }),
    Case {
        name: "a delete does nothing",
        fails: Among(&["delete-removes", "nothing-left"]),
        cleans: false,
        own: &OWN,
        violation: |request, server| {
            if !request.is("DELETE", "/plants/-") {
                return changed(request, server, |response| response);
            }
            let probe = ProxiedRequest { path: "/plants/123456789".into(), ..request.without("idempotency-key") };
            changed(&probe, server, |response| Response {
                body: Vec::new(),
                ..response.without("content-type").with_status(204)
            })
        },
    },
    case("an unknown plant is deleted", Exactly(&["delete-unknown", "read-unknown"]), |request, server| {
        instead_of(40400, request, server, |response| Response {
            body: Vec::new(),
            ..response.without("content-type").with_status(204)
        })
    }),
    case("a bad id in the path is 404", Exactly(&["delete-invalid-id"]), |request, server| {
        instead_of(40005, request, server, |response| {
            response.with_status(404).with_json(&json!({ "error": 40400, "message": "no" }))
        })
    }),
    case("a name is not needed", Exactly(&["reject-incomplete", "reject-missing"]), |request, server| {
        match request.json() {
            Some(mut json) if json["id"].is_i64() && json.get("name").is_none() && json.get("colour").is_none() => {
                json["name"] = "nameless".into();
                changed(&request.with_json(&json), server, |response| response)
            }
            _ => changed(request, server, |response| response),
        }
    }),
    case("an id may be text", Exactly(&["reject-wrong-types", "reject-ids"]), |request, server| match request.json() {
        Some(mut json) if json["id"].is_string() => {
            json["id"] = text_of(&json, "id").parse::<i64>().unwrap().into();
            changed(&request.with_json(&json), server, |response| response)
        }
        _ => changed(request, server, |response| response),
    }),
    Case { own: &[], ..case("ids saturate", Exactly(&["reject-ids", "delete-invalid-id"]), saturated) },
    // The created plant gets the highest id. The lowest belongs to the user and must not be deleted instead.
    Case { own: &[i64::MIN], ..case("ids saturate beside the lowest", Exactly(&["reject-ids"]), saturated) },
    Case { own: &[i64::MAX], ..case("ids saturate at the highest", Exactly(&["reject-ids"]), saturated) },
    Case { own: &[], ..case("ids overflow", Exactly(&["reject-ids", "delete-invalid-id"]), overflowed) },
    Case { own: &[i64::MIN], ..case("ids overflow onto the lowest", Exactly(&["reject-ids"]), overflowed) },
    Case { own: &[i64::MAX], ..case("ids overflow beside the highest", Exactly(&["reject-ids"]), overflowed) },
    case("all faults of a body have one error code", Among(&["reject-missing"]), |request, server| {
        instead_of(40001, request, server, |response| {
            response.with_json(&json!({ "error": 40002, "message": "`name`, `tag`" }))
        })
    }),
    case("only the first missing field is reported", Exactly(&["reject-missing"]), |request, server| {
        instead_of(40001, request, server, |response| {
            response.with_json(&json!({ "error": 40001, "message": "`name`" }))
        })
    }),
    case("a repeated key is accepted", Exactly(&["reject-repeated-key"]), |request, server| {
        instead_of(40002, request, server, |response| {
            let body = text(&request.body);
            if body.matches("\"name\"").count() > 1 || body.matches("\"id\"").count() > 1 && !body.starts_with('[') {
                // `serde_json` uses the last value of a repeated key.
                return server.send(&request.with_json(&request.json().unwrap()));
            }
            response
        })
    }),
    case("any length is accepted", Exactly(&["reject-lengths"]), |request, server| {
        instead_of(40003, request, server, |response| {
            let mut json = request.json().unwrap();
            if text(&request.body).contains("\\u")
                || text(&request.body).contains(['\u{7f}', '\u{85}'])
                || text(&request.body).contains("\\n")
            {
                return response;
            }
            let name = text_of(&json, "name").chars().chain("x".chars()).take(900).collect::<String>();
            json["name"] = name.into();
            if json["tag"].is_string() {
                json["tag"] = "short".into();
            }
            server.send(&request.with_json(&json))
        })
    }),
    case(
        "control characters are stored",
        Exactly(&["reject-control-characters", "retry-rejected"]),
        |request, server| {
            instead_of(40003, request, server, |response| {
                let mut json = request.json().unwrap();
                let controlled = |text: &str| text.contains(char::is_control);
                if !controlled(text_of(&json, "name")) && !controlled(text_of(&json, "tag")) {
                    return response;
                }
                json["name"] = text_of(&json, "name").replace(char::is_control, "").into();
                json["tag"] = "clean".into();
                server.send(&request.without("idempotency-key").with_json(&json))
            })
        },
    ),
    case("any media type is accepted", Exactly(&["reject-media-type"]), |request, server| {
        changed(&request.with("content-type", "application/json"), server, |response| response)
    }),
    case("any size is accepted", Exactly(&["reject-too-large"]), |request, server| {
        let body = text(&request.body).trim_end().as_bytes().to_vec();
        changed(&ProxiedRequest { body, ..request.clone() }, server, |response| response)
    }),
    case("a rejected plant is stored", Exactly(&["nothing-left"]), |request, server| {
        changed(request, server, |response| {
            if let Some(mut json) = request.json().filter(|_| response.error_code() == Some(40003)) {
                json["name"] =
                    text_of(&json, "name").replace(char::is_control, "").chars().take(99).collect::<String>().into();
                json["tag"] = "kept".into();
                server.send(&request.without("idempotency-key").with_json(&json));
            }
            response
        })
    }),
    case("a bad limit is ignored", Exactly(&["list-limit-invalid"]), |request, server| {
        instead_of(40004, request, server, |_| server.send(&without_parameter(request, "limit")))
    }),
    case("include is ignored", Among(&["list-ids", "create-id-range"]), |request, server| {
        changed(&without_parameter(request, "include"), server, |response| response)
    }),
    case("any include is accepted", Exactly(&["list-include-invalid"]), |request, server| {
        instead_of(40007, request, server, |response| {
            if request.path.contains("include") {
                server.send(&without_parameter(request, "include"))
            } else {
                response
            }
        })
    }),
    case("unknown parameters are rejected", Exactly(&["list-unknown-parameters"]), |request, server| {
        let path = request.path.replace("colour=green&limit=1", "limit=x");
        changed(&ProxiedRequest { path, ..request.clone() }, server, |response| response)
    }),
    case("lists are public", Exactly(&["list-caching"]), |request, server| {
        changed(request, server, |response| match response.header("cache-control") {
            Some("private, no-cache") => response.with("cache-control", "public, max-age=60"),
            _ => response,
        })
    }),
    case("lists do not vary", Exactly(&["list-caching"]), |request, server| {
        changed(request, server, |response| response.without("vary"))
    }),
    case("never 304", Exactly(&["list-etag"]), |request, server| {
        changed(&request.without("if-none-match"), server, |response| response)
    }),
    case("always 304", Exactly(&["list-etag-changes"]), |request, server| {
        if request.header("if-none-match").is_none() {
            return changed(request, server, |response| response);
        }
        changed(&request.with("if-none-match", "*"), server, |response| {
            response.with("etag", request.header("if-none-match").unwrap())
        })
    }),
    case("the ETag never changes", Exactly(&["list-etag-changes"]), |request, server| {
        let same = request.header("if-none-match") == Some("W/\"same\"");
        let request = if same { request.with("if-none-match", "*") } else { request.clone() };
        changed(&request, server, |response| {
            if is_list(&request) || request.method == "HEAD" { response.with("etag", "W/\"same\"") } else { response }
        })
    }),
    case("no ETag", Exactly(&["list-etag", "list-etag-changes"]), |request, server| {
        changed(request, server, |response| response.without("etag"))
    }),
    case("HEAD is different", Exactly(&["list-head"]), |request, server| {
        changed(request, server, |response| if request.method == "HEAD" { response.without("vary") } else { response })
    }),
    case("HEAD is not allowed", Exactly(&["list-head"]), |request, server| {
        changed(request, server, |response| if request.method == "HEAD" { response.with_status(405) } else { response })
    }),
    case("no Link", Exactly(&["page-link", "page-walk", "page-cursor-stable"]), |request, server| {
        changed(request, server, |response| response.without("link"))
    }),
    case("links form a cycle", Among(&["page-walk"]), |request, server| {
        changed(request, server, |response| match limit(request) {
            Some(limit) if response.header("link").is_some() => {
                let again = format!("</plants?limit={limit}&include=id>; rel=\"next\"");
                response.with("link", &again)
            }
            _ => response,
        })
    }),
    case("a page repeats a plant", Among(&["page-walk"]), |request, server| {
        // The link has the cursor of a page that is one plant shorter.
        let Some(limit @ 2..) = limit(request).filter(|_| request.path.contains("include=id")) else {
            return changed(request, server, |response| response);
        };
        let shorter = request.path.replace(&format!("limit={limit}"), &format!("limit={}", limit - 1));
        let link = server.send(&ProxiedRequest { path: shorter, ..request.clone() }).next();
        changed(request, server, |response| match link {
            Some(link) if response.header("link").is_some() => {
                let link = link.replace(&format!("limit={}", limit - 1), &format!("limit={limit}"));
                response.with("link", &format!("<{link}>; rel=\"next\""))
            }
            _ => response,
        })
    }),
    case("any cursor is accepted", Exactly(&["page-cursor-invalid"]), |request, server| {
        instead_of(40006, request, server, |_| server.send(&without_parameter(request, "after")))
    }),
    case("no token is needed", Among(&["access-no-token", "access-challenge"]), |request, server| {
        if request.header("authorization").is_none() && is_list(request) {
            let response = Response { status: 200, reason: "OK".into(), headers: Vec::new(), body: b"[]".to_vec() };
            return Reply::Response(
                response
                    .with("content-type", "application/json")
                    .with("x-content-type-options", "nosniff")
                    .with("x-request-id", "x"),
            );
        }
        changed(request, server, |response| response)
    }),
    case("any token is accepted", Exactly(&["access-wrong-token", "access-invalid"]), |request, server| {
        instead_of(40101, request, server, |response| {
            if is_list(request) { response.with_status(200).with_json(&json!([])) } else { response }
        })
    }),
    case("no WWW-Authenticate", Exactly(&["access-challenge", "access-invalid"]), |request, server| {
        changed(request, server, |response| response.without("www-authenticate"))
    }),
    case("no token is 403", Exactly(&["access-challenge", "access-checked-first"]), |request, server| {
        instead_of(40100, request, server, |response| {
            response.with_status(403).with_json(&json!({ "error": 40300, "message": "no" }))
        })
    }),
    case("unknown tokens are distinguished", Exactly(&["access-invalid"]), |request, server| {
        instead_of(40101, request, server, |response| {
            let malformed = request.header("authorization") == Some("Bearer pst_malformed");
            if malformed { response.with_json(&json!({ "error": 40101, "message": "malformed" })) } else { response }
        })
    }),
    case("unknown paths are reported before the token", Exactly(&["access-checked-first"]), |request, server| {
        instead_of(40100, request, server, |response| {
            if request.path != "/no/such/route" {
                return response;
            }
            response.with_status(404).with_json(&json!({ "error": 40401, "message": "no" }))
        })
    }),
    case("the scheme is case-sensitive", Exactly(&["access-scheme"]), |request, server| {
        let exact = request
            .header("authorization")
            .is_none_or(|value| value.starts_with("Bearer ") || value.starts_with("Basic "));
        changed(&if exact { request.clone() } else { request.without("authorization") }, server, |response| response)
    }),
    case(
        "idempotency keys are ignored",
        Exactly(&[
            "account-token-limits",
            "retry-create",
            "retry-delete",
            "retry-rejected",
            "retry-key-reused",
            "retry-invalid-key",
        ]),
        |request, server| changed(&request.without("idempotency-key"), server, |response| response),
    ),
    case("a revoked token is accepted", Exactly(&["account-tokens"]), |request, server| {
        let me = json!({"user": "x", "token": {"scopes": []}});
        changed(request, server, |response| match response.error_code() {
            Some(40101) if request.is("GET", "/me") => response.with_status(200).with_json(&me),
            _ => response,
        })
    }),
    case("replays are not marked", Exactly(&["retry-create", "retry-delete", "retry-rejected"]), |request, server| {
        changed(request, server, |response| response.without("idempotency-replayed"))
    }),
    case("a key is accepted for another request", Exactly(&["retry-key-reused"]), |request, server| {
        instead_of(42200, request, server, |_| server.send(&request.without("idempotency-key")))
    }),
    case("an unknown path is an HTML page", Exactly(&["route-unknown", "error-shape"]), |request, server| {
        instead_of(40401, request, server, |response| Response {
            body: b"<h1>Not Found</h1>".to_vec(),
            ..response.with("content-type", "text/html")
        })
    }),
    case("no Allow", Exactly(&["method-unknown"]), |request, server| {
        changed(request, server, |response| response.without("allow"))
    }),
    case("the request id is always new", Exactly(&["request-id"]), |request, server| {
        changed(&request.without("x-request-id"), server, |response| response)
    }),
    case("no request id with errors", Exactly(&["request-id-always"]), |request, server| {
        changed(
            request,
            server,
            |response| if response.status == 409 { response.without("x-request-id") } else { response },
        )
    }),
    case("no nosniff with deletes", Exactly(&["nosniff-always"]), |request, server| {
        changed(request, server, |response| {
            if response.status == 204 { response.without("x-content-type-options") } else { response }
        })
    }),
    case("errors close the connection", Exactly(&["connection-keep-alive"]), |request, server| {
        changed(
            request,
            server,
            |response| if response.status >= 400 { response.with("connection", "close") } else { response },
        )
    }),
    case("no probes", Exactly(&["probes"]), |request, server| {
        let path = if request.path == "/readyz" { "/plants" } else { &request.path };
        changed(&ProxiedRequest { path: path.to_owned(), ..request.clone() }, server, |response| response)
    }),
    case("no OpenAPI document", Exactly(&["openapi"]), |request, server| {
        let path = if request.path == "/openapi.json" { "/livez" } else { &request.path };
        changed(&ProxiedRequest { path: path.to_owned(), ..request.clone() }, server, |response| response)
    }),
    case("no documentation page", Exactly(&["docs"]), |request, server| {
        let path = if request.path == "/docs" { "/livez" } else { &request.path };
        changed(&ProxiedRequest { path: path.to_owned(), ..request.clone() }, server, |response| response)
    }),
    case("errors are text", Among(&["error-shape"]), |request, server| {
        changed(request, server, |response| {
            if response.status >= 400 { response.with_json(&json!("something is wrong")) } else { response }
        })
    }),
    case("error codes are strings", Among(&["error-shape"]), |request, server| {
        changed(request, server, |response| match response.error_code() {
            Some(number) => response.with_json(&json!({ "error": number.to_string(), "message": "no" })),
            None => response,
        })
    }),
    case(
        "error codes are larger than int32",
        Exactly(&["delete-invalid-id", "error-shape", "error-codes"]),
        |request, server| {
            instead_of(40005, request, server, |response| {
                response.with_json(&json!({ "error": 4_000_500_000_i64, "message": "no" }))
            })
        },
    ),
    case("an error code is unknown", Exactly(&["delete-invalid-id", "error-codes"]), |request, server| {
        instead_of(40005, request, server, |response| response.with_json(&json!({ "error": 40099, "message": "no" })))
    }),
    case("errors have another member", Exactly(&["error-members"]), |request, server| {
        instead_of(40005, request, server, |response| {
            response.with_json(&json!({ "error": 40005, "message": "no", "more": 1 }))
        })
    }),
    case("error messages are empty", Exactly(&["error-members"]), |request, server| {
        instead_of(40005, request, server, |response| response.with_json(&json!({ "error": 40005, "message": "" })))
    }),
    case("errors have the media type text/plain", Exactly(&["error-shape"]), |request, server| {
        instead_of(40005, request, server, |response| response.with("content-type", "text/plain"))
    }),
    case("a client error has status 500", Exactly(&["delete-invalid-id", "no-server-error"]), |request, server| {
        instead_of(40005, request, server, |response| {
            response.with_status(500).with_json(&json!({ "error": 50000, "message": "no" }))
        })
    }),
    case("the server closes the connection on a long text", Exactly(&["create-max-lengths"]), |request, server| {
        if text(&request.body).contains("🌱🌱") {
            Reply::Cut
        } else {
            changed(request, server, |response| response)
        }
    }),
    case("a list never ends", Among(&["list-limit", "list-limit-exact"]), |request, server| {
        if is_list(request) && limit(request) == Some(1) {
            Reply::Endless
        } else {
            changed(request, server, |response| response)
        }
    }),
    case("a list ends early", Among(&["list-limit"]), |request, server| {
        if is_list(request) && limit(request) == Some(1) {
            Reply::Half(server.send(request))
        } else {
            changed(request, server, |response| response)
        }
    }),
    case("a response has the media type text/plain", Exactly(&["create-response"]), |request, server| {
        changed(request, server, |response| match request.json() {
            Some(json) if text_of(&json, "name").ends_with(" create") => response.with("content-type", "text/plain"),
            _ => response,
        })
    }),
];

/// Every violation is reported by the checks about it and by no others.
#[test]
fn every_violation_is_reported_by_its_checks() {
    let Service { store, server } = &Service::new(Engine::Sqlite, &[]);
    assert!(ALL.len() >= 40);
    let queue = Mutex::new(ALL.iter().enumerate());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some((number, case)) = queue.lock().unwrap().next() else { break };
                    let ada = user_with_plants(store, server, &format!("user-{number}"), case.own);
                    if let Some(failure) = verify(case, server, &ada) {
                        failures.lock().unwrap().push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
