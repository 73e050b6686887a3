//! Tokens that users create and revoke themselves.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::http2::{CANCEL, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, RST_STREAM, head};
use crate::support::{
    Client, Engine, JSON, Response, Server, Service, Stopwatch, Store, TIMEOUT, assert_contains, assert_snapshot,
    engine_test, retry_while_unavailable, wait_for, wait_until,
};

pub(crate) const ALL_SCOPES: &str = "plants:read,plants:write,plants:delete,tokens:manage,shares:manage";
/// Longest time until a revocation takes effect on every node: 5 seconds are documented, and a busy machine gets more.
pub(crate) const EFFECT_LIMIT: Duration = Duration::from_secs(20);

/// Counts the transactions in PostgreSQL that wait for the lock of a token.
const WAITING_FOR_TOKEN: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                                 AND wait_event_type = 'Lock' AND query LIKE '%INSERT INTO tokens%'";

/// A client whose token has all scopes.
pub(crate) fn manager(store: &Store, server: &Server, user: &str) -> Client {
    server.client(&store.token(user, &["--scope", ALL_SCOPES]))
}

#[track_caller]
pub(crate) fn create(client: &Client, body: &Value) -> Response {
    client.call("POST", "/tokens", &[JSON], Some(body.to_string().as_bytes()))
}

/// Creates a token and returns its id and a client with it.
#[track_caller]
pub(crate) fn created(client: &Client, body: &Value) -> (i64, Client) {
    let response = create(client, body);
    assert_eq!(response.status, 201, "{}", response.wire());
    let token = response.json();
    let secret = token["secret"].as_str().expect("a secret").to_owned();
    (token["id"].as_i64().expect("an id"), Client { address: client.address, token: Some(secret) })
}

#[track_caller]
pub(crate) fn revoke(client: &Client, id: impl std::fmt::Display) -> Response {
    client.call("DELETE", &format!("/tokens/{id}"), &[], None)
}

/// Executes eight calls of one user concurrently, on two nodes, and returns their statuses. A call that finds no place among the
/// changes in flight is repeated.
pub(crate) fn statuses_of_eight(
    user: &Client,
    nodes: [&Server; 2],
    call: impl Fn(&Client, usize) -> Response + Sync,
) -> Vec<u16> {
    std::thread::scope(|scope| {
        let call = &call;
        let calls = [0, 1, 2, 3, 4, 5, 6, 7].map(|number| {
            let client = Client { address: nodes[number % 2].address(), token: user.token.clone() };
            scope.spawn(move || retry_while_unavailable(|| call(&client, number)).status)
        });
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    })
}

/// Replaces values that differ from run to run.
fn masked(mut token: Value) -> Value {
    for (field, value) in token.as_object_mut().expect("an object") {
        let shown = match (field.as_str(), value.as_str()) {
            ("created_at" | "expires_at" | "last_used_at", Some(text)) => {
                assert!(text.len() == 20 && text.ends_with('Z'), "{text}");
                "(a time)"
            }
            ("secret", Some(text)) if text.len() == 42 && text.starts_with("pst_") => "(a secret)",
            _ => continue,
        };
        *value = shown.into();
    }
    token
}

engine_test!(me_shows_the_user_and_the_token, |Service { store, server }: &Service| {
    let ada =
        server.client(&store.token("ada", &["--label", "balcony", "--scope", "plants:write", "--expires", "never"]));
    let me = ada.get("/me");
    assert_eq!(
        me.text(),
        r#"{"user":"ada","token":{"id":1,"label":"balcony","scopes":["plants:write"],"expires_at":null}}"#
    );
    assert_eq!((me.status, me.header("cache-control")), (200, Some("no-store")));
    let head = ada.call("HEAD", "/me", &[], None);
    assert_eq!((head.status, head.header("content-length")), (200, me.header("content-length")));
    assert_eq!(server.anonymous().get("/me").error(), 40100);
    assert_eq!(ada.call("POST", "/me", &[], None).error(), 40500);
});

