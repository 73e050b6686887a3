//! OpenID Connect with a test issuer: accepted tokens, rejected tokens, rotation of keys,
//! and an issuer that is down.

mod keys;
mod rejected;
mod reports;
mod users;

use serde_json::{Value, json};

use crate::support::issuer::{AUDIENCE, Issuer, SigningKey, now};
use crate::support::{
    CommandOutput, Response, Server, Store, engine_test, engine_tool_test, sqlite_test, wait_for, wait_until,
};

/// Allowed clock skew in seconds.
const LEEWAY: f64 = 30.0;

/// A server that accepts the issuer's tokens.
#[track_caller]
fn serve(store: &Store, issuer: &Issuer, more: &[&str]) -> Server {
    store.serve(&[&issuer.options(), more].concat())
}

/// Replaces some claims; `null` removes a claim.
fn with(mut claims: Value, others: Value) -> Value {
    let (Value::Object(all), Value::Object(others)) = (&mut claims, others) else { panic!("claims") };
    for (name, value) in others {
        if value.is_null() {
            all.remove(&name)
        } else {
            all.insert(name, value)
        };
    }
    claims
}

fn call(server: &Server, token: &str) -> Response {
    server.client(token).get("/plants")
}

/// Returns the log lines that contain these words.
fn lines(server: &Server, words: &str) -> Vec<Value> {
    let log = server.log();
    log.lines().filter(|line| line.contains(words)).map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

engine_tool_test!(tokens_of_all_three_algorithms_are_accepted, requires_openssl, |store: &Store| {
    let keys = [SigningKey::rsa("r"), SigningKey::p256("e"), SigningKey::ed25519("d")];
    let issuer = Issuer::start(&keys.each_ref());
    let server = serve(store, &issuer, &[]);
    for (number, key) in (0..).zip(&keys) {
        let ada = server.client(&key.token(&issuer.claims("ada")));
        ada.plant(number, key.algorithm());
        assert_eq!(ada.ids(), (0..=number).collect::<Vec<_>>(), "tokens of all keys name the same user");
    }
    let ada = server.client(&keys[0].token(&issuer.claims("ada")));
    assert_eq!(ada.delete(0).status, 204);
    let listed = store.run(&["user", "list", "--json"]).json();
    assert_eq!((&listed[0]["name"], &listed[0]["tokens"], &listed[0]["plants"]), (&"ada".into(), &0.into(), &2.into()));
});

engine_test!(optional_and_unknown_claims_are_accepted, |store: &Store| {
    let (key, other) = (SigningKey::p256("e"), SigningKey::ed25519("d"));
    let issuer = Issuer::start(&[&key, &other]);
    let server = serve(store, &issuer, &[]);
    let claims = issuer.claims("ada");
    let accepted = [
        json!({ "iat": null }),
        json!({ "nbf": now() - 1.0, "jti": "x", "nested": { "a": [1, { "b": null }] } }),
        json!({ "aud": [AUDIENCE] }),
        json!({ "aud": ["other", AUDIENCE, "third"] }),
        json!({ "exp": now() + 0.5 }),
        json!({ "exp": now() - LEEWAY + 10.0 }),
        json!({ "exp": 1e300, "iat": -1e300, "nbf": 0 }),
        json!({ "exp": u64::MAX, "nbf": i64::MIN }),
        json!({ "nbf": now() + LEEWAY - 10.0, "iat": now() + LEEWAY - 10.0 }),
        json!({ "sub": "auth0|5f7c8ec7c33c6c004bbafe82" }),
        json!({ "sub": "🌵".repeat(255) }),
    ];
    for others in accepted {
        let response = call(&server, &key.token(&with(claims.clone(), others.clone())));
        assert_eq!(response.status, 200, "{others}: {}", response.text());
    }
    let headers = [
        json!({ "alg": "ES256" }),
        json!({ "alg": "ES256", "kid": "e" }),
        json!({ "alg": "ES256", "kid": "e", "typ": "at+jwt" }),
        json!({ "alg": "ES256", "kid": "e", "typ": "application/at+JWT" }),
        json!({ "alg": "ES256", "kid": "e", "typ": "jwt", "x5t": "y", "jku": "http://127.0.0.1:1/" }),
    ];
    for header in headers {
        assert_eq!(call(&server, &key.token_with(&header, &claims)).status, 200, "{header}");
    }
});

engine_test!(jwts_are_rejected_without_an_issuer, |store: &Store| {
    let key = SigningKey::p256("e");
    let issuer = Issuer::start(&[&key]);
    let server = store.serve(&[]);
    assert_eq!(call(&server, &key.token(&issuer.claims("ada"))).wire(), call(&server, "nonsense").wire());
    assert_eq!(issuer.fetches(), 0);
});

engine_test!(rejected_jwts_count_against_the_address, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &["--auth-failure-rate", "1", "--auth-failure-burst", "5"]);
    let good = key.token(&issuer.claims("ada"));
    let forged = SigningKey::ed25519("d").token(&issuer.claims("ada"));
    assert_eq!(call(&server, &good).status, 200);
    let responses: Vec<Response> = (0..20).map(|_| call(&server, &forged)).collect();
    assert!(responses[..5].iter().all(|response| response.error() == 40101));
    assert!(responses.iter().any(|response| response.status == 429 && response.error() == 42900));
    assert_eq!(call(&server, &good).status, 200, "a valid token from the same address is accepted");
    // Also a valid token that the server has not cached.
    assert_eq!(call(&server, &key.token(&issuer.claims("bob"))).status, 200);
});

