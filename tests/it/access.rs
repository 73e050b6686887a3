//! Access of every kind of caller to the plants of another user, with every set of scopes: generated, and compared with the rule.
//! Rejections show nothing, not by their work either, and secrets are written nowhere.

use std::collections::BTreeSet;
use std::net::Shutdown;
use std::os::unix::process::ExitStatusExt as _;

use serde_json::json;

use crate::openapi::operations;
use crate::support::http2::Http2;
use crate::support::issuer::{Issuer, SigningKey};
use crate::support::{
    Client, CommandOutput, FaultInjector, Garden, JSON, Response, Service, Store, engine_test, engine_tool_test,
    sqlite_test, wait_until,
};
use crate::tokens::{ALL_SCOPES, created, manager, revoke};

/// Relation of a caller to the owner of the plants, `ada`: the steps that lead to it, and the role that results.
const RELATIONS: [(&str, &str, Option<&str>); 12] = [
    ("stranger", "", None),
    ("offered-reader", "reader", None),
    ("offered-editor", "editor", None),
    ("declined", "editor leave", None),
    ("left", "editor accept leave", None),
    ("revoked", "editor accept revoke", None),
    ("giver", "give", None),
    ("mutual", "reader accept give", Some("reader")),
    ("accepted", "editor accept", Some("editor")),
    ("reader", "reader accept", Some("reader")),
    ("editor", "editor accept", Some("editor")),
    ("ada", "", Some("owner")),
];
const SCOPES: [&str; 9] = [
    "plants:read",
    "plants:write",
    "plants:delete",
    "plants:read,plants:write",
    "plants:write,plants:delete",
    "plants:read,plants:write,plants:delete",
    "tokens:manage",
    "plants:read,shares:manage",
    ALL_SCOPES,
];
/// Id of a plant of the owner, and an id of none.
const PRESENT: i64 = 1;
const ABSENT: i64 = 2;
/// Name and tag of the plant, which only readers see.
const NAME: &str = "canary-name";
const TAG: &str = "canary-tag";

/// Operations, some with a header field: the scope that they need, and the status or error code for a present and an absent plant,
/// token, user or share. With `If-None-Match`, the tag is that of the owner or an unknown one.
const OPERATIONS: [(&str, &str, i64, i64); 32] = [
    ("GET /me", "", 200, 200),
    ("GET /plants", "plants:read", 200, 200),
    ("GET /plants If-None-Match", "plants:read", 304, 200),
    ("GET /plants/{id}", "plants:read", 200, 40400),
    ("GET /plants/{id} If-None-Match", "plants:read", 304, 40400),
    ("GET /events", "plants:read", 200, 200),
    ("PUT /plants/{id}", "plants:write", 200, 40400),
    ("DELETE /plants/{id}", "plants:delete", 204, 40400),
    ("POST /plants", "plants:write", 40900, 200),
    ("GET /plants?owner={owner}", "plants:read", 200, 200),
    ("HEAD /plants?owner={owner}", "plants:read", 200, 200),
    ("GET /plants?owner={owner} If-None-Match", "plants:read", 304, 200),
    ("GET /plants?owner={owner}&include=id,owner", "plants:read", 200, 200),
    ("GET /plants?owner={owner}&limit=1&tag=canary-tag", "plants:read", 200, 200),
    ("GET /plants/{id}?owner={owner}&include=owner", "plants:read", 200, 40400),
    ("GET /plants/{id}?owner={owner} If-None-Match", "plants:read", 304, 40400),
    ("HEAD /plants/{id}?owner={owner}", "plants:read", 200, 40400),
    ("GET /events?owner={owner}", "plants:read", 200, 200),
    ("PUT /plants/{id}?owner={owner}", "plants:write", 200, 40400),
    ("PUT /plants/{id}?owner={owner} Idempotency-Key", "plants:write", 200, 40400),
    ("DELETE /plants/{id}?owner={owner}", "plants:delete", 204, 40400),
    ("DELETE /plants/{id}?owner={owner} Idempotency-Key", "plants:delete", 204, 40400),
    ("POST /plants?owner={owner}", "plants:write", 40900, 200),
    ("POST /plants?owner={owner} Idempotency-Key", "plants:write", 40900, 200),
    ("GET /tokens", "tokens:manage", 200, 200),
    ("POST /tokens", "tokens:manage", 201, 201),
    ("DELETE /tokens/{id}", "tokens:manage", 204, 40402),
    ("GET /shares", "shares:manage", 200, 200),
    ("PUT /shares/{user}", "shares:manage", 204, 204),
    ("DELETE /shares/{user}", "shares:manage", 204, 204),
    ("PUT /shares/received/{owner}", "shares:manage", 204, 40403),
    ("DELETE /shares/received/{owner}", "shares:manage", 204, 40403),
];