engine_test!(user_creates_lists_and_revokes_tokens, |Service { store, server }: &Service| {
    let ada = manager(store, server, "ada");
    let response = create(&ada, &json!({"label": "balcony", "scopes": ["plants:read"]}));
    assert_eq!((response.status, response.header("location")), (201, Some("/tokens/2")));
    assert_eq!(response.header("cache-control"), Some("no-store"));
    assert_eq!(
        masked(response.json()),
        json!({
            "id": 2, "label": "balcony", "scopes": ["plants:read"], "created_at": "(a time)", "expires_at": "(a time)",
            "last_used_at": null, "state": "active", "current": false, "secret": "(a secret)",
        })
    );
    let secret = response.json()["secret"].as_str().expect("a secret").to_owned();
    let reader = Client { address: ada.address, token: Some(secret.clone()) };
    assert_eq!(reader.get("/plants").text(), "[]");
    assert_eq!(reader.post(r#"{"id":1,"name":"Rose"}"#).error(), 40300);
    assert_eq!(reader.get("/tokens").error(), 40300);
    let listed = ada.get("/tokens");
    assert_eq!(listed.header("cache-control"), Some("no-store"));
    assert!(!listed.text().contains("pst_"), "{}", listed.text());
    let tokens = listed.json();
    assert_eq!(tokens.as_array().map(Vec::len), Some(2));
    assert_eq!((&tokens[0]["id"], &tokens[0]["current"]), (&json!(1), &json!(true)));
    assert_eq!((&tokens[1]["label"], &tokens[1]["current"]), (&json!("balcony"), &json!(false)));

    // The node that handles the revocation rejects the token at once.
    assert_eq!(revoke(&ada, 2).status, 204);
    assert_eq!(reader.get("/plants").error(), 40101);
    assert_eq!(ada.get("/tokens").json()[1]["state"], "revoked");
    // The current token, too.
    assert_eq!(revoke(&ada, 1).status, 204);
    assert_eq!(ada.get("/me").error(), 40101);
    store.token("gardener", &["--label", "first token"]);
    let table = String::from_utf8(store.run(&["token", "list"]).stdout).expect("text");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert_contains(&table, "by token 1");
});

engine_test!(last_use_is_never_before_the_creation, |Service { store, server }: &Service| {
    let ada = manager(store, server, "ada");
    let token = wait_for("the last use", || {
        let token = ada.get("/tokens").json()[0].clone();
        (!token["last_used_at"].is_null()).then_some(token)
    });
    let [created, used] = ["created_at", "last_used_at"].map(|field| token[field].as_str().unwrap().to_owned());
    assert!(created <= used, "{token}");
});

engine_test!(unknown_foreign_and_revoked_tokens_are_the_same_404, |Service { store, server }: &Service| {
    let (ada, bob) = (manager(store, server, "ada"), manager(store, server, "bob"));
    let (id, _) = created(&ada, &json!({}));
    assert_eq!(revoke(&ada, id).status, 204);
    let responses = [revoke(&ada, id), revoke(&ada, 99), revoke(&ada, i64::MIN), revoke(&ada, 2)];
    for response in &responses {
        assert_eq!(response.wire(), responses[0].wire());
        assert_eq!(response.error(), 40402);
    }
    assert_eq!(bob.get("/me").status, 200, "a foreign token is untouched");
    assert_eq!(revoke(&ada, "x").error(), 40005);
    assert_eq!(revoke(&ada, "%ff").error(), 40005);
    assert_eq!(ada.get("/tokens/1").error(), 40500);
});

engine_test!(token_never_gives_more_than_it_has, |Service { store, server }: &Service| {
    let weak = server.client(&store.token("ada", &["--scope", "plants:read,tokens:manage", "--expires", "1h"]));
    let beyond = create(&weak, &json!({"scopes": ["plants:read", "plants:write", "shares:manage"]}));
    assert_eq!(beyond.error(), 40008);
    assert_snapshot!(beyond.message(), @"an access token can only give scopes that it has, and this one lacks: plants:write shares:manage");
    let own_expiry = weak.get("/me").json()["token"]["expires_at"].clone();
    let later = create(&weak, &json!({"expires_at": "2999-01-01T00:00:00Z"}));
    assert_eq!(later.error(), 40008);
    let token = create(&weak, &json!({})).json();
    assert_eq!((&token["scopes"], &token["expires_at"]), (&json!(["plants:read"]), &own_expiry));
    let token = create(&weak, &json!({"scopes": ["tokens:manage"], "expires_at": own_expiry})).json();
    assert_eq!(token["expires_at"], own_expiry);
    // A chain of tokens gains nothing.
    let (_, child) = created(&weak, &json!({"scopes": ["tokens:manage"]}));
    assert_eq!(create(&child, &json!({"scopes": ["plants:read"]})).error(), 40008);
    assert_eq!(create(&child, &json!({})).error(), 40008, "no scope to give by default");

    let endless = server.client(&store.token("eve", &["--scope", ALL_SCOPES, "--expires", "never"]));
    let token = create(&endless, &json!({})).json();
    assert_eq!(token["scopes"], json!(["plants:read", "plants:write", "plants:delete"]));
    let lifetime = |token: &Value| {
        let time = |field: &str| -> jiff::Timestamp { token[field].as_str().unwrap().parse().unwrap() };
        time("expires_at").duration_since(time("created_at")).as_hours()
    };
    assert_eq!(lifetime(&token), 90 * 24);
    for time in ["2999-01-01T00:00:00Z", "2999-01-31t12:00:00.25z", "2999-01-31T12:00:00-05:30"] {
        assert_eq!(create(&endless, &json!({"expires_at": time})).status, 201, "{time}");
    }
});

engine_test!(token_is_renewed_from_14_days_before_its_end, |Service { store, server }: &Service| {
    let with_expiry =
        |expires: &str| server.client(&store.token("ada", &["--scope", ALL_SCOPES, "--expires", expires]));
    let (ending, other) = (with_expiry("13d"), with_expiry("15d"));
    let early = create(&other, &json!({"renew": true}));
    assert_eq!(early.error(), 40008);
    assert!(early.message().starts_with("an access token can be renewed from 14 days before its end on"), "{early:?}");
    let weak = server.client(&store.token("ada", &["--scope", "plants:read,tokens:manage", "--expires", "1h"]));
    assert_eq!(create(&weak, &json!({"renew": true, "scopes": ["plants:write"]})).error(), 40008);
    assert_eq!(create(&ending, &json!({"renew": true, "expires_at": "2999-01-01T00:00:00Z"})).error(), 40008);
    assert_eq!(create(&ending, &json!({"renew": 1})).error(), 40002);

    let me = ending.get("/me").json();
    let [old, scopes] = ["id", "scopes"].map(|field| &me["token"][field]);
    let (_, renewed) = created(&ending, &json!({"renew": true, "label": "first token", "scopes": scopes}));
    let token = renewed.get("/me").json()["token"].clone();
    let expires: jiff::Timestamp = token["expires_at"].as_str().unwrap().parse().unwrap();
    assert_eq!(expires.duration_since(jiff::Timestamp::now()).as_hours(), 90 * 24 - 1);
    assert_eq!((&token["scopes"], &token["label"]), (scopes, &json!("first token")));
    assert_eq!(ending.get("/me").status, 200, "its owner revokes the old token when the new one is stored");
    assert_eq!(revoke(&renewed, old).status, 204);
});

engine_test!(body_of_a_token_request_is_validated, |Service { store, server }: &Service| {
    let ada = manager(store, server, "ada");
    let post = |body: &str| ada.call("POST", "/tokens", &[JSON], Some(body.as_bytes()));
    let long = format!(r#"{{"label":"{}"}}"#, "x".repeat(101));
    for (body, code) in [
        ("", 40000),
        ("{", 40000),
        ("[]", 40002),
        (r#"{"label":1}"#, 40002),
        (r#"{"label":"a","label":"a"}"#, 40002),
        (r#"{"x":1,"x":1}"#, 40002),
        (r#"{"label":"\u0000"}"#, 40003),
        (r#"{"label":"\ud800"}"#, 40003),
        (r#"{"label":"a\u202eb"}"#, 40003),
        (r#"{"label":"a\u200bb"}"#, 40003),
        (r#"{"label":"a\u2800"}"#, 40003),
        (r#"{"label":"a\u00a0b"}"#, 40003),
        (&long, 40003),
        (r#"{"scopes":[]}"#, 40002),
        (r#"{"scopes":"plants:read"}"#, 40002),
        (r#"{"scopes":["plants:read","plants:all"]}"#, 40002),
        (r#"{"scopes":[null]}"#, 40002),
        (r#"{"expires_at":1}"#, 40002),
        (r#"{"expires_at":"tomorrow"}"#, 40002),
        (r#"{"expires_at":"2020-01-01T00:00:00Z"}"#, 40002),
        (r#"{"expires_at":"2999-01-31"}"#, 40002),
        (r#"{"expires_at":"2999-01-31 12:00:00Z"}"#, 40002),
        (r#"{"expires_at":"2999-01-31T12:00:00"}"#, 40002),
        (r#"{"expires_at":"2999-13-31T12:00:00Z"}"#, 40002),
        (r#"{"expires_at":"2999-01-31T12:00:00.Z"}"#, 40002),
        (r#"{"label":1,"scopes":1,"expires_at":1}"#, 40002),
        (r#"{"scope":["plants:read"]}"#, 40007),
        (r#"{"label":"\u0000","scope":1}"#, 40003),
    ] {
        assert_eq!(post(body).error(), code, "{body}");
    }
    let all = post(r#"{"label":1,"scopes":1,"expires_at":1}"#).message();
    assert!(["`label`", "`scopes`", "`expires_at`"].iter().all(|field| all.contains(field)), "{all}");
    let unknown = post(r#"{"scope":["plants:read"]}"#).message();
    assert_snapshot!(unknown, @"`scope` is not known here: the fields are `label`, `scopes`, `expires_at`, `renew`");
    assert_eq!(ada.call("POST", "/tokens", &[], Some(b"{}")).error(), 41500);
    let large = format!(r#"{{"x":"{}"}}"#, "x".repeat(16 * 1024));
    assert_eq!(post(&large).error(), 41300);
    let key = [JSON, ("Idempotency-Key", "one")];
    assert_eq!(ada.call("POST", "/tokens", &key, Some(b"{}")).error(), 40007);
    assert_eq!(ada.get("/tokens").json().as_array().map(Vec::len), Some(1), "nothing was created");
    assert_eq!(post(r#"{"label":null,"scopes":null,"expires_at":null}"#).status, 201);
    assert_eq!(post(&format!(r#"{{"label":"{}"}}"#, "ü".repeat(100))).status, 201);
});

engine_test!(active_tokens_are_limited_under_concurrency, |Service { store, server }: &Service| {
    let other = store.serve(&[]);
    let ada = manager(store, server, "ada");
    store.execute(
        "WITH RECURSIVE numbers (n) AS (SELECT 10 UNION ALL SELECT n + 1 FROM numbers WHERE n < 105)
         INSERT INTO tokens (hash, user_id, label, scopes, created_at)
         SELECT CAST('0000000000000000000000000000' || (1000 + n) AS BLOB), 1, '', 'plants:read', 0 FROM numbers"
            .replace("AS BLOB", if matches!(store.engine, Engine::Sqlite) { "AS BLOB" } else { "AS bytea" })
            .as_str(),
    );
    let statuses = statuses_of_eight(&ada, [server, &other], |client, _| create(client, &json!({})));
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 3, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 409).count(), 5, "{statuses:?}");
    assert_eq!(create(&ada, &json!({})).error(), 40902);
    assert_eq!(revoke(&ada, 1).status, 204);
});

engine_test!(revoked_token_makes_no_more_tokens_on_any_node, |store: &Store| {
    let (server, other) = (store.serve(&[]), store.serve(&[]));
    let ada = manager(store, &server, "ada");
    let (id, leaked) = created(&ada, &json!({"scopes": ["plants:read", "tokens:manage"]}));
    let elsewhere = Client { address: other.address(), token: leaked.token.clone() };
    assert_eq!(elsewhere.get("/tokens").status, 200, "the other node has a session of it");
    assert_eq!(revoke(&ada, id).status, 204);
    let revoked = Stopwatch::start();
    assert_eq!(create(&elsewhere, &json!({})).error(), 40101);
    wait_until("the revocation on the other node", || elsewhere.get("/plants").status == 401);
    assert!(revoked.elapsed() < EFFECT_LIMIT, "{:?}", revoked.elapsed());
});

engine_test!(inactive_tokens_that_ended_first_are_deleted_beyond_a_limit, |store: &Store| {
    let server = store.serve(&[]);
    let ada = manager(store, &server, "ada");
    let (leaked, _) = created(&ada, &json!({}));
    let blob = if matches!(store.engine, Engine::Sqlite) { "BLOB" } else { "bytea" };
    store.execute(&format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 150)
         INSERT INTO tokens (hash, user_id, label, scopes, created_at, revoked_at)
         SELECT CAST('0000000000000000000000000000' || (1000 + n) AS {blob}), 1, '', 'plants:read', 0, 1 FROM numbers"
    ));
    assert_eq!(revoke(&ada, leaked).status, 204);
    assert_eq!(create(&ada, &json!({})).status, 201);
    let tokens = ada.get("/tokens").json();
    assert!(tokens.as_array().unwrap().iter().any(|token| token["id"] == leaked), "it was revoked last");
    let states: Vec<_> = tokens.as_array().unwrap().iter().map(|token| token["state"].as_str().unwrap()).collect();
    assert_eq!(states.iter().filter(|state| **state == "revoked").count(), 100);
    assert_eq!(states.iter().filter(|state| **state == "active").count(), 2);
});

/// Locks the tokens, so that changes of them wait.
pub(crate) fn hold_tokens(store: &Store) -> Box<dyn std::any::Any> {
    match store.engine {
        Engine::Sqlite => store.hold_writes(),
        Engine::Postgres => {
            Box::new(store.hold("BEGIN; LOCK TABLE plantstore.tokens, plantstore.shares_by_name IN EXCLUSIVE MODE"))
        }
    }
}

/// PostgreSQL shows when the change waits for the lock.
#[rstest]
#[case::requires_postgres()]
fn cancelled_change_is_recorded_before_the_server_ends() {
    let Service { store, server } = &Service::new(Engine::Postgres, &["--shutdown-grace", "60s"]);
    let ada = manager(store, server, "ada");
    let held = hold_tokens(store);
    let mut connection = Frames::open(server.address(), &[]);
    connection.send(HEADERS, END_HEADERS, 1, &head(&ada, "POST", "/tokens", &[JSON]));
    connection.send(DATA, END_STREAM, 1, b"{}");
    wait_until("the change to wait for the lock", || store.rows(WAITING_FOR_TOKEN) == [1]);
    connection.send(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
    server.wait_for_log(r#""complete":false"#);
    server.signal("TERM");
    server.wait_for_log("shutting down");
    // Longer than a server needs to end that does not wait for the change.
    let signalled = Instant::now();
    wait_until("three seconds", || signalled.elapsed().as_secs() >= 3);
    assert!(server.ended().is_none(), "{}", server.log());
    drop(held);
    server.wait();
    assert_eq!(store.rows("SELECT count(*) FROM tokens"), [2]);
    assert_eq!(server.log().matches("token created").count(), 1, "{}", server.log());
}

/// The other transaction holds the row of the user and waits for the lock of the user's changes, which the request has. The database
/// rolls the request back, because it looks for a deadlock 5 s after the request began to wait, and later for the other one.
#[rstest]
#[case::requires_postgres()]
fn change_is_retried_after_a_deadlock() {
    let Service { store, server } = &Service::new(Engine::Postgres, &[]);
    let ada = &manager(store, server, "ada");
    store.execute(
        "DO $do$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''5s''', current_database()); END $do$",
    );
    let mut other = store
        .hold("BEGIN; SET LOCAL deadlock_timeout = '50s'; SELECT 1 FROM plantstore.users WHERE user_id = 1 FOR UPDATE");
    let response = std::thread::scope(|scope| {
        let creating = scope.spawn(|| create(ada, &json!({"label": "balcony"})));
        wait_until("the request to wait", || store.rows(WAITING_FOR_TOKEN) == [1]);
        other.send("SELECT pg_advisory_xact_lock(-5873301895286449354)");
        other.finish();
        creating.join().expect("a response")
    });
    assert_eq!(response.status, 201, "{}", response.text());
    assert_eq!(store.rows("SELECT count(*) FROM tokens"), [2]);
}

// Servers under test have a store timeout of a minute; administrative operations would give up after five seconds.
engine_test!(store_timeout_applies_to_requests_about_tokens_and_shares, |Service { store, server }: &Service| {
    // Two users, because those of one user might be executed one after the other.
    let [ada, bob] = ["ada", "bob"].map(|user| {
        let client = manager(store, server, user);
        assert_eq!(client.get("/me").status, 200);
        // Otherwise the request would wait for the writer, which stores the use.
        store.wait_for_stored_token_use();
        client
    });
    let held = hold_tokens(store);
    let (token, share) = (("POST", "/tokens", "{}"), ("PUT", "/shares/eve", r#"{"role":"reader"}"#));
    let mut waiting = [(&ada, token), (&bob, share)].map(|(client, (method, path, body))| {
        let mut connection = client.connect();
        connection.send(client.bytes(method, path, &[JSON], Some(body.as_bytes())));
        connection
    });
    // After the first read, both have waited for six seconds.
    for (connection, timeout) in waiting.iter_mut().zip([6_000, 1]) {
        connection.stream().set_read_timeout(Some(Duration::from_millis(timeout))).expect("a read timeout");
        assert!(connection.try_read_response(false).is_err(), "the request waits for the lock");
        connection.stream().set_read_timeout(Some(TIMEOUT)).expect("a read timeout");
    }
    drop(held);
    assert_eq!(waiting.each_mut().map(|connection| connection.read_response(false).status), [201, 204]);
});

engine_test!(every_change_is_one_line_of_the_log, |store: &Store| {
    let server = store.serve(&["--log-format", "json", "--log-level", "error"]);
    let ada = manager(store, &server, "ada");
    let with_id = |method: &str, path: &str, id: &str, body: Option<&[u8]>| {
        ada.call(method, path, &[JSON, ("X-Request-Id", id)], body).status
    };
    assert_eq!(with_id("POST", "/tokens", "r1", Some(b"{}")), 201);
    assert_eq!(with_id("DELETE", "/tokens/2", "r2", None), 204);
    assert_eq!(with_id("DELETE", "/tokens/2", "r3", None), 404);
    assert_eq!(with_id("PUT", "/shares/bob", "r4", Some(br#"{"role":"reader"}"#)), 204);
    assert_eq!(with_id("DELETE", "/shares/bob", "r5", None), 204);
    assert_eq!(with_id("DELETE", "/shares/bob", "r6", None), 404);
    store.execute(
        "INSERT INTO users (name, created_at) VALUES ('eve', 0);
         INSERT INTO shares_by_name (grantee_name, owner_id, role, created_at)
         SELECT 'ada', user_id, 'reader', 0 FROM users WHERE name = 'eve'",
    );
    assert_eq!(with_id("PUT", "/shares/received/eve", "r7", None), 204);
    assert_eq!(with_id("DELETE", "/shares/received/eve", "r8", None), 204);
    server.stop();
    let lines: Vec<Value> = server
        .log()
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .map(|line| line.get("fields").cloned().unwrap_or(line))
        .filter(|line| line["message"] != "request" && line.get("actor").is_some())
        .map(|line| {
            json!([line["message"], line["request_id"], line["actor"], line["token_id"], line["target"], line["role"]])
        })
        .collect();
    assert_eq!(
        lines,
        [
            json!(["token created", "r1", "ada", 1, 2, null]),
            json!(["token revoked", "r2", "ada", 1, 2, null]),
            json!(["share granted", "r4", "ada", 1, "bob", "reader"]),
            json!(["share revoked", "r5", "ada", 1, "bob", null]),
            json!(["share accepted", "r7", "ada", 1, "eve", null]),
            json!(["share declined", "r8", "ada", 1, "eve", null]),
        ]
    );
});
