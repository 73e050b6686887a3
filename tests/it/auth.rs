//! Authentication and scopes, and the absence of information leaks between users.

use crate::support::{
    Client, CommandOutput, Garden, Service, Store, assert_snapshot, engine_test, wait_for, wait_until,
};

/// Well-formed token that was never issued.
const UNKNOWN: &str = "pst_00000000000000000000000000000000";

fn unknown_token(number: usize) -> String {
    with_checksum(&format!("{}{number:08}", &UNKNOWN[..28]))
}

/// Adds the checksum that is part of the published format, because scanners for leaked tokens rely on it.
fn with_checksum(body: &str) -> String {
    let mut rest = crc32fast::hash(body.as_bytes());
    let mut check = Vec::new();
    for _ in 0..6 {
        check.push(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"[(rest % 62) as usize]);
        rest /= 62;
    }
    check.reverse();
    format!("{body}{}", std::str::from_utf8(&check).expect("ascii"))
}

/// Calls with this `Authorization` header.
fn with_header(client: &Client, value: &str) -> crate::support::Response {
    client.call("GET", "/plants", &[("Authorization", value)], None)
}

fn token_id(store: &Store, user: &str) -> String {
    let tokens = store.run(&["token", "list", "--json", "--user", user]).json();
    tokens[0]["id"].to_string()
}

engine_test!(missing_credentials_are_rejected_with_401, |Service { store, server }: &Service| {
    assert_snapshot!(server.anonymous().get("/plants").wire(), @r#"
    401 Unauthorized
    content-type: application/json
    cache-control: no-store
    www-authenticate: Bearer realm="plants"
    content-length: 82

    {"error":40100,"message":"send the header `Authorization: Bearer <ACCESS_TOKEN>`"}
    "#);
    for other in ["Basic YTpi", "Digest x", "pst_abc", "Bearer,x", "Bearerx y"] {
        assert_eq!(with_header(&server.anonymous(), other).error(), 40100, "{other}");
    }
    let token = store.token("ada", &[]);
    for path in [format!("/plants?access_token={token}"), format!("/plants?token={token}")] {
        assert_eq!(server.anonymous().get(&path).error(), 40100, "only the header counts");
    }
});

engine_test!(all_bad_credentials_get_the_same_response, |Service { store, server }: &Service| {
    let anonymous = server.anonymous();
    let good = store.token("ada", &[]);
    let revoked = store.token("bob", &[]);
    store.run(&["token", "revoke", &token_id(store, "bob")]).success();
    let expired = store.token("eve", &["--expires", "1ms"]);
    let response = with_header(&anonymous, "Bearer nonsense").wire();
    assert_snapshot!(response, @r#"
    401 Unauthorized
    content-type: application/json
    cache-control: no-store
    www-authenticate: Bearer realm="plants", error="invalid_token"
    content-length: 105

    {"error":40101,"message":"the access token is not valid: ask the operator of this service for a new one"}
    "#);
    let changed = format!("{}{}", &good[..41], if good.ends_with('a') { 'b' } else { 'a' });
    for bad in [
        "",
        " ",
        "x",
        &good[..41],
        &format!("{good}x"),
        &changed,
        &good.to_lowercase(),
        &good.to_uppercase(),
        &format!("{good} x"),
        &format!("{good},x"),
        &format!("\"{good}\""),
        &unknown_token(1),
        &revoked,
        &expired,
        "pst_",
        "pst_🌵",
        &"p".repeat(5_000),
    ] {
        assert_eq!(with_header(&anonymous, &format!("Bearer {bad}")).wire(), response, "{bad}");
    }
    assert_eq!(with_header(&anonymous, "Bearer").wire(), response);
});

engine_test!(scheme_is_case_insensitive, |Service { store, server }: &Service| {
    let token = store.token("ada", &[]);
    for scheme in ["Bearer", "bearer", "BEARER", "bEaReR", "Bearer  "] {
        assert_eq!(with_header(&server.anonymous(), &format!("{scheme} {token}")).status, 200, "{scheme}");
    }
});

engine_test!(more_than_one_authorization_header_is_rejected, |Service { store, server }: &Service| {
    let token = store.token("ada", &[]);
    let again = format!("Bearer {token}");
    assert_eq!(with_header(&server.client(&token), &again).error(), 40007);
    assert_eq!(with_header(&server.client(&token), "Basic x").error(), 40007);
});

engine_test!(each_operation_needs_its_scope, |Service { store, server }: &Service| {
    let body = Some(&br#"{"id":1,"name":"a"}"#[..]);
    let json = [("Content-Type", "application/json")];
    for (scope, allowed) in [("plants:read", 0), ("plants:write", 1), ("plants:delete", 2)] {
        let client = server.client(&store.token("ada", &["--scope", scope]));
        let responses = [client.get("/plants"), client.call("POST", "/plants", &json, body), client.delete(1)];
        for (operation, response) in responses.iter().enumerate() {
            if operation == allowed {
                assert!(response.status < 300, "{scope} allows {operation}: {}", response.text());
            } else {
                assert_eq!(response.error(), 40300, "{scope} does not allow {operation}");
                let needed = ["plants:read", "plants:write", "plants:delete"][operation];
                let expected = format!(r#"Bearer realm="plants", error="insufficient_scope", scope="{needed}""#);
                assert_eq!(response.header("www-authenticate"), Some(expected.as_str()));
            }
        }
    }
    let reader = server.client(&store.token("ada", &["--scope", "plants:read"]));
    assert_eq!(reader.call("HEAD", "/plants", &[], None).status, 200);
    // The scope is checked before the body.
    assert_eq!(reader.call("POST", "/plants", &[], Some(b"not even JSON")).error(), 40300);
    assert_eq!(reader.delete("not-an-id").error(), 40300, "the scope is checked before the path");
    assert_snapshot!(reader.delete(1).wire(), @r#"
    403 Forbidden
    content-type: application/json
    cache-control: no-store
    www-authenticate: Bearer realm="plants", error="insufficient_scope", scope="plants:delete"
    content-length: 97

    {"error":40300,"message":"the access token lacks the scope `plants:delete`: use one that has it"}
    "#);
    let two = server.client(&store.token("ada", &["--scope", "plants:read,plants:write"]));
    assert_eq!((two.get("/plants").status, two.post("{}").status, two.delete(1).status), (200, 400, 403));
});

engine_test!(every_path_gets_the_same_response_without_a_token, |Garden { server, ada, .. }: &Garden| {
    ada.plant(1, "Rose");
    let anonymous = server.anonymous();
    let expected = anonymous.get("/plants").wire();
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"] {
        for path in [
            "/plants",
            "/plants?limit=x",
            "/plants?after=x",
            "/plants/1",
            "/plants/2",
            "/plants/abc",
            "/plants/",
            "/plants/1/2",
            "/console/",
            "/nothing",
            "/openapi.json/x",
            "//plants",
            "/plants/..",
            "/%",
            "/plants/%ff",
        ] {
            assert_eq!(anonymous.call(method, path, &[], None).wire(), expected, "{method} {path}");
            let body = Some(&b"not even JSON"[..]);
            assert_eq!(anonymous.call(method, path, &[], body).wire(), expected, "{method} {path} with a body");
        }
    }
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(anonymous.call(method, "/livez", &[], None).wire(), expected);
        assert_eq!(anonymous.call(method, "/readyz", &[], None).wire(), expected);
        assert_eq!(anonymous.call(method, "/", &[], None).wire(), expected);
    }
    let huge = [("Content-Length", "5368709120")];
    // The token is checked before the size of the body.
    assert_eq!(anonymous.call("POST", "/plants", &huge, None).error(), 40100);
});

engine_test!(users_neither_see_nor_block_nor_detect_each_others_plants, |Service { store, server }: &Service| {
    let users: Vec<Client> = ["ada", "bob", "eve"].map(|name| server.client(&store.token(name, &[]))).into();
    for (number, user) in users.iter().enumerate() {
        for id in 0..4 {
            user.plant(id, &format!("{number}-{id}"));
        }
    }
    for (number, user) in users.iter().enumerate() {
        let expected: Vec<String> = (0..4).map(|id| format!(r#"{{"name":"{number}-{id}"}}"#)).collect();
        assert_eq!(user.get("/plants").text(), format!("[{}]", expected.join(",")));
    }
    assert_eq!(users[0].delete(2).status, 204);
    assert_eq!(users[0].ids(), [0, 1, 3]);
    assert_eq!((users[1].ids().len(), users[2].ids().len()), (4, 4));
    let unknown = users[0].delete(999).wire();
    assert_eq!(users[0].delete(2).wire(), unknown, "the response does not reveal that other users have this id");
});

engine_test!(two_tokens_of_one_user_see_the_same_plants, |Service { store, server }: &Service| {
    let [one, other] = [0, 1].map(|_| server.client(&store.token("ada", &[])));
    one.plant(1, "Rose");
    assert_eq!(other.ids(), [1]);
    assert_eq!(other.post(r#"{"id":1,"name":"x"}"#).error(), 40900);
    assert_eq!(other.delete(1).status, 204);
    assert_eq!(one.ids(), [0_i64; 0]);
});

// The token is rejected from its expiry time on, although the service caches valid tokens.
engine_test!(an_expiring_token_stops_working, |Service { store, server }: &Service| {
    let ada = wait_for("a token that is used before its expiry", || {
        let ada = server.client(&store.token("ada", &["--expires", "6s"]));
        (ada.get("/plants").status == 200).then_some(ada)
    });
    let listed = store.run(&["token", "list", "--json"]).stdout;
    let tokens: Vec<serde_json::Value> = serde_json::from_slice(&listed).expect("JSON");
    let expires: jiff::Timestamp =
        tokens.last().expect("a token")["expires"].as_str().expect("a time").parse().expect("a time");
    wait_until("the expiry", || {
        let begun = jiff::Timestamp::now();
        let status = ada.get("/plants").status;
        assert!(status == 401 || begun < expires, "{begun} is not before {expires}");
        status == 401
    });
});

engine_test!(failed_authentication_is_limited_and_valid_tokens_are_still_served, |store: &Store| {
    let server = store.serve(&["--auth-failure-rate", "1", "--auth-failure-burst", "20"]);
    let anonymous = server.anonymous();
    let known = server.client(&store.token("ada", &[]));
    assert_eq!(known.get("/plants").status, 200);
    let responses: Vec<_> = (0..40).map(|_| with_header(&anonymous, "Bearer nonsense")).collect();
    assert!(responses[..20].iter().all(|response| response.error() == 40101), "the burst of 20 is allowed");
    let limited = responses.iter().filter(|response| response.status == 429).count();
    assert!(limited >= 10, "after the burst, at most one per second is not limited: {limited}");
    let limited = &responses[20..].iter().find(|response| response.status == 429).expect("a limited request");
    assert_eq!(limited.error(), 42900);
    assert_snapshot!(limited.wire(), @r#"
    429 Too Many Requests
    content-type: application/json
    cache-control: no-store
    retry-after: 1
    content-length: 92

    {"error":42900,"message":"too many requests with an invalid access token: try again in 1 s"}
    "#);
    assert!((0..40).any(|number| with_header(&anonymous, &format!("Bearer {}", unknown_token(number))).status == 429));
    assert_eq!(known.get("/plants").status, 200, "a valid token from the same address");
    let fresh = server.client(&store.token("bob", &[]));
    assert_eq!(fresh.get("/plants").status, 200, "a valid token that is not cached yet");
    assert_eq!(anonymous.get("/plants").error(), 40100, "a request without a token is not a failed authentication");
});

engine_test!(burst_of_100_failures_is_allowed_by_default, |Service { server, .. }: &Service| {
    let anonymous = server.anonymous();
    let mut connection = anonymous.connect();
    let mut status =
        || connection.ask(anonymous.bytes("GET", "/plants", &[("Authorization", "Bearer nonsense")], None)).status;
    assert!((0..100).all(|_| status() == 401), "a failure within the burst was rejected");
    // On a slow machine, many failures are allowed again meanwhile.
    assert!((0..10_000).any(|_| status() == 429), "no failure beyond the burst was rejected");
});

engine_test!(token_has_the_published_format, |Service { store, server }: &Service| {
    let token = store.token("ada", &[]);
    assert_eq!(token.len(), 42);
    assert!(token.starts_with("pst_"));
    assert!(token[4..].bytes().all(|byte| byte.is_ascii_alphanumeric()));
    assert_eq!(token, with_checksum(&token[..36]));
    assert_eq!(server.client(&token).get("/plants").status, 200);
});

engine_test!(session_of_a_token_is_cached, &["--metrics-listen", "0"], |Garden { server, ada, .. }: &Garden| {
    let metrics = server.metrics();
    wait_until("a request without a look-up of its token", || {
        assert_eq!(ada.get("/me").status, 200);
        metrics.value("plantstore_token_cache_lookups_total", &[("result", "hit")]) > 0
    });
});