#[test]
fn every_operation_is_in_the_matrix() {
    let tested = OPERATIONS.iter().map(|(operation, scope, ..)| {
        let words: Vec<&str> = operation.split([' ', '?']).collect();
        (words[0].to_lowercase(), words[1], *scope)
    });
    let documented = operations().filter_map(|(method, path, operation)| {
        let scopes = operation["security"][0]["bearer"].as_array()?;
        Some((method.to_owned(), path, scopes.first().map_or("", |scope| scope.as_str().unwrap())))
    });
    let tested: BTreeSet<_> = tested.filter(|(method, ..)| method != "head").collect();
    assert_eq!(tested, documented.collect::<BTreeSet<_>>());
}

/// Owner, ids and header field of a request.
struct Target<'a> {
    owner: &'a str,
    is_present: bool,
    /// Id of a token of the owner.
    token: i64,
    /// Value of the header field, if the operation has one.
    value: &'a str,
}

fn call(client: &Client, operation: &str, target: &Target, expected: i64) -> Response {
    let mut words = operation.split(' ');
    let [method, path, field] = std::array::from_fn(|_| words.next().unwrap_or_default());
    let plant = if target.is_present { PRESENT } else { ABSENT };
    let id = if path.starts_with("/tokens") && target.is_present { target.token } else { plant };
    let user = if target.is_present { "witness" } else { "absent" };
    let filled = path.replace("{id}", &id.to_string()).replace("{user}", user).replace("{owner}", target.owner);
    let body = match (method, path) {
        ("GET" | "HEAD" | "DELETE", _) | (_, "/shares/received/{owner}") => None,
        (_, "/tokens") => Some(json!({"scopes": ["tokens:manage"]})),
        (_, "/shares/{user}") => Some(json!({"role": "reader"})),
        _ => Some(json!({"id": plant, "name": "changed"})),
    };
    let headers = [JSON, (field, target.value)];
    let headers = &headers[usize::from(body.is_none())..if field.is_empty() { 1 } else { 2 }];
    let mut connection = client.connect();
    connection.send(client.bytes(method, &filled, headers, body.map(|body| body.to_string().into_bytes()).as_deref()));
    if !path.starts_with("/events") || expected >= 400 {
        return connection.read_response(method == "HEAD");
    }
    // An event stream does not end.
    let mut response = connection.read_head();
    response.body = connection.read_chunk().unwrap();
    connection.stream().shutdown(Shutdown::Write).unwrap();
    wait_until("the end of the stream", || connection.read(&mut [0; 1_024]).unwrap_or(0) == 0);
    response
}

