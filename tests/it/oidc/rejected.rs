//! Tokens that are forged, malformed, signed by another key, or not for this service.

use ring::hmac;
use serde_json::{Value, json};

use super::{LEEWAY, call, serve, with};
use crate::support::issuer::{AUDIENCE, Issuer, SigningKey, encode, now};
use crate::support::{Store, assert_contains, engine_tool_test};

engine_tool_test!(every_invalid_token_gets_the_same_response, requires_openssl, |store: &Store| {
    let keys = [SigningKey::rsa("r"), SigningKey::p256("e"), SigningKey::ed25519("d")];
    let issuer = Issuer::start(&keys.each_ref());
    let server = serve(store, &issuer, &["--auth-failure-burst", "100000", "--max-header-bytes", "65536"]);
    let expected = call(&server, "nonsense").wire();
    assert_contains(&expected, "40101");
    let claims = issuer.claims("mallory");
    let mut bad = Vec::new();
    for key in &keys {
        bad.extend(forged(key, &claims));
        bad.extend(malformed(key, &claims));
    }
    bad.extend(signed_by_another_key(&keys, &claims));
    bad.extend(with_invalid_claims(&keys[1], &claims));
    assert!(bad.len() > 200, "{}", bad.len());
    for (what, token) in &bad {
        let response = call(&server, token);
        assert_eq!(response.wire(), expected, "{what}: {token}");
    }
    assert_eq!(store.users(), [""; 0], "invalid tokens create no user");
    for key in &keys {
        assert_eq!(call(&server, &key.token(&claims)).status, 200, "valid tokens of the issuer are accepted");
    }
});

/// Returns tokens that an attacker can create from public data, without the issuer's private key.
fn forged(key: &SigningKey, claims: &Value) -> Vec<(String, String)> {
    let mut bad = Vec::new();
    let good = key.token(claims);
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let payload = signed.split('.').nth(1).unwrap();
    for name in [
        "none", "None", "NONE", "nOnE", "", " none", "HS256", "RS384", "RS512", "PS256", "ES384", "ES256K", "ES512",
        "rs256", "Ed25519",
    ] {
        for kid in [json!({ "kid": key.id }), json!({})] {
            let header = encode(with(json!({ "alg": name, "typ": "JWT" }), kid).to_string());
            for signature in ["", "AA", signature] {
                bad.push((format!("alg {name:?}"), format!("{header}.{payload}.{signature}")));
            }
        }
    }
    for (name, algorithm) in [("HS256", hmac::HMAC_SHA256), ("HS384", hmac::HMAC_SHA384), ("HS512", hmac::HMAC_SHA512)]
    {
        for secret in key.public_forms().iter().map(Vec::as_slice).chain([&b""[..], b"secret"]) {
            let signed =
                format!("{}.{payload}", encode(json!({ "alg": name, "kid": key.id, "typ": "JWT" }).to_string()));
            let signature = hmac::sign(&hmac::Key::new(algorithm, secret), signed.as_bytes());
            bad.push((format!("{name} with a public key as the secret"), format!("{signed}.{}", encode(signature))));
        }
    }
    let other = match key.algorithm() {
        "RS256" => SigningKey::rsa(&key.id),
        "ES256" => SigningKey::p256(&key.id),
        _ => SigningKey::ed25519(&key.id),
    };
    bad.push(("another key of the same id".to_owned(), other.token(claims)));
    for name in ["jwk", "jku", "x5c", "x5u"] {
        let own_key = match name {
            "jwk" => other.jwk.clone(),
            "x5c" => json!([encode(other.jwk.to_string())]),
            _ => json!("http://127.0.0.1:1/keys"),
        };
        let header = with(other.header(), json!({ name: own_key }));
        bad.push((format!("the attacker's key in {name}"), other.token_with(&header, claims)));
        let header = with(header, json!({ "kid": null }));
        bad.push((format!("the attacker's key in {name}, without kid"), other.token_with(&header, claims)));
    }
    let elsewhere = key.token(&with(claims.clone(), json!({ "jti": "another" })));
    let foreign = elsewhere.rsplit_once('.').unwrap().1;
    bad.push(("the signature of another token".to_owned(), format!("{signed}.{foreign}")));
    let mut raw = key.sign(signed.as_bytes());
    for at in [0, raw.len() / 2, raw.len() - 1] {
        raw[at] ^= 1;
        bad.push(("a changed signature".to_owned(), format!("{signed}.{}", encode(&raw))));
        raw[at] ^= 1;
    }
    for nothing in ["AA", "AAAA"] {
        bad.push(("a signature of a few bytes".to_owned(), format!("{signed}.{nothing}")));
    }
    bad.push(("a short signature".to_owned(), format!("{signed}.{}", encode(&raw[..raw.len() - 1]))));
    bad.push(("a long signature".to_owned(), format!("{signed}.{}", encode([&raw[..], &[0]].concat()))));
    bad.push(("a signature of zeros".to_owned(), format!("{signed}.{}", encode(vec![0; raw.len()]))));
    bad
}