// At the level `debug`, each verification that fails is one log line.
engine_test!(rejected_token_is_cached_and_not_verified_again, |store: &Store| {
    const REPEATED: usize = 50;
    let key = SigningKey::p256("e");
    let issuer = Issuer::start(&[&key]);
    let server =
        serve(store, &issuer, &["--log-level", "debug", "--auth-failure-rate", "1", "--auth-failure-burst", "5"]);
    let claims = issuer.claims("ada");
    assert_eq!(call(&server, &key.token(&claims)).status, 200);
    let repeat = |token: &str, reason: &str| {
        for _ in 0..REPEATED {
            assert!([401, 429].contains(&call(&server, token).status));
        }
        // Log lines are ordered: after this line, all earlier lines are written.
        let critical = json!({ "alg": "ES256", "kid": "e", "crit": [reason] });
        let before = server.logged("(`crit`)");
        call(&server, &key.token_with(&critical, &claims));
        wait_until("the log line of the last token", || server.logged("(`crit`)") > before);
        server.logged(reason)
    };
    for (token, reason) in [
        (SigningKey::p256("e").token(&claims), "its signature does not match"),
        (key.token(&with(claims.clone(), json!({ "aud": "others" }))), "its `aud` does not contain"),
        (key.token(&with(claims.clone(), json!({ "exp": now() - 60.0 }))), "it has expired"),
    ] {
        let verified = repeat(&token, reason);
        assert!((1..REPEATED).contains(&verified), "{reason}: {verified} times");
    }
    for (token, reason) in [
        (SigningKey::p256("unknown").token(&claims), "the issuer has no such key"),
        (key.token(&with(claims.clone(), json!({ "nbf": now() + 600.0 }))), "it is not valid yet"),
    ] {
        assert_eq!(repeat(&token, reason), REPEATED, "{reason}: this result may change, so it is not cached");
    }
});

engine_test!(scopes_of_the_token_are_enforced, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &[]);
    let statuses = |scope: Value| {
        let ada = server.client(&key.token(&with(issuer.claims("ada"), json!({ "scope": scope }))));
        [ada.get("/plants").status, ada.post("{}").status, ada.delete(1).status, ada.get("/nowhere").status]
    };
    assert_eq!(statuses(json!("plants:read")), [200, 403, 403, 404]);
    assert_eq!(statuses(json!("plants:write")), [403, 400, 403, 404]);
    assert_eq!(statuses(json!("openid plants:delete profile")), [403, 403, 404, 404]);
    for nothing in
        [json!(null), json!(""), json!("plants"), json!("PLANTS:READ plants:reads"), json!(["plants:read"]), json!(7)]
    {
        assert_eq!(statuses(nothing.clone()), [403, 403, 403, 404], "{nothing}");
    }
    let reader = server.client(&key.token(&with(issuer.claims("ada"), json!({ "scope": "plants:read" }))));
    let response = reader.delete(1);
    assert_eq!(response.error(), 40300);
    let needed = r#"Bearer realm="plants", error="insufficient_scope", scope="plants:delete""#;
    assert_eq!(response.header("www-authenticate"), Some(needed));
});

engine_test!(cached_token_expires_at_its_expiry_time, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &[]);
    assert_eq!(call(&server, &key.token(&issuer.claims("ada"))).status, 200);
    let end = now() + 4.0;
    let ada = server.client(&key.token(&with(issuer.claims("ada"), json!({ "exp": end - LEEWAY }))));
    let mut connection = ada.connect();
    let mut worked = 0;
    wait_for("the token to expire", || {
        let sent = now();
        let response = connection.ask(ada.bytes("GET", "/plants", &[], None));
        if response.status == 401 {
            return Some(());
        }
        assert_eq!(response.status, 200);
        assert!(sent < end, "an expired token was accepted");
        worked += 1;
        None
    });
    assert!(worked > 1, "the token was cached");
});

