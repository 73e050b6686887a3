//! Tokens and keys of an issuer. The input has a line for each of: the URL of the issuer, the header, the claims, and the signature in
//! hexadecimal digits; then follows the key set.
#![no_main]
#![allow(dead_code, reason = "modules of the server")]

#[path = "../../crates/server/src/auth/oidc/issuer.rs"]
mod issuer;
#[path = "../../crates/server/src/auth/oidc/jwt.rs"]
mod jwt;
#[path = "../../crates/server/src/auth/oidc/keys.rs"]
mod keys;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jwt::{ExpectedClaims, Jwt};
use keys::KeySet;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut lines = text.splitn(5, '\n');
    let [url, header, claims, signature, keys] = [(); 5].map(|()| lines.next().unwrap_or_default());
    let _ = issuer::IssuerUrl::parse(url);
    let _ = Jwt::parse(text);
    let token = [header, claims, signature].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
    let Some((keys, skipped)) = KeySet::parse(keys.as_bytes()) else { return };
    assert!(skipped.iter().all(|key| key.id.as_ref().is_none_or(|id| id.chars().count() < 3_000)));
    let Ok(jwt) = Jwt::parse(&token) else { return };
    let expected = ExpectedClaims { issuer: url.to_owned(), audience: "plants".to_owned(), user_claim: "sub".to_owned() };
    if let Ok(claims) = jwt.check(&expected, Timestamp::UNIX_EPOCH) {
        assert!(claims.accepted_until > Timestamp::UNIX_EPOCH && claims.expires <= claims.accepted_until);
    }
    // A random signature is not valid.
    assert!(!keys.candidates(&jwt).any(|key| key.has_signed(&jwt)));
});