/// Returns tokens with a valid signature and invalid syntax.
fn malformed(key: &SigningKey, claims: &Value) -> Vec<(String, String)> {
    let mut bad = Vec::new();
    let mut add = |what: &str, token: String| bad.push((what.to_owned(), token));
    let good = key.token(claims);
    let parts: Vec<&str> = good.split('.').collect();
    let [header, payload, signature] = parts[..] else { panic!("three parts") };
    add("no signature", format!("{header}.{payload}"));
    add("an empty signature", format!("{header}.{payload}."));
    add("a fourth part", format!("{good}.AA"));
    add("a fifth part, as if encrypted", format!("{good}.AA.AA"));
    add("no claims", format!("{header}..{signature}"));
    add("no header", format!(".{payload}.{signature}"));
    for at in [1, good.len() / 2, good.len() - 1] {
        add("cut off", good[..at].to_owned());
    }
    add("twice", format!("{good} {good}"));
    add("padded", format!("{header}.{payload}.{signature}="));
    add("a header that is padded", format!("{header}=.{payload}.{signature}"));
    // The last character encodes unused bits, which lenient decoders ignore.
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (last, rest) = signature.as_bytes().split_last().unwrap();
    let at = alphabet.iter().position(|known| known == last).unwrap();
    add(
        "an unused bit is set",
        format!("{header}.{payload}.{}{}", std::str::from_utf8(rest).unwrap(), char::from(alphabet[at ^ 1])),
    );
    let standard = format!("{header}.{payload}.{signature}").replace('-', "+").replace('_', "/");
    if standard != good {
        add("the standard base64 alphabet", standard);
    }

    let of = |header: &str, claims: &str| key.token_of(header, claims);
    let (header, text) = (key.header().to_string(), claims.to_string());
    add("a header that is no object", of("[]", &text));
    add("claims that are no object", of(&header, "\"x\""));
    add("claims that are no JSON", of(&header, &text[..text.len() - 1]));
    add("claims and more", of(&header, &format!("{text}{{}}")));
    for name in ["alg", "kid", "typ"] {
        let (own, other) = (key.header()[name].to_string(), r#""none""#);
        let once = format!(r#""{name}":{own}"#);
        add("twice the same in the header", of(&header.replace(&once, &format!("{once},{once}")), &text));
        add("twice in the header", of(&header.replace(&once, &format!(r#""{name}":{other},{once}"#)), &text));
        add("twice in the header", of(&header.replace(&once, &format!(r#"{once},"{name}":{other}"#)), &text));
    }
    for name in ["iss", "aud", "sub", "exp", "scope"] {
        let once = format!(r#""{name}":{}"#, claims[name]);
        add("twice in the claims", of(&header, &text.replace(&once, &format!("{once},{once}"))));
    }
    add(
        "twice in the claims, once with an escape",
        of(&header, &text.replace(r#""sub":"#, r#""s\u0075b":"ada","sub":"#)),
    );
    for header in [
        json!({ "crit": ["exp"] }),
        json!({ "crit": [] }),
        json!({ "crit": ["b64"], "b64": false }),
        json!({ "typ": "dpop+jwt" }),
        json!({ "typ": "logout+jwt" }),
        json!({ "typ": "" }),
        json!({ "typ": 1 }),
        json!({ "typ": ["JWT"] }),
        json!({ "kid": 7 }),
        json!({ "kid": [key.id] }),
        json!({ "alg": null }),
        json!({ "alg": [key.algorithm()] }),
        json!({ "alg": 1 }),
    ] {
        add(&format!("header {header}"), key.token_with(&with(key.header(), header), claims));
    }
    add("too large", key.token(&with(claims.clone(), json!({ "more": "x".repeat(20_000) }))));
    bad
}

/// Returns tokens that are signed by one key and name another key or algorithm.
fn signed_by_another_key(keys: &[SigningKey], claims: &Value) -> Vec<(String, String)> {
    let mut bad = Vec::new();
    for signer in keys {
        for other in keys.iter().filter(|other| other.id != signer.id) {
            let header = json!({ "alg": other.algorithm(), "kid": signer.id, "typ": "JWT" });
            bad.push((format!("{} by a key of another kind", other.algorithm()), signer.token_with(&header, claims)));
            for algorithm in [signer.algorithm(), other.algorithm()] {
                let header = json!({ "alg": algorithm, "kid": other.id, "typ": "JWT" });
                // A key id of another algorithm is unknown, so the server fetches the keys once.
                bad.push((format!("{algorithm} of {} as {}", signer.id, other.id), signer.token_with(&header, claims)));
            }
        }
    }
    bad
}

/// Returns tokens of the issuer with another issuer, audience or time, or without a valid user name.
fn with_invalid_claims(key: &SigningKey, claims: &Value) -> Vec<(String, String)> {
    let issuer = claims["iss"].as_str().unwrap();
    [
        json!({ "iss": null }),
        json!({ "iss": "https://elsewhere.example" }),
        json!({ "iss": format!("{issuer}/") }),
        json!({ "iss": &issuer[..issuer.len() - 1] }),
        json!({ "iss": issuer.to_uppercase() }),
        json!({ "iss": [issuer] }),
        json!({ "iss": "" }),
        json!({ "aud": null }),
        json!({ "aud": "others" }),
        json!({ "aud": "" }),
        json!({ "aud": "plant" }),
        json!({ "aud": "plants " }),
        json!({ "aud": "PLANTS" }),
        json!({ "aud": "plants others" }),
        json!({ "aud": [] }),
        json!({ "aud": ["others"] }),
        json!({ "aud": [[AUDIENCE]] }),
        json!({ "aud": { "plants": true } }),
        json!({ "aud": 7 }),
        json!({ "aud": true }),
        json!({ "exp": null }),
        json!({ "exp": now() - LEEWAY - 1.0 }),
        json!({ "exp": now() - 86_400.0 }),
        json!({ "exp": 0 }),
        json!({ "exp": -1 }),
        json!({ "exp": -1e300 }),
        json!({ "exp": i64::MIN }),
        json!({ "exp": (now() + 600.0).to_string() }),
        json!({ "exp": true }),
        json!({ "exp": [now() + 600.0] }),
        json!({ "nbf": now() + LEEWAY + 60.0 }),
        json!({ "nbf": 1e300 }),
        json!({ "nbf": u64::MAX }),
        json!({ "nbf": "0" }),
        json!({ "nbf": false }),
        json!({ "iat": now() + LEEWAY + 60.0 }),
        json!({ "iat": 1e18 }),
        json!({ "iat": "0" }),
        json!({ "iat": {} }),
        json!({ "sub": null }),
        json!({ "sub": "" }),
        json!({ "sub": 7 }),
        json!({ "sub": ["ada"] }),
        json!({ "sub": "a b" }),
        json!({ "sub": "a\u{0}" }),
        json!({ "sub": "a\n" }),
        json!({ "sub": "x".repeat(256) }),
        json!({ "sub": "a\u{200b}" }),
    ]
    .into_iter()
    .map(|others| (others.to_string(), key.token(&with(claims.clone(), others))))
    .collect()
}
