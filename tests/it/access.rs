//! Access of every kind of caller to the plants of another user, with every set of scopes: generated, and compared with the rule.
//! Rejections show nothing, not by their work either, and secrets are written nowhere.

use std::os::unix::process::ExitStatusExt as _;

use crate::support::http2::Http2;
use crate::support::{
    Client, FaultInjector, Garden, JSON, Response, Service, Store, engine_test, engine_tool_test, sqlite_test,
    wait_until,
};

/// Relation of a caller to the owner of the plants.
const RELATIONS: [(&str, Option<&str>); 6] = [
    ("stranger", None),
    ("offered-reader", None),
    ("offered-editor", None),
    ("reader", Some("reader")),
    ("editor", Some("editor")),
    ("ada", Some("owner")),
];
const SCOPES: [&str; 8] = [
    "plants:read",
    "plants:write",
    "plants:delete",
    "plants:read,plants:write",
    "plants:write,plants:delete",
    "plants:read,plants:write,plants:delete",
    "tokens:manage,shares:manage",
    "plants:read,plants:write,plants:delete,tokens:manage,shares:manage",
];
/// Id of a plant of the owner, and an id of none.
const PRESENT: i64 = 1;
const ABSENT: i64 = 2;

/// Operations on a collection: the scope that they need, and the status or error code for a present and an absent plant.
const OPERATIONS: [(&str, &str, i64, i64); 5] = [
    ("list", "plants:read", 200, 200),
    ("GET", "plants:read", 200, 40400),
    ("POST", "plants:write", 40900, 200),
    ("PUT", "plants:write", 200, 40400),
    ("DELETE", "plants:delete", 204, 40400),
];