/// Sets up the relation of a user to `ada`, after whatever it was.
fn relate(ada: &Client, user: &Client, name: &str, steps: &str) {
    ada.call("DELETE", &format!("/shares/{name}"), &[], None);
    for step in steps.split_whitespace() {
        let (client, method, path, role) = match step {
            "accept" => (user, "PUT", "/shares/received/ada", None),
            "leave" => (user, "DELETE", "/shares/received/ada", None),
            "revoke" => (ada, "DELETE", &*format!("/shares/{name}"), None),
            "give" => (user, "PUT", "/shares/ada", Some("editor")),
            role => (ada, "PUT", &*format!("/shares/{name}"), Some(role)),
        };
        let body = role.map(|role| json!({ "role": role }).to_string().into_bytes());
        assert_eq!(client.call(method, path, &[JSON], body.as_deref()).status, 204, "{name}: {step}");
    }
    if steps.contains("give") {
        assert_eq!(ada.call("PUT", &format!("/shares/received/{name}"), &[], None).status, 204);
    }
}

fn shows(response: &Response, secret: &str) -> bool {
    response.text().contains(secret) || response.headers.iter().any(|(_, value)| value.contains(secret))
}

/// Restores the plants of `ada`, and deletes those of another user.
fn restore_plants(ada: &Client, user: &Client) {
    let body = json!({"id": PRESENT, "name": NAME, "tag": TAG}).to_string();
    if ada.put(PRESENT, &body).status == 404 {
        assert_eq!(ada.post(&body).status, 200);
    }
    ada.delete(ABSENT);
    if user.token != ada.token {
        for id in [PRESENT, ABSENT] {
            user.delete(id);
        }
    }
}

engine_test!(every_caller_gets_what_role_and_scopes_allow, |Service { store, server }: &Service| {
    let ada = manager(store, server, "ada");
    store.token("witness", &[]);
    restore_plants(&ada, &ada);
    let victim = || created(&ada, &json!({"scopes": ["plants:read"]})).0;
    let mut token = victim();
    let mut found_secrets = 0;
    for (name, steps, role) in RELATIONS {
        let user = if name == "ada" { ada.clone() } else { manager(store, server, name) };
        if role == Some(name) {
            store.share("ada", name, name);
        } else {
            relate(&ada, &user, name, steps);
        }
        let has_share = name.starts_with("offered") || role.is_some_and(|role| role != "owner");
        for scopes in SCOPES {
            let (_, caller) = created(&user, &json!({"scopes": scopes.split(',').collect::<Vec<_>>()}));
            for (operation, needed, if_present, if_absent) in OPERATIONS {
                let has_scope = needed.is_empty() || scopes.split(',').any(|scope| scope == needed);
                let reads = operation.starts_with("GET") || operation.starts_with("HEAD");
                let (is_named, is_offer) = (operation.contains("{owner}"), operation.contains("/received/"));
                let is_foreign = if is_offer { !has_share } else { !is_named && name != "ada" };
                let list = if operation.starts_with("GET /plants ") { "/plants" } else { "/plants?owner=ada" };
                let tag = ada.get(list).header("etag").unwrap().to_owned();
                let mut rejections = Vec::new();
                for (is_present, success) in [(true, if_present), (false, if_absent)] {
                    let about = format!("{name} with {scopes}: {operation}, present: {is_present}");
                    let expected = match role {
                        _ if !has_scope => 40300,
                        _ if is_foreign => if_absent,
                        _ if is_offer || !is_named => success,
                        None => 40400,
                        Some("reader") if !reads => 40300,
                        Some(_) => success,
                    };
                    let owner = if is_offer && !is_present { "abe" } else { "ada" };
                    let mut target = Target { owner, is_present, token, value: "unknown" };
                    if operation.ends_with("If-None-Match") && is_present {
                        target.value = &tag;
                    } else if operation.ends_with("Idempotency-Key") {
                        target.value = &about;
                        if name != "ada" {
                            // Another user has used the key for the same request.
                            call(&ada, operation, &target, 200);
                            restore_plants(&ada, &ada);
                        }
                    }
                    let response = call(&caller, operation, &target, expected);
                    let found = match response.status.into() {
                        status if status < 400 => status,
                        status if operation.starts_with("HEAD") => status * 100,
                        _ => response.error(),
                    };
                    assert_eq!(found, expected, "{about}: {}", response.wire());
                    assert_eq!(response.header("idempotency-replayed"), None, "{about}");
                    let secrets = [NAME, TAG, tag.trim_matches(['W', '/', '"'])];
                    let has_secret = secrets.iter().any(|secret| shows(&response, secret));
                    assert!(!has_secret || role.is_some() && expected < 400, "{about}: {}", response.wire());
                    found_secrets += usize::from(has_secret);
                    if expected >= 400 {
                        rejections.push(response.wire());
                        if is_named && owner == "ada" && (role.is_none() || !has_scope) {
                            target.owner = "abe";
                            rejections.push(call(&caller, operation, &target, expected).wire());
                        }
                    } else if !reads {
                        restore_plants(&ada, &user);
                        if is_offer {
                            relate(&ada, &user, name, steps);
                        } else if operation.contains("/tokens/") {
                            token = victim();
                        }
                    }
                }
                rejections.dedup();
                assert!(rejections.len() < 2, "{name} with {scopes}: {operation}: {rejections:#?}");
            }
        }
    }
    assert_eq!(ada.ids(), [PRESENT]);
    assert!(found_secrets > 100, "the search for the name, the tag and the entity tag finds them");
});

