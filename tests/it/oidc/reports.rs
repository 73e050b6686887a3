//! Warnings about unusable keys and tokens: with the reason or the value found, rate-limited, and without the token.

use std::time::Instant;

use serde_json::{Value, json};

use super::{call, lines, serve, with};
use crate::support::issuer::{AUDIENCE, Issuer, SigningKey};
use crate::support::{Store, engine_test, engine_tool_test, wait_until};

const SKIPPED: &str = "issuer key skipped";
const OPAQUE: &str = "it is neither a JWT nor a token of this service";
const AUDIENCE_WRONG: &str = "its `aud` does not contain --oidc-audience";

engine_tool_test!(a_skipped_key_is_logged_once_with_its_reason, requires_openssl, |store: &Store| {
    let key = SigningKey::p256("good");
    let skipped = |id: &str, others: Value| with(SigningKey::p256(id).jwk, others);
    let unusable = [
        (skipped("for-encryption", json!({ "use": "enc" })), "`use` or `key_ops`"),
        (skipped("not-for-verifying", json!({ "key_ops": ["sign"] })), "`use` or `key_ops`"),
        (skipped("of-another-curve", json!({ "crv": "P-384" })), r#"its type is \"EC\" with \"P-384\""#),
        (skipped("for-another-algorithm", json!({ "alg": "ES256K" })), r#"its `alg` is \"ES256K\""#),
        (skipped("of-half-a-point", json!({ "y": null })), "its numbers are missing"),
        (SigningKey::rsa_of("too-weak", 1_024).jwk, "it has 1024 bits, not 2048 to 8192"),
        (json!({ "kty": "oct", "kid": "shared\nsecret", "k": "c2VjcmV0" }), r#"its type is \"oct\""#),
        (json!("nothing"), "it is not a JSON Web Key"),
    ];
    let issuer = Issuer::start(&[]);
    let published: Vec<Value> = unusable.iter().map(|(jwk, _)| jwk.clone()).chain([key.jwk.clone()]).collect();
    issuer.publish_jwks(published.clone());
    let server = serve(store, &issuer, &[]);
    assert_eq!(call(&server, &key.token(&issuer.claims("ada"))).status, 200);
    server.wait_for_log("issuer keys updated");
    let reported = lines(&server, SKIPPED);
    assert_eq!(reported.len(), unusable.len());
    for (line, (jwk, reason)) in reported.iter().zip(&unusable) {
        assert_eq!(line["level"], "WARN");
        assert!(line.to_string().contains(reason), "{reason}: {line}");
        let id = jwk.get("kid").map(Value::to_string);
        assert_eq!(line["kid"].as_str(), id.as_deref(), "the key id is quoted, so that it cannot break the line");
    }
    assert!(!server.log().contains("c2VjcmV0"));

    issuer.wait_for_fetch();
    issuer.publish_jwks(published.into_iter().skip(1).collect());
    wait_until("a warning about the new key set", || lines(&server, SKIPPED).len() > unusable.len());
    wait_until("all warnings about the new key set", || lines(&server, SKIPPED).len() == 2 * unusable.len() - 1);
});

engine_test!(wrong_audience_is_logged_with_the_value_found_once_a_minute, |store: &Store| {
    let key = SigningKey::p256("e");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &["--auth-failure-burst", "100000"]);
    let of = |audience: Value| key.token(&with(issuer.claims("ada"), json!({ "aud": audience })));
    let start = Instant::now();
    let found = format!("shop\n\u{202e}{}", "x".repeat(10_000));
    let first = of(json!([found, "other"]));
    assert_eq!(call(&server, &first).error(), 40101);
    server.wait_for_log(AUDIENCE_WRONG);
    for number in 0..50 {
        assert_eq!(call(&server, &of(json!(format!("shop-{number}")))).error(), 40101);
    }
    assert_eq!(call(&server, &of(json!(null))).error(), 40101);
    // Log lines are ordered: after this line, all earlier lines are written.
    assert_eq!(call(&server, "opaque").error(), 40101);
    server.wait_for_log(OPAQUE);
    let warned = lines(&server, AUDIENCE_WRONG);
    assert!(warned.len() as u64 <= 1 + start.elapsed().as_secs() / 60, "{} times", warned.len());
    let line = &warned[0];
    assert_eq!((&line["level"], &line["expected"]), (&"WARN".into(), &AUDIENCE.into()));
    let shown = line["found"].as_str().expect("the value found");
    assert!(shown.starts_with(r#"["shop\n\u{202e}xxx"#) && shown.ends_with("x…"), "{shown}");
    assert!(shown.len() < 300, "{shown}");
    assert!(first.split('.').all(|part| !server.log().contains(part)), "the log has no token");
});

engine_test!(opaque_token_is_logged_once_a_minute_if_there_is_an_issuer, |store: &Store| {
    let key = SigningKey::p256("e");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &["--auth-failure-burst", "100000"]);
    let ours = store.token("bob", &[]);
    assert_eq!(call(&server, &ours[..ours.len() - 1]).error(), 40101);
    assert_eq!(call(&server, &key.token(&issuer.claims("ada"))).status, 200);
    // Log lines are ordered: after this line, all earlier lines are written.
    server.wait_for_log(r#""status":200"#);
    assert_eq!(server.logged(OPAQUE), 0, "a truncated token of plantstore is not reported");
    let start = Instant::now();
    let opaque: Vec<String> = (0..50).map(|number| format!("opaque-token-{number}-LwvqNQt")).collect();
    for token in &opaque {
        assert_eq!(call(&server, token).error(), 40101);
    }
    server.wait_for_log(OPAQUE);
    // A token of three parts that is no JWT.
    assert_eq!(call(&server, "YWJj.ZGVm.Z2hp").error(), 40101);
    assert_eq!(call(&server, &key.token(&with(issuer.claims("ada"), json!({ "aud": "other" })))).error(), 40101);
    server.wait_for_log(AUDIENCE_WRONG);
    assert!(server.logged(OPAQUE) as u64 <= 1 + start.elapsed().as_secs() / 60);
    assert_eq!(lines(&server, OPAQUE)[0]["level"], "WARN");
    assert!(opaque.iter().all(|token| !server.log().contains(token)), "the log has no token");

    let alone = store.serve(&[]);
    assert_eq!(call(&alone, &opaque[0]).error(), 40101);
    alone.wait_for_log(r#""status":401"#);
    assert_eq!(alone.logged(OPAQUE), 0, "no warning without an issuer");
});
