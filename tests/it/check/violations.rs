//! Violations of the interface by a server, each with the checks that must report it.

use std::sync::Mutex;

use serde_json::{Value, json};

use super::{OWN, check, names, text, token, user_with_plants, with_verdict};
use crate::support::rewriting_proxy::{ProxiedRequest, Reply, RewritingProxy, Upstream};
use crate::support::{Client, CommandOutput, Response, Server, Service, sqlite_test};

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

enum Violation {
    /// Replies instead of the server, or forwards the request.
    Reply(fn(&ProxiedRequest, Upstream) -> Option<Reply>),
    /// Changes every request.
    Request(fn(&ProxiedRequest) -> ProxiedRequest),
    /// Changes the JSON body of a request, or forwards the request.
    Body(fn(Value) -> Option<Value>),
    /// Changes every response.
    Response(fn(&ProxiedRequest, Response) -> Response),
    /// Changes the plants of every list.
    List(fn(&ProxiedRequest, &mut Vec<Value>)),
    /// Replaces responses with this error code.
    Error(i64, fn(&ProxiedRequest, Upstream, Response) -> Response),
}

impl Violation {
    fn reply(&self, request: &ProxiedRequest, server: Upstream) -> Reply {
        match self {
            Self::Reply(reply) => reply(request, server).unwrap_or_else(|| Reply::Response(server.send(request))),
            Self::Request(change) => Reply::Response(server.send(&change(request))),
            Self::Body(change) => {
                let changed = request.json().and_then(change).map(|json| request.with_json(&json));
                Reply::Response(server.send(changed.as_ref().unwrap_or(request)))
            }
            Self::Response(change) => Reply::Response(change(request, server.send(request))),
            Self::List(change) => {
                let response = server.send(request);
                let plants =
                    response.json_or_null().as_array().filter(|_| is_list(request) && response.status == 200).cloned();
                let Some(mut plants) = plants else { return Reply::Response(response) };
                change(request, &mut plants);
                Reply::Response(response.with_json(&plants.into()))
            }
            Self::Error(code, other) => {
                let response = server.send(request);
                let is_replaced = response.error_code() == Some(*code);
                Reply::Response(if is_replaced { other(request, server, response) } else { response })
            }
        }
    }
}

const fn case(name: &'static str, fails: Failing, violation: Violation) -> Case {
    Case { name, fails, cleans: true, own: &OWN, violation }
}

const fn on_reply(name: &'static str, fails: Failing, reply: fn(&ProxiedRequest, Upstream) -> Option<Reply>) -> Case {
    case(name, fails, Violation::Reply(reply))
}

const fn on_request(name: &'static str, fails: Failing, change: fn(&ProxiedRequest) -> ProxiedRequest) -> Case {
    case(name, fails, Violation::Request(change))
}

const fn on_body(name: &'static str, fails: Failing, change: fn(Value) -> Option<Value>) -> Case {
    case(name, fails, Violation::Body(change))
}

const fn on_response(name: &'static str, fails: Failing, change: fn(&ProxiedRequest, Response) -> Response) -> Case {
    case(name, fails, Violation::Response(change))
}

const fn on_list(name: &'static str, fails: Failing, change: fn(&ProxiedRequest, &mut Vec<Value>)) -> Case {
    case(name, fails, Violation::List(change))
}

const fn on_error(
    name: &'static str,
    fails: Failing,
    code: i64,
    other: fn(&ProxiedRequest, Upstream, Response) -> Response,
) -> Case {
    case(name, fails, Violation::Error(code, other))
}

/// Runs the check against a server with the violation. Returns a message unless the expected checks fail and only the plants of
/// the user are left.
fn verify(case: &'static Case, server: &Server, ada: &Client) -> Option<String> {
    let proxy = RewritingProxy::start(server.address(), |request, server| case.violation.reply(request, server));
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
        return Some(format!("{name}: {failing:?}\n{}", output.stdout_text()));
    }
    None
}