/// Requests of each kind that are compared.
const COMPARED: usize = 41;
/// System calls for files and connections. Wake-ups of threads and the log use others.
const CALLS: &str = "trace=pread64,pwrite64,fdatasync,writev,recvfrom,sendto,recvmsg,sendmsg";

/// Returns the responses to requests for these paths, which are sent in turn, and the minimum number of bytes that the server sends, to
/// the database, too, and reads from or writes to files for each: what it does besides, at any time, only adds to it. How many calls
/// that takes depends on the moment.
fn compare(garden: &Garden, client: &Client, method: &str, paths: [&str; 2]) -> [(Response, usize); 2] {
    let body = match method {
        "POST" => Some(&br#"{"id":1,"name":"Rose"}"#[..]),
        "PUT" if paths[0].starts_with("/plants") => Some(&br#"{"name":"Rose"}"#[..]),
        _ => None,
    };
    let mut connection = client.connect();
    let mut ask = |path: &str| connection.ask(client.bytes(method, path, &[JSON], body));
    let file = garden.store.directory().join("calls");
    let strace = FaultInjector::attach(&garden.server, &["-s64", "-e", CALLS, "-o", file.to_str().unwrap()]);
    let responses = paths.map(&mut ask);
    for _ in 0..COMPARED {
        for (path, response) in paths.iter().zip(&responses) {
            assert_eq!(ask(path).wire(), response.wire());
        }
    }
    drop(strace);
    let calls = std::fs::read_to_string(&file).unwrap();
    // A part begins when a request is received.
    let beginnings = paths.map(|path| format!("\"{method} {path} "));
    let mut parts = [vec![], vec![]];
    let mut current = None;
    for line in calls.lines().filter(|line| !line.contains("EAGAIN")) {
        if let Some(kind) = beginnings.iter().position(|beginning| line.contains(beginning)) {
            parts[kind].push(0);
            current = Some(kind);
        }
        // What is received late may be counted for the next request.
        let result = line.rsplit_once("= ").filter(|_| !line.contains(" recv"));
        if let (Some(bytes), Some((_, result))) = (current.and_then(|kind| parts[kind].last_mut()), result) {
            *bytes += result.parse().unwrap_or(0);
        }
    }
    let mut responses = responses.into_iter();
    parts.map(|counts| {
        assert!(counts.len() >= COMPARED, "{} requests were seen", counts.len());
        (responses.next().unwrap(), counts.into_iter().min().unwrap())
    })
}

engine_tool_test!(foreign_and_unknown_ids_cost_the_same, requires_strace, |garden: &Garden| {
    garden.ada.plant(PRESENT, NAME);
    let bob = manager(&garden.store, &garden.server, "bob");
    for (method, paths, code) in [
        ("GET", ["/plants/1", "/plants/2"], 40400),
        ("PUT", ["/plants/1", "/plants/2"], 40400),
        ("DELETE", ["/plants/1", "/plants/2"], 40400),
        ("GET", ["/plants/1?owner=ada", "/plants/1?owner=abe"], 40400),
        ("PUT", ["/plants/1?owner=ada", "/plants/1?owner=abe"], 40400),
        ("DELETE", ["/plants/1?owner=ada", "/plants/1?owner=abe"], 40400),
        ("GET", ["/plants?owner=ada", "/plants?owner=abe"], 40400),
        ("POST", ["/plants?owner=ada", "/plants?owner=abe"], 40400),
        ("DELETE", ["/tokens/1", "/tokens/3"], 40402),
        ("PUT", ["/shares/received/ada", "/shares/received/abe"], 40403),
        ("DELETE", ["/shares/received/ada", "/shares/received/abe"], 40403),
    ] {
        let [(foreign, mut its_bytes), (unknown, mut bytes)] = compare(garden, &bob, method, paths);
        // What the server does besides may have added to all requests for one path.
        for _ in 0..4 {
            if its_bytes != bytes {
                let [(_, again), (_, its_again)] = compare(garden, &bob, method, [paths[1], paths[0]]);
                (its_bytes, bytes) = (its_bytes.min(its_again), bytes.min(again));
            }
        }
        assert_eq!(foreign.error(), code, "{method} {paths:?}");
        assert_eq!((foreign.wire(), its_bytes), (unknown.wire(), bytes), "{method} {paths:?}");
    }
    assert_eq!(garden.ada.ids(), [PRESENT]);
    // The control: an own plant is written.
    bob.plant(PRESENT, NAME);
    let [(_, its_bytes), (_, bytes)] = compare(garden, &bob, "PUT", ["/plants/1", "/plants/1?owner=abe"]);
    assert!(its_bytes > bytes, "{its_bytes} bytes for a plant, {bytes} for none");
});

/// Returns true if something contains a secret, as it is or in hexadecimal.
pub(crate) fn holds(written: &[u8], secret: &str) -> bool {
    let hexadecimal = secret.bytes().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let holds = |text: &str| written.windows(text.len()).any(|window| window == text.as_bytes());
    holds(secret) || holds(&hexadecimal)
}

/// Returns the secret part of the token of a client, or the signature of a JWT.
pub(crate) fn secret_of(client: &Client) -> &str {
    let token = client.token.as_ref().unwrap();
    token.rsplit_once('.').map_or_else(|| &token[4..36], |(_, signature)| signature)
}

// Everything that a client may send in a place where it does not belong is a canary, too.
engine_test!(secrets_are_written_nowhere, |store: &Store| {
    const CANARY: &str = "canary-7f3a";
    let (key, other_key) = (SigningKey::p256("e"), SigningKey::p256("e"));
    let issuer = Issuer::start(&[&key]);
    let options = ["--log-level", "trace", "--metrics-listen", "0"];
    let server = store.serve(&[&options[..], &issuer.options()].concat());
    let metrics = server.metrics();
    let ada = manager(store, &server, "ada");
    let (_, other) = created(&ada, &json!({"label": "window"}));
    let [jim, forged] = [&key, &other_key].map(|key| server.client(&key.token(&issuer.claims("jim"))));
    let (id, revoked) = created(&ada, &json!({}));
    assert_eq!(revoke(&ada, id).status, 204);
    let clients = [&ada, &other, &jim, &forged, &revoked];
    let mut responses = Vec::new();
    let body = json!({"id": PRESENT, "name": NAME}).to_string();
    for client in clients {
        let (token, bearer) = (client.token.as_ref().unwrap(), format!("Bearer {}", client.token.as_ref().unwrap()));
        responses.push(client.call("POST", "/plants", &[JSON, ("Idempotency-Key", CANARY)], Some(body.as_bytes())));
        responses.push(client.get("/plants"));
        assert_eq!(Http2::open(client).get("/plants").status, responses.last().unwrap().status);
        for path in [&*format!("/plants?access_token={token}"), &format!("/{token}"), &format!("/plants/{token}")] {
            responses.push(ada.get(path));
        }
        responses.push(ada.call("POST", "/tokens", &[JSON], Some(json!({"expires_at": token}).to_string().as_bytes())));
        ada.call("GET", "/me", &[("X-Request-Id", token)], None);
        let twice = [("Authorization", &*bearer), ("Authorization", &*bearer)];
        responses.push(server.anonymous().call("GET", "/plants", &twice, None));
        let mut malformed = client.connect();
        responses.push(malformed.ask(format!("{CANARY} / HTTP/9\r\nAuthorization: {bearer}\r\n\r\n")));
    }
    assert_eq!(responses.iter().filter(|response| response.status == 200).count(), 11);
    let jwt = format!("eyJhbGciOiJFUzI1NiJ9.{CANARY}.{CANARY}");
    for value in [&*format!("Bearer {CANARY}"), &format!("Bearer {jwt}"), &format!("Basic {CANARY}"), CANARY] {
        responses.push(server.anonymous().call("GET", "/plants", &[("Authorization", value)], None));
    }
    for name in ["Idempotency-Key", "If-None-Match", "User-Agent", "Cookie", "X-Forwarded-For", "traceparent"] {
        let body = format!(r#"{{"id":"{CANARY}"}}"#);
        responses.push(ada.call("POST", "/plants", &[JSON, (name, CANARY)], Some(body.as_bytes())));
    }
    responses.push(ada.get(&format!("/plants?tag={CANARY}")));
    ada.call("GET", "/me", &[("X-Request-Id", NAME)], None);
    let scrape = metrics.scrape().text;
    server.stop();
    assert!(server.log().contains("\"DEBUG\""), "the program logs nothing below this level");
    let stored = store.contents();
    let [copy, file] = ["copy.db", "backup.db"].map(|name| store.directory().join(name));
    let copied = store.run(&["copy", "--from", &store.url(), "--to", &format!("sqlite:{}", copy.display())]);
    let commands = [copied, store.run(&["backup", "backup.db"]), store.run(&["export"]), store.run(&["token", "list"])];
    let printed = commands.each_ref().map(|output| [output.success(), output.stderr_text()].concat()).concat();
    let responses =
        responses.iter().map(|response| [format!("{:?}", response.headers), response.text().to_owned()].concat());
    let responses = responses.collect::<Vec<_>>().concat();
    let written = [
        ("the log", server.log().into_bytes()),
        ("responses", responses.into_bytes()),
        ("the store", stored),
        ("a copy", std::fs::read(copy).unwrap()),
        ("a backup", std::fs::read(file).unwrap()),
        ("the output of commands", printed.into_bytes()),
        ("metrics", [scrape, NAME.to_owned()].concat().into_bytes()),
    ];
    let url = store.url();
    let password = url.strip_prefix("postgres://").and_then(|rest| rest.split([':', '@']).nth(1));
    for (place, written) in written {
        assert!(holds(&written, NAME), "the search finds the name in {place}");
        for secret in clients.map(secret_of).into_iter().chain([CANARY]).chain(password) {
            assert!(!holds(&written, secret), "{secret} is in {place}:\n{}", String::from_utf8_lossy(&written));
        }
    }
});

// Its memory holds tokens, in the buffers of connections at least.
sqlite_test!(crash_leaves_no_core_file, |store: &Store| {
    let unlimited = ["sh", "-c", "ulimit -c $(ulimit -H -c); exec \"$@\"", "sh"];
    let server = store.serve_through(&unlimited, &[]);
    assert_eq!(server.client(&store.token("ada", &[])).get("/plants").status, 200);
    server.signal("ABRT");
    let ended = server.wait();
    assert_eq!((ended.signal(), ended.core_dumped()), (Some(6), false));
});