fn call(client: &Client, operation: &str, owner: &str, id: i64) -> Response {
    let body = format!(r#"{{"id":{id},"name":"changed"}}"#);
    let path = format!("/plants/{id}?owner={owner}");
    match operation {
        "list" => client.get(&format!("/plants?owner={owner}")),
        "POST" => client.call("POST", &format!("/plants?owner={owner}"), &[JSON], Some(body.as_bytes())),
        "PUT" => client.call("PUT", &path, &[JSON], Some(body.as_bytes())),
        method => client.call(method, &path, &[], None),
    }
}

engine_test!(every_caller_gets_what_role_and_scopes_allow, |Service { store, server }: &Service| {
    let ada = server.client(&store.token("ada", &["--scope", SCOPES[7]]));
    ada.plant(PRESENT, "a name that only readers see");
    for (user, role) in RELATIONS {
        store.token(user, &[]);
        if let Some(role) = role.filter(|role| *role != "owner") {
            store.share("ada", user, role);
        }
        if let Some(role) = user.strip_prefix("offered-") {
            let body = format!(r#"{{"role":"{role}"}}"#);
            assert_eq!(ada.call("PUT", &format!("/shares/{user}"), &[JSON], Some(body.as_bytes())).status, 204);
        }
    }
    for (user, role) in RELATIONS {
        for scopes in SCOPES {
            let caller = server.client(&store.token(user, &["--scope", scopes]));
            for (operation, needed, if_present, if_absent) in OPERATIONS {
                for (id, success) in [(PRESENT, if_present), (ABSENT, if_absent)] {
                    let about = format!("{user} with {scopes}: {operation} {id}");
                    let changes = !["list", "GET"].contains(&operation);
                    let expected = match role {
                        _ if !scopes.split(',').any(|scope| scope == needed) => 40300,
                        None => 40400,
                        Some("reader") if changes => 40300,
                        Some(_) => success,
                    };
                    let response = call(&caller, operation, "ada", id);
                    let found = if response.status < 300 { response.status.into() } else { response.error() };
                    assert_eq!(found, expected, "{about}: {}", response.text());
                    if expected == 40300 || role.is_none() {
                        // The response shows neither the plant nor its owner.
                        let missing = call(&caller, operation, "abe", id);
                        let is_rejected_for_scope = !scopes.split(',').any(|scope| scope == needed);
                        if role.is_none() || is_rejected_for_scope {
                            assert_eq!(response.wire(), missing.wire(), "{about}");
                        }
                        assert!(!response.text().contains("only readers"), "{about}");
                    } else if changes && response.status < 300 {
                        ada.delete(ABSENT);
                        ada.post(format!(r#"{{"id":{PRESENT},"name":"a name that only readers see"}}"#));
                    }
                }
            }
            if role.is_none() && scopes.contains("plants:read") {
                assert_eq!(caller.get("/plants").text(), "[]", "{user}: an offer adds nothing to a list");
            }
        }
    }
    assert_eq!(ada.ids(), [PRESENT]);
});

/// Requests of each kind that are compared.
const COMPARED: usize = 41;
/// System calls for files and connections. Wake-ups of threads and the log use others.
const CALLS: &str = "trace=pread64,pwrite64,fdatasync,writev,recvfrom,sendto,recvmsg,sendmsg";

/// Returns the responses to requests for these paths, which are sent in turn, and the minimum number of system calls of each: what
/// the server does besides, at any time, only adds to it.
fn compare(garden: &Garden, client: &Client, method: &str, paths: [&str; 2]) -> [(Response, usize); 2] {
    let body = (method == "PUT").then_some(&br#"{"name":"Rose"}"#[..]);
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
        if let Some(count) = current.and_then(|kind| parts[kind].last_mut()) {
            *count += 1;
        }
    }
    let mut responses = responses.into_iter();
    parts.map(|counts| {
        assert!(counts.len() >= COMPARED, "{} requests were seen", counts.len());
        (responses.next().unwrap(), counts.into_iter().min().unwrap())
    })
}

engine_tool_test!(foreign_plants_and_unknown_ids_cost_the_same, requires_strace, |garden: &Garden| {
    garden.ada.plant(PRESENT, "a name that only readers see");
    let bob = garden.server.client(&garden.store.token("bob", &[]));
    let [present, absent] = [PRESENT, ABSENT].map(|id| format!("/plants/{id}"));
    let [of_ada, of_none] = ["ada", "abe"].map(|owner| format!("/plants/1?owner={owner}"));
    for method in ["GET", "PUT", "DELETE"] {
        for paths in [[&*present, &*absent], [&*of_ada, &*of_none]] {
            let [(foreign, its_calls), (unknown, calls)] = compare(garden, &bob, method, paths);
            assert_eq!(foreign.error(), 40400, "{method} {paths:?}");
            assert_eq!((foreign.wire(), its_calls), (unknown.wire(), calls), "{method} {paths:?}");
        }
    }
    assert_eq!(garden.ada.ids(), [PRESENT]);
});

// Everything that a client may send in a place where it does not belong is a canary, too.
engine_test!(no_secret_is_written_at_trace_level, |store: &Store| {
    const CANARY: &str = "canary-7f3a";
    let server = store.serve(&["--log-level", "trace", "--metrics-listen", "0"]);
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &["--scope", SCOPES[7]]));
    let created = ada.call("POST", "/tokens", &[JSON], Some(br#"{"label":"window"}"#)).json();
    let other = server.client(created["secret"].as_str().unwrap());
    let unknown = format!("pst_{}{}", "x".repeat(32), "0".repeat(6));
    let bearer = format!("Bearer {}", other.token.as_ref().unwrap());
    ada.plant(PRESENT, CANARY);
    for client in [&ada, &other] {
        assert_eq!(Http2::open(client).get("/plants").status, 200);
    }
    let jwt = format!("eyJhbGciOiJFUzI1NiJ9.{CANARY}.{CANARY}");
    for value in
        [&*format!("Bearer {CANARY}"), &*format!("Bearer {jwt}"), &*format!("Basic {CANARY}"), &unknown, CANARY]
    {
        server.anonymous().call("GET", "/plants", &[("Authorization", value)], None);
    }
    let token = ada.token.as_ref().unwrap();
    for path in [
        format!("/plants?access_token={token}"),
        format!("/{token}"),
        format!("/plants/{token}"),
        format!("/plants?tag={CANARY}"),
    ] {
        ada.get(&path);
    }
    for name in
        ["X-Request-Id", "Idempotency-Key", "If-None-Match", "User-Agent", "Cookie", "X-Forwarded-For", "traceparent"]
    {
        let value = if name == "X-Request-Id" { token } else { CANARY };
        ada.call("POST", "/plants", &[JSON, (name, value)], Some(format!(r#"{{"id":"{CANARY}"}}"#).as_bytes()));
    }
    server.anonymous().call("GET", "/plants", &[("Authorization", &bearer), ("Authorization", &bearer)], None);
    let mut malformed = ada.connect();
    malformed.send(format!("{CANARY} / HTTP/9\r\nAuthorization: {bearer}\r\n\r\n"));
    wait_until("the server to disconnect", || malformed.read(&mut [0; 1_024]).unwrap_or(0) == 0);
    let scrape = metrics.scrape().text;
    server.stop();
    let written = [server.log(), scrape].concat();
    assert!(server.log().contains("\"TRACE\"") || server.log().contains("\"DEBUG\""), "the log has all levels");
    let secrets = [&ada, &other].map(|client| client.token.clone().unwrap());
    for secret in secrets.iter().map(|token| &token[4..36]).chain([CANARY, &unknown[4..36]]) {
        assert!(!written.contains(secret), "{secret} is in\n{written}");
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