/// Deletes the plant that the request creates.
fn delete_created(request: &ProxiedRequest, server: Upstream) {
    let path = format!("/plants/{}", request.json().unwrap()["id"]);
    let bare = request.without("content-type");
    server.send(&ProxiedRequest { method: "DELETE".into(), path, body: Vec::new(), ..bare });
}

/// Returns a response of success without a body.
fn emptied(response: Response) -> Response {
    Response { body: Vec::new(), ..response.without("content-type").with_status(204) }
}

/// Returns the request for another path if its path is this one.
fn moved(request: &ProxiedRequest, from: &str, to: &str) -> ProxiedRequest {
    let path = if request.path == from { to } else { &request.path };
    ProxiedRequest { path: path.to_owned(), ..request.clone() }
}

fn is_list(request: &ProxiedRequest) -> bool {
    request.is("GET", "/plants") && !request.is("GET", "/plants/")
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
fn confined(request: &ProxiedRequest, above: i64, below: i64) -> ProxiedRequest {
    let confine = |text: &str, before: &str| {
        let above = text.replace(&format!("{before}9223372036854775808"), &format!("{before}{above}"));
        above.replace(&format!("{before}-9223372036854775809"), &format!("{before}{below}"))
    };
    let body = confine(&text(&request.body), ":").into_bytes();
    ProxiedRequest { path: confine(&request.path, "/"), body, ..request.clone() }
}

fn saturated(request: &ProxiedRequest) -> ProxiedRequest {
    confined(request, i64::MAX, i64::MIN)
}

fn overflowed(request: &ProxiedRequest) -> ProxiedRequest {
    confined(request, i64::MIN, i64::MAX)
}

fn text_of<'a>(json: &'a Value, name: &str) -> &'a str {
    json[name].as_str().unwrap_or_default()
}

/// Checks that send idempotency keys and depend on their effect.
const OF_KEYS: [&str; 6] =
    ["account-token-limits", "retry-create", "retry-delete", "retry-rejected", "retry-key-reused", "retry-invalid-key"];

