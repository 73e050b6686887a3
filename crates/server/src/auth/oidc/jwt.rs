//! Parsing of a JWT and validation of its claims. Input that lenient parsers read in different ways is rejected. Also algorithm
//! names and base64url, which tokens and keys (JWK) share.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::issuer::quoted_json;
use plantstore_model::body::unique_members;
use plantstore_model::token::Scopes;
use plantstore_model::user::UserName;

/// Tolerated difference between the issuer's clock and ours, in seconds.
const LEEWAY: f64 = 30.0;
/// Accepted values of `typ`, compared without regard to case. A token without `typ` is accepted, too.
const TYPES: [&str; 4] = ["jwt", "at+jwt", "application/jwt", "application/at+jwt"];

/// The reason why a token is not accepted. The texts are for the log; they do not contain parts of the token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("it is not a JWT")]
    Malformed,
    #[error("its algorithm is none of RS256, ES256, EdDSA and Ed25519")]
    Algorithm,
    #[error("its header asks for extensions (`crit`)")]
    Critical,
    #[error("its `typ` is not that of an access token")]
    Type,
    #[error("its `kid` is not a string")]
    KeyId,
    #[error("its `iss` is not the issuer")]
    Issuer,
    /// With its `aud`, quoted; `None` when it has none.
    #[error("its `aud` does not contain the audience")]
    Audience(Option<String>),
    #[error("its `{0}` is missing or not a number")]
    Time(&'static str),
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    NotYetValid,
    #[error("its user claim is missing or not a valid user name")]
    User,
    #[error("the issuer has no such key")]
    UnknownKey,
    #[error("its signature does not match the issuer's key")]
    Signature,
}

impl TokenError {
    /// Returns true if the token may become valid with time or with a change of the issuer's keys.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::NotYetValid | Self::UnknownKey | Self::Signature)
    }
}

/// Accepted signature algorithms. All are asymmetric, so that a public key cannot be used to sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Es256,
    EdDsa,
}

impl Algorithm {
    /// Returns the algorithm with a name of RFC 7518, RFC 8037 or RFC 9864. `EdDSA` and `Ed25519` are the same here, because no
    /// other curve of EdDSA is accepted.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

/// Decodes base64url without padding and without trailing bits, so that every byte string has exactly one encoding.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// A parsed token that is not verified.
pub(super) struct Jwt<'a> {
    /// The bytes that the signature covers.
    pub(super) signed: &'a [u8],
    pub(super) signature: Vec<u8>,
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
    claims: Value,
}

pub(super) struct ExpectedClaims {
    pub(super) issuer: String,
    pub(super) audience: String,
    pub(super) user_claim: String,
}

pub(crate) struct Claims {
    pub(crate) user: UserName,
    pub(crate) scopes: Scopes,
    /// The claim `exp`.
    pub(crate) expires: Timestamp,
    /// Expiry time with the leeway added.
    pub(crate) accepted_until: Timestamp,
}

impl<'a> Jwt<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, TokenError> {
        let (signed, signature) = text.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        let header = decode_object(header)?;
        if header.get("crit").is_some() {
            return Err(TokenError::Critical);
        }
        let algorithm = header["alg"].as_str().and_then(Algorithm::from_name);
        let key_id = header.get("kid").map(|id| id.as_str().map(str::to_owned).ok_or(TokenError::KeyId)).transpose()?;
        let is_accepted = |kind: &str| TYPES.iter().any(|known| kind.eq_ignore_ascii_case(known));
        if header.get("typ").is_some_and(|kind| !kind.as_str().is_some_and(is_accepted)) {
            return Err(TokenError::Type);
        }
        Ok(Self {
            signed: signed.as_bytes(),
            signature: decode(signature).ok_or(TokenError::Malformed)?,
            algorithm: algorithm.ok_or(TokenError::Algorithm)?,
            key_id,
            claims: decode_object(claims)?,
        })
    }

    pub(super) fn check(&self, expected: &ExpectedClaims, now: Timestamp) -> Result<Claims, TokenError> {
        let claims = &self.claims;
        if claims["iss"] != *expected.issuer {
            return Err(TokenError::Issuer);
        }
        let meant_for_us = match claims.get("aud") {
            Some(Value::Array(audiences)) => audiences.iter().any(|audience| *audience == expected.audience),
            audience => audience.is_some_and(|audience| *audience == expected.audience),
        };
        if !meant_for_us {
            return Err(TokenError::Audience(claims.get("aud").map(quoted_json)));
        }
        let expires = seconds(claims, "exp")?.ok_or(TokenError::Time("exp"))?;
        let accepted_until = timestamp(expires + LEEWAY);
        if accepted_until <= now {
            return Err(TokenError::Expired);
        }
        for name in ["nbf", "iat"] {
            if seconds(claims, name)?.is_some_and(|start| timestamp(start - LEEWAY) > now) {
                return Err(TokenError::NotYetValid);
            }
        }
        let user = claims[&expected.user_claim].as_str().and_then(|name| UserName::parse(name).ok());
        let user = user.ok_or(TokenError::User)?;
        let scopes = Scopes::from_names(claims["scope"].as_str().unwrap_or_default());
        Ok(Claims { user, scopes, expires: timestamp(expires), accepted_until })
    }
}

/// Converts a number of seconds, which may have a fraction, to a timestamp. Values out of range are clamped.
fn timestamp(seconds: f64) -> Timestamp {
    let limit = if seconds < 0.0 { Timestamp::MIN } else { Timestamp::MAX };
    let since = SignedDuration::try_from_secs_f64(seconds).ok();
    since.and_then(|since| Timestamp::from_duration(since).ok()).unwrap_or(limit)
}

/// Decodes a JSON object without repeated names, which parsers would read in different ways.
fn decode_object(text: &str) -> Result<Value, TokenError> {
    let members = decode(text).and_then(|json| unique_members(&json)).ok_or(TokenError::Malformed)?;
    Ok(members.into_iter().collect())
}

fn seconds(claims: &Value, name: &'static str) -> Result<Option<f64>, TokenError> {
    let seconds = |value: &Value| value.as_f64().ok_or(TokenError::Time(name));
    claims.get(name).map(seconds).transpose()
}
