//! A token of an issuer: how it is read, and what it must claim. Strict wherever a lenient reader and a strict one could take
//! the same bytes for different things.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;

use super::jose::{self, Algorithm};
use super::quote::quoted_json;
use plantstore_model::token::Scopes;
use plantstore_model::user::UserName;

/// How far the issuer's clock may be from ours, in seconds.
const LEEWAY: f64 = 30.0;
/// What a token may say it is: nothing, or one of these, in any case of letters. Others are made for something else.
const TYPES: [&str; 4] = ["jwt", "at+jwt", "application/jwt", "application/at+jwt"];

/// Why a token is not accepted. The texts are for operators; they repeat nothing of the token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("it is not a JWT")]
    Malformed,
    #[error("its algorithm is none of RS256, ES256, EdDSA and Ed25519")]
    Algorithm,
    #[error("its header asks for extensions (`crit`)")]
    Critical,
    #[error("its `typ` is that of something else than an access token")]
    Type,
    #[error("its `kid` is no text")]
    KeyId,
    #[error("its `iss` is not the issuer")]
    Issuer,
    /// With its `aud`, quoted; `None` when it has none.
    #[error("its `aud` does not hold the audience")]
    Audience(Option<String>),
    #[error("its `{0}` is missing or no number")]
    Time(&'static str),
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    NotYet,
    #[error("it names no user, or one whose name is not possible here")]
    User,
    #[error("the issuer has no such key")]
    UnknownKey,
    #[error("its signature is not that of the issuer's key")]
    Signature,
}

impl Fault {
    /// Whether a token that has it may be valid later, by itself or by a change of the issuer's keys.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::NotYet | Self::UnknownKey | Self::Signature)
    }
}

/// A token, read and not yet believed.
pub(super) struct Jwt<'a> {
    /// What the signature is over.
    pub(super) signed: &'a [u8],
    pub(super) signature: Vec<u8>,
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
    claims: Members,
}

/// Whose tokens are accepted.
pub(super) struct Expected {
    pub(super) issuer: String,
    pub(super) audience: String,
    pub(super) user_claim: String,
}

/// What a token says of its holder.
pub(crate) struct Claims {
    pub(crate) user: UserName,
    pub(crate) scopes: Scopes,
    /// When it stops working, the leeway included.
    pub(crate) expires: Timestamp,
}

impl<'a> Jwt<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, Fault> {
        let (signed, signature) = text.rsplit_once('.').ok_or(Fault::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(Fault::Malformed)?;
        let header = Members::decode(header)?;
        if header.get("crit").is_some() {
            return Err(Fault::Critical);
        }
        let algorithm = header.get("alg").and_then(Value::as_str).and_then(Algorithm::named);
        let key_id = match header.get("kid") {
            None => None,
            Some(id) => Some(id.as_str().ok_or(Fault::KeyId)?.to_owned()),
        };
        if header.get("typ").is_some_and(|kind| !is_access_token(kind)) {
            return Err(Fault::Type);
        }
        Ok(Self {
            signed: signed.as_bytes(),
            signature: decode(signature)?,
            algorithm: algorithm.ok_or(Fault::Algorithm)?,
            key_id,
            claims: Members::decode(claims)?,
        })
    }

    /// What the token claims, if it is for us and for now.
    pub(super) fn check(&self, expected: &Expected, now: Timestamp) -> Result<Claims, Fault> {
        let claims = &self.claims;
        if claims.text("iss") != Some(&expected.issuer) {
            return Err(Fault::Issuer);
        }
        let meant_for_us = match claims.get("aud") {
            Some(Value::Array(audiences)) => audiences.iter().any(|audience| *audience == expected.audience),
            audience => audience.is_some_and(|audience| *audience == expected.audience),
        };
        if !meant_for_us {
            return Err(Fault::Audience(claims.get("aud").map(quoted_json)));
        }
        let expires = timestamp(claims.seconds("exp")?.ok_or(Fault::Time("exp"))? + LEEWAY);
        if expires <= now {
            return Err(Fault::Expired);
        }
        for name in ["nbf", "iat"] {
            if claims.seconds(name)?.is_some_and(|start| timestamp(start - LEEWAY) > now) {
                return Err(Fault::NotYet);
            }
        }
        let user = claims.text(&expected.user_claim).and_then(|name| UserName::parse(name).ok()).ok_or(Fault::User)?;
        let scopes = Scopes::from_names(claims.text("scope").unwrap_or_default());
        Ok(Claims { user, scopes, expires })
    }
}

fn is_access_token(kind: &Value) -> bool {
    kind.as_str().is_some_and(|kind| TYPES.iter().any(|known| kind.eq_ignore_ascii_case(known)))
}

fn decode(text: &str) -> Result<Vec<u8>, Fault> {
    jose::decode(text).ok_or(Fault::Malformed)
}

/// A moment given in seconds, of which there may be parts, and more than time has.
fn timestamp(seconds: f64) -> Timestamp {
    let furthest = if seconds < 0.0 { Timestamp::MIN } else { Timestamp::MAX };
    let since = SignedDuration::try_from_secs_f64(seconds).ok();
    since.and_then(|since| Timestamp::from_duration(since).ok()).unwrap_or(furthest)
}

/// The members of a JSON object. One that is given twice makes the object unreadable: which of them counts would depend on
/// the reader.
struct Members(BTreeMap<String, Value>);

impl Members {
    fn decode(text: &str) -> Result<Self, Fault> {
        serde_json::from_slice(&decode(text)?).map_err(|_| Fault::Malformed)
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Value::as_str)
    }

    fn seconds(&self, name: &'static str) -> Result<Option<f64>, Fault> {
        let seconds = |value: &Value| value.as_f64().ok_or(Fault::Time(name));
        self.get(name).map(seconds).transpose()
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Members;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Members, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = object.next_entry::<String, Value>()? {
                    match members.entry(name) {
                        Entry::Vacant(vacant) => vacant.insert(value),
                        Entry::Occupied(_) => return Err(A::Error::custom("a member is given twice")),
                    };
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Object)
    }
}