const ALL: &[Case] = &[
    on_response("a create is 201", Exactly(&["create-response"]), |request, response| {
        if request.method == "POST" && response.status == 200 { response.with_status(201) } else { response }
    }),
    on_response(
        "a create returns its id",
        Exactly(&["create-response-without-id", "create-location"]),
        |request, response| match request.json().filter(|_| response.status == 200) {
            Some(sent) => {
                let mut json = response.json();
                // Not in the creates of `create-tag-null` and `create-unknown-fields`, which would fail, too.
                if !text_of(&sent, "name").ends_with("null") && !text_of(&sent, "name").ends_with("unknown") {
                    json["id"] = sent["id"].clone();
                }
                response.with_json(&json)
            }
            None => response,
        },
    ),
    on_response(
        "an absent tag is null",
        Exactly(&["create-without-tag", "create-tag-null", "create-unknown-fields"]),
        |request, response| {
            if request.method != "POST" || response.status != 200 || !response.json()["tag"].is_null() {
                return response;
            }
            let mut json = response.json();
            json["tag"] = Value::Null;
            response.with_json(&json)
        },
    ),
    on_list("an absent tag is null in lists", Exactly(&["list-response"]), |_, plants| {
        for plant in plants {
            plant.as_object_mut().unwrap().entry("tag").or_insert(Value::Null);
        }
    }),
    on_reply("a list shows ids without `include`", Exactly(&["list-response"]), |request, server| {
        let is_changed = is_list(request) && !request.path.contains("include");
        let separator = if request.path.contains('?') { '&' } else { '?' };
        let path = is_changed.then(|| format!("{}{separator}include=id", request.path))?;
        let response = server.send(&ProxiedRequest { path, ..request.clone() });
        let link = response.next().map(|next| format!("<{}>; rel=\"next\"", next.replace("&include=id", "")));
        Some(Reply::Response(match link {
            Some(link) => response.with("link", &link),
            None => response,
        }))
    }),
    on_response("a list is 206", Exactly(&["list-response"]), |request, response| {
        if request.method == "GET" && is_list(request) && response.status == 200 && !request.path.contains("limit=1") {
            response.with_status(206)
        } else {
            response
        }
    }),
    on_list("lists are in descending order", Among(&["list-order"]), |_, plants| plants.reverse()),
    on_list("two plants are out of order", Exactly(&["list-order"]), |request, plants| {
        if limit(request).is_none() && plants.len() > 3 {
            let last = plants.len() - 1;
            plants.swap(last, last - 1);
        }
    }),
    on_request("a list has one plant more than the limit", Among(&["list-limit", "list-limit-exact"]), |request| {
        let Some(limit @ 1..100) = limit(request) else { return request.clone() };
        let path = request.path.replace(&format!("limit={limit}"), &format!("limit={}", limit + 1));
        ProxiedRequest { path, ..request.clone() }
    }),
    on_list("a list has one plant less than the limit", Among(&["list-limit-exact"]), |request, plants| {
        if limit(request).is_some() {
            plants.pop();
        }
    }),
    on_list("the first plants are missing", Among(&["create-listed"]), |_, plants| {
        plants.retain(|plant| !text_of(plant, "name").ends_with("fixture 0"));
    }),
    on_list("a plant is listed twice", Exactly(&["create-listed"]), |request, plants| {
        let fixture = plants.iter().position(|plant| text_of(plant, "name").ends_with("fixture 3"));
        if let Some(fixture) = fixture.filter(|_| limit(request).is_none() && !request.path.contains("include")) {
            plants.insert(fixture, plants[fixture].clone());
        }
    }),
    on_list("ids are doubles in lists", Among(&["list-ids", "create-id-range"]), |_, plants| {
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
    }),
    on_request("ids are doubles", Among(&["create-id-precision"]), |request| {
        let lossy = |id: i64| id & !1_023;
        let mut other = request.clone();
        if let Some(mut json) = request.json().filter(|json| json["id"].is_i64()) {
            json["id"] = lossy(json["id"].as_i64().unwrap()).into();
            other = request.with_json(&json);
        }
        if let Some(id) = request.path.strip_prefix("/plants/").and_then(|id| id.parse().ok()) {
            other.path = format!("/plants/{}", lossy(id));
        }
        other
    }),
    on_body("text is trimmed", Exactly(&["create-exact-text"]), |mut json| {
        let name = text_of(&json, "name").to_owned();
        (name.starts_with("plantstore") && name.ends_with(' ')).then(|| {
            json["name"] = name.trim_end_matches(' ').into();
            json
        })
    }),
    on_body("long names are cut", Exactly(&["create-max-lengths"]), |mut json| {
        let cut: String = text_of(&json, "name").chars().take(999).collect();
        (text_of(&json, "name").chars().count() == 1_000).then(|| {
            json["name"] = cut.into();
            json
        })
    }),
    on_error("a duplicate replaces the plant", Exactly(&["create-duplicate"]), 40900, |request, server, _| {
        delete_created(request, server);
        server.send(request)
    }),
    on_error(
        "a duplicate is 409 but replaces it",
        Exactly(&["create-duplicate"]),
        40900,
        |request, server, response| {
            if text_of(&request.json().unwrap(), "name").ends_with("second") {
                delete_created(request, server);
                server.send(request);
            }
            response
        },
    ),
    on_error("a duplicate is 400", Exactly(&["create-duplicate"]), 40900, |_, _, response| {
        response.with_status(400).with_json(&json!({ "error": 40002, "message": "taken" }))
    }),
    on_reply("a create stores nothing", Among(&["create-listed"]), |request, server| {
        let response = server.send(request);
        if request.method == "POST" && response.status == 200 {
            delete_created(request, server);
        }
        Some(Reply::Response(response))
    }),
    on_response("no Location", Exactly(&["create-location"]), |_, response| response.without("location")),
    on_body("a tag of null is rejected", Exactly(&["create-tag-null"]), |json| {
        let is_null = json.get("tag").is_some_and(Value::is_null);
        is_null.then(|| json!({ "id": json["id"], "name": json["name"], "tag": 7 }))
    }),
    on_body("unknown fields are rejected", Exactly(&["create-unknown-fields"]), |json| {
        json.get("colour").map(|_| json!({ "id": json["id"] }))
    }),
    on_request("a charset is rejected", Exactly(&["create-charset"]), |request| match request.header("content-type") {
        Some(value) if value.contains("charset") => request.with("content-type", "text/plain"),
        _ => request.clone(),
    }),
    on_response("a delete is 200", Exactly(&["delete-response", "account-tokens", "account-shares"]), |_, response| {
        if response.status == 204 { response.with_status(200) } else { response }
    }),
    Case {
        cleans: false,
        ..on_reply("a delete does nothing", Among(&["delete-removes", "nothing-left"]), |request, server| {
            let is_changed = request.is("DELETE", "/plants/-");
            let path = is_changed.then(|| "/plants/123456789".to_owned())?;
            let probe = ProxiedRequest { path, ..request.without("idempotency-key") };
            Some(Reply::Response(emptied(server.send(&probe))))
        })
    },
    on_error(
        "an unknown plant is deleted",
        Exactly(&["delete-unknown", "read-unknown", "replace-unknown"]),
        40400,
        |_, _, response| emptied(response),
    ),
    on_error("an unknown plant is created", Exactly(&["replace-unknown"]), 40400, |request, server, response| {
        let create = ProxiedRequest { method: "POST".into(), path: "/plants".into(), ..request.clone() };
        if request.method == "PUT" { server.send(&create) } else { response }
    }),
    on_request("a replacement does nothing", Exactly(&["replace-plant", "replace-invalid"]), |request| {
        let method = if request.is("PUT", "/plants/") { "GET" } else { &request.method };
        ProxiedRequest { method: method.to_owned(), ..request.clone() }
    }),
    on_request("a tag is not selected", Exactly(&["list-tag"]), |request| {
        if is_list(request) { without_parameter(request, "tag") } else { request.clone() }
    }),
    on_error("a bad id in the path is 404", Exactly(&["delete-invalid-id"]), 40005, |_, _, response| {
        response.with_status(404).with_json(&json!({ "error": 40400, "message": "no" }))
    }),
    on_body("a name is not needed", Exactly(&["reject-incomplete", "reject-missing"]), |mut json| {
        let is_nameless = json["id"].is_i64() && json.get("name").is_none() && json.get("colour").is_none();
        is_nameless.then(|| {
            json["name"] = "nameless".into();
            json
        })
    }),
    on_body("an id may be text", Exactly(&["reject-wrong-types", "reject-ids"]), |mut json| {
        let id: i64 = json["id"].as_str()?.parse().unwrap();
        json["id"] = id.into();
        Some(json)
    }),
    Case { own: &[], ..on_request("ids saturate", Exactly(&["reject-ids", "delete-invalid-id"]), saturated) },
    // The created plant gets the highest id. The lowest belongs to the user and must not be deleted instead.
    Case { own: &[i64::MIN], ..on_request("ids saturate beside the lowest", Exactly(&["reject-ids"]), saturated) },
    Case { own: &[i64::MAX], ..on_request("ids saturate at the highest", Exactly(&["reject-ids"]), saturated) },
    Case { own: &[], ..on_request("ids overflow", Exactly(&["reject-ids", "delete-invalid-id"]), overflowed) },
    Case { own: &[i64::MIN], ..on_request("ids overflow onto the lowest", Exactly(&["reject-ids"]), overflowed) },
    Case { own: &[i64::MAX], ..on_request("ids overflow beside the highest", Exactly(&["reject-ids"]), overflowed) },
    on_error("all faults of a body have one error code", Among(&["reject-missing"]), 40001, |_, _, response| {
        response.with_json(&json!({ "error": 40002, "message": "`name`, `tag`" }))
    }),
    on_error("only the first missing field is reported", Exactly(&["reject-missing"]), 40001, |_, _, response| {
        response.with_json(&json!({ "error": 40001, "message": "`name`" }))
    }),
    on_error("a repeated key is accepted", Exactly(&["reject-repeated-key"]), 40002, |request, server, response| {
        let body = text(&request.body);
        if body.matches("\"name\"").count() > 1 || body.matches("\"id\"").count() > 1 && !body.starts_with('[') {
            // `serde_json` uses the last value of a repeated key.
            return server.send(&request.with_json(&request.json().unwrap()));
        }
        response
    }),
    on_error("any length is accepted", Exactly(&["reject-lengths"]), 40003, |request, server, response| {
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
    }),
    on_error(
        "control characters are stored",
        Exactly(&["reject-control-characters", "retry-rejected"]),
        40003,
        |request, server, response| {
            let mut json = request.json().unwrap();
            let controlled = |text: &str| text.contains(char::is_control);
            if !controlled(text_of(&json, "name")) && !controlled(text_of(&json, "tag")) {
                return response;
            }
            json["name"] = text_of(&json, "name").replace(char::is_control, "").into();
            json["tag"] = "clean".into();
            server.send(&request.without("idempotency-key").with_json(&json))
        },
    ),
    on_request("any media type is accepted", Exactly(&["reject-media-type"]), |request| {
        request.with("content-type", "application/json")
    }),
    on_request("any size is accepted", Exactly(&["reject-too-large"]), |request| {
        let body = text(&request.body).trim_end().as_bytes().to_vec();
        ProxiedRequest { body, ..request.clone() }
    }),
    on_error("a rejected plant is stored", Exactly(&["nothing-left"]), 40003, |request, server, response| {
        let mut json = request.json().unwrap();
        json["name"] = text_of(&json, "name").replace(char::is_control, "").chars().take(99).collect::<String>().into();
        json["tag"] = "kept".into();
        server.send(&request.without("idempotency-key").with_json(&json));
        response
    }),
    on_error("a bad limit is ignored", Exactly(&["list-limit-invalid"]), 40004, |request, server, _| {
        server.send(&without_parameter(request, "limit"))
    }),
    on_request("include is ignored", Among(&["list-ids", "create-id-range"]), |request| {
        without_parameter(request, "include")
    }),
    on_error("any include is accepted", Exactly(&["list-include-invalid"]), 40007, |request, server, response| {
        if request.path.contains("include") { server.send(&without_parameter(request, "include")) } else { response }
    }),
    on_request("unknown parameters are rejected", Exactly(&["list-unknown-parameters"]), |request| {
        let path = request.path.replace("colour=green&limit=1", "limit=x");
        ProxiedRequest { path, ..request.clone() }
    }),
    on_response("lists are public", Exactly(&["list-caching"]), |_, response| match response.header("cache-control") {
        Some("private, no-cache") => response.with("cache-control", "public, max-age=60"),
        _ => response,
    }),
    on_response("lists do not vary", Exactly(&["list-caching"]), |_, response| response.without("vary")),
    on_request("never 304", Exactly(&["list-etag"]), |request| request.without("if-none-match")),
    on_reply("always 304", Exactly(&["list-etag-changes"]), |request, server| {
        let known = request.header("if-none-match")?;
        Some(Reply::Response(server.send(&request.with("if-none-match", "*")).with("etag", known)))
    }),
    on_reply("the ETag never changes", Exactly(&["list-etag-changes", "replace-plant"]), |request, server| {
        let same = request.header("if-none-match") == Some("W/\"same\"");
        let response = server.send(&if same { request.with("if-none-match", "*") } else { request.clone() });
        let is_tagged = is_list(request) || request.method == "HEAD";
        Some(Reply::Response(if is_tagged { response.with("etag", "W/\"same\"") } else { response }))
    }),
    on_response("no ETag", Exactly(&["list-etag", "list-etag-changes", "replace-plant"]), |_, response| {
        response.without("etag")
    }),
    on_response("events are not a stream", Exactly(&["list-events"]), |request, response| {
        if request.path == "/events" { response.with("content-type", "text/plain") } else { response }
    }),
    on_response("HEAD is different", Exactly(&["list-head"]), |request, response| {
        if request.method == "HEAD" { response.without("vary") } else { response }
    }),
    on_response("HEAD is not allowed", Exactly(&["list-events", "list-head"]), |request, response| {
        if request.method == "HEAD" { response.with_status(405) } else { response }
    }),
    on_response("no Link", Exactly(&["page-link", "page-walk", "page-cursor-stable"]), |_, response| {
        response.without("link")
    }),
    on_response("links form a cycle", Among(&["page-walk"]), |request, response| match limit(request) {
        Some(limit) if response.header("link").is_some() => {
            let again = format!("</plants?limit={limit}&include=id>; rel=\"next\"");
            response.with("link", &again)
        }
        _ => response,
    }),
    on_reply("a page repeats a plant", Among(&["page-walk"]), |request, server| {
        // The link has the cursor of a page that is one plant shorter.
        let limit = limit(request).filter(|limit| *limit >= 2 && request.path.contains("include=id"))?;
        let shorter = request.path.replace(&format!("limit={limit}"), &format!("limit={}", limit - 1));
        let link = server.send(&ProxiedRequest { path: shorter, ..request.clone() }).next()?;
        let response = server.send(request);
        response.header("link")?;
        let link = link.replace(&format!("limit={}", limit - 1), &format!("limit={limit}"));
        Some(Reply::Response(response.with("link", &format!("<{link}>; rel=\"next\""))))
    }),
    on_error("any cursor is accepted", Exactly(&["page-cursor-invalid"]), 40006, |request, server, _| {
        server.send(&without_parameter(request, "after"))
    }),
    on_reply("no token is needed", Among(&["access-no-token", "access-challenge"]), |request, _| {
        let is_changed = request.header("authorization").is_none() && is_list(request);
        let fields =
            [("content-type", "application/json"), ("x-content-type-options", "nosniff"), ("x-request-id", "x")];
        let headers = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let response = Response { status: 200, reason: "OK".into(), headers, body: b"[]".to_vec() };
        is_changed.then_some(Reply::Response(response))
    }),
    on_error("any token works", Exactly(&["access-wrong-token", "access-invalid"]), 40101, |request, _, error| {
        if is_list(request) { error.with_status(200).with_json(&json!([])) } else { error }
    }),
    on_response("no WWW-Authenticate", Exactly(&["access-challenge", "access-invalid"]), |_, response| {
        response.without("www-authenticate")
    }),
    on_error("no token is 403", Exactly(&["access-challenge", "access-checked-first"]), 40100, |_, _, response| {
        response.with_status(403).with_json(&json!({ "error": 40300, "message": "no" }))
    }),
    on_error("unknown tokens are distinguished", Exactly(&["access-invalid"]), 40101, |request, _, response| {
        let malformed = request.header("authorization") == Some("Bearer pst_malformed");
        if malformed { response.with_json(&json!({ "error": 40101, "message": "malformed" })) } else { response }
    }),
    on_error("unknown paths precede the token", Exactly(&["access-checked-first"]), 40100, |request, _, response| {
        if request.path != "/no/such/route" {
            return response;
        }
        response.with_status(404).with_json(&json!({ "error": 40401, "message": "no" }))
    }),
    on_request("the scheme is case-sensitive", Exactly(&["access-scheme"]), |request| {
        let exact = request
            .header("authorization")
            .is_none_or(|value| value.starts_with("Bearer ") || value.starts_with("Basic "));
        if exact { request.clone() } else { request.without("authorization") }
    }),
    on_request("idempotency keys are ignored", Exactly(&OF_KEYS), |request| request.without("idempotency-key")),
    on_error("a revoked token is accepted", Exactly(&["account-tokens"]), 40101, |request, _, response| {
        let me = json!({"user": "x", "token": {"scopes": []}});
        if request.is("GET", "/me") { response.with_status(200).with_json(&me) } else { response }
    }),
    on_response(
        "replays are not marked",
        Exactly(&["retry-create", "retry-delete", "retry-rejected"]),
        |_, response| response.without("idempotency-replayed"),
    ),
    on_error("a key is accepted for another request", Exactly(&["retry-key-reused"]), 42200, |request, server, _| {
        server.send(&request.without("idempotency-key"))
    }),
    on_error("an unknown path is an HTML page", Exactly(&["route-unknown", "error-shape"]), 40401, |_, _, response| {
        Response { body: b"<h1>Not Found</h1>".to_vec(), ..response.with("content-type", "text/html") }
    }),
    on_response("no Allow", Exactly(&["method-unknown"]), |_, response| response.without("allow")),
    on_request("the request id is always new", Exactly(&["request-id"]), |request| request.without("x-request-id")),
    on_response("no request id with errors", Exactly(&["request-id-always"]), |_, response| {
        if response.status == 409 { response.without("x-request-id") } else { response }
    }),
    on_response("no nosniff with deletes", Exactly(&["nosniff-always"]), |_, response| {
        if response.status == 204 { response.without("x-content-type-options") } else { response }
    }),
    on_response("errors close the connection", Exactly(&["connection-keep-alive"]), |_, response| {
        if response.status >= 400 { response.with("connection", "close") } else { response }
    }),
    on_request("no probes", Exactly(&["probes"]), |request| moved(request, "/readyz", "/plants")),
    on_request("no OpenAPI document", Exactly(&["openapi"]), |request| moved(request, "/openapi.json", "/livez")),
    on_request("no documentation page", Exactly(&["docs"]), |request| moved(request, "/docs", "/livez")),
    on_response("errors are text", Among(&["error-shape"]), |_, response| {
        if response.status >= 400 { response.with_json(&json!("something is wrong")) } else { response }
    }),
    on_response("error codes are strings", Among(&["error-shape"]), |_, response| match response.error_code() {
        Some(number) => response.with_json(&json!({ "error": number.to_string(), "message": "no" })),
        None => response,
    }),
    on_error(
        "error codes are larger than int32",
        Exactly(&["delete-invalid-id", "error-shape", "error-codes"]),
        40005,
        |_, _, response| response.with_json(&json!({ "error": 4_000_500_000_i64, "message": "no" })),
    ),
    on_error("an error code is unknown", Exactly(&["delete-invalid-id", "error-codes"]), 40005, |_, _, response| {
        response.with_json(&json!({ "error": 40099, "message": "no" }))
    }),
    on_error("errors have another member", Exactly(&["error-members"]), 40005, |_, _, response| {
        response.with_json(&json!({ "error": 40005, "message": "no", "more": 1 }))
    }),
    on_error("error messages are empty", Exactly(&["error-members"]), 40005, |_, _, response| {
        response.with_json(&json!({ "error": 40005, "message": "" }))
    }),
    on_error("errors have the media type text/plain", Exactly(&["error-shape"]), 40005, |_, _, response| {
        response.with("content-type", "text/plain")
    }),
    on_error(
        "a client error has status 500",
        Exactly(&["delete-invalid-id", "no-server-error"]),
        40005,
        |_, _, response| response.with_status(500).with_json(&json!({ "error": 50000, "message": "no" })),
    ),
    on_reply("the server closes the connection on a long text", Exactly(&["create-max-lengths"]), |request, _| {
        text(&request.body).contains("🌱🌱").then_some(Reply::Cut)
    }),
    on_reply("a list never ends", Among(&["list-limit", "list-limit-exact"]), |request, _| {
        (is_list(request) && limit(request) == Some(1)).then_some(Reply::Endless)
    }),
    on_reply("a list ends early", Among(&["list-limit"]), |request, server| {
        (is_list(request) && limit(request) == Some(1)).then(|| Reply::Half(server.send(request)))
    }),
    on_response("a response has the media type text/plain", Exactly(&["create-response"]), |request, response| {
        match request.json() {
            Some(json) if text_of(&json, "name").ends_with(" create") => response.with("content-type", "text/plain"),
            _ => response,
        }
    }),
];

// Every violation is reported by the checks about it and by no others.
sqlite_test!(every_violation_is_reported_by_its_checks, |Service { store, server }: &Service| {
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
});