engine_test!(the_log_names_the_user_and_never_holds_the_token, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &["--log-level", "trace"]);
    let claims = with(issuer.claims("ada"), json!({ "secret": "a secret claim" }));
    let good = key.token(&claims);
    let mut used = vec![good.clone()];
    let line = |id: &str, token: &str| {
        let response = server.client(token).call("GET", "/plants", &[("X-Request-Id", id)], None);
        let line = wait_for("the log line of the request", || {
            server.log().lines().find(|line| line.contains(id)).map(str::to_owned)
        });
        (response.status, serde_json::from_str::<Value>(&line).expect("JSON"))
    };
    let (status, shown) = line("a-good-one", &good);
    assert_eq!((status, &shown["user"], &shown["token_id"]), (200, &"ada".into(), &Value::Null));
    let wrong = [
        key.token(&with(claims.clone(), json!({ "aud": "others" }))),
        SigningKey::ed25519("d").token(&claims),
        SigningKey::ed25519("unknown").token(&claims),
        good[..good.len() - 4].to_owned(),
    ];
    for (number, token) in wrong.into_iter().enumerate() {
        let (status, shown) = line(&format!("bad-{number}"), &token);
        assert_eq!((status, &shown["user"]), (401, &Value::Null));
        used.push(token);
    }
    server.client(&good).call("GET", "/plants", &[("X-Request-Id", &good)], None);
    server.client(&good).get(&format!("/plants?access_token={good}"));
    server.stop();
    let log = server.log();
    assert!(log.contains("its `aud` does not contain the audience"), "the log has the reason: {log}");
    for part in used.iter().flat_map(|token| token.split('.')).filter(|part| part.len() > 8) {
        assert!(!log.contains(part), "{part} in {log}");
    }
    assert!(!log.contains("secret"), "{log}");
});

engine_test!(ed25519_is_accepted_as_the_name_of_eddsa, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[]);
    issuer.publish_jwks(vec![with(key.jwk.clone(), json!({ "alg": "Ed25519" }))]);
    let server = serve(store, &issuer, &[]);
    for name in ["Ed25519", "EdDSA"] {
        let token = key.token_with(&json!({ "alg": name, "kid": "d" }), &issuer.claims("ada"));
        assert_eq!(call(&server, &token).status, 200, "{name}");
    }
    let other = SigningKey::ed25519("d").token_with(&json!({ "alg": "Ed25519", "kid": "d" }), &issuer.claims("ada"));
    assert_eq!(call(&server, &other).error(), 40101, "a token of another key is rejected");
});

sqlite_test!(conflicting_options_are_rejected, |store: &Store| {
    let rejects = |options: &[&str], expected: &str| {
        let words = store.run(&[&["serve", "--listen", "127.0.0.1:0"], options].concat()).failure(2);
        assert!(words.contains(expected) && words.lines().count() == 1, "{options:?}: {words}");
    };
    let issuer = ["--oidc-issuer", "https://login.example.com"];
    let audience = ["--oidc-audience", "plants"];
    rejects(&issuer, "--oidc-audience");
    rejects(&audience, "--oidc-issuer");
    rejects(&["--oidc-ca", "ca.pem"], "--oidc-issuer");
    rejects(&["--oidc-user-claim", "email"], "--oidc-issuer");
    rejects(&[issuer, ["--oidc-audience", ""]].concat(), "--oidc-audience");
    rejects(&[issuer, audience, ["--oidc-ca", "nowhere.pem"]].concat(), "nowhere.pem");
    for (url, expected) in [
        ("http://login.example.com", "use https://"),
        ("http://127.0.0.1.example.com", "use https://"),
        ("http://localhost.example.com", "use https://"),
        ("http://10.0.0.1:8080", "use https://"),
        ("login.example.com", "write it as https://HOST/PATH"),
        ("", "--oidc-issuer"),
        ("https://", "write it as https://HOST/PATH"),
        ("ftp://login.example.com", "write it as https://HOST/PATH"),
        ("https://ada:secret@login.example.com", "without user name and password"),
        ("https://login.example.com:99999", "write it as https://HOST/PATH"),
        ("https://login.example.com:x", "write it as https://HOST/PATH"),
        ("https://login.example.com:", "write it as https://HOST/PATH"),
        ("https://login.example.com/?a=b", "neither a query nor a fragment"),
        ("https://login.example.com/#x", "neither a query nor a fragment"),
    ] {
        rejects(&[["--oidc-issuer", url], audience].concat(), expected);
    }
    assert!(!store.file().exists(), "a server that cannot start creates no store");
    for url in
        ["http://localhost:1", "http://[::1]:1/", "http://127.1.2.3:1", "https://login.example.com/realms/garden/"]
    {
        drop(store.serve(&["--oidc-issuer", url, "--oidc-audience", "plants"]));
    }
    let mut by_variables = store.command(&["serve", "--listen", "127.0.0.1:0"]);
    by_variables.env("PLANTSTORE_OIDC_ISSUER", "http://127.0.0.1:1");
    let output = by_variables.output().expect("the command runs");
    assert_eq!(output.status.code(), Some(2), "an issuer in a variable needs an audience, too");
});
