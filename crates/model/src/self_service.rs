//! Requests of users for tokens and shares of their own.

use jiff::{SignedDuration, Timestamp};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::body::{BodyError, Checked, FieldErrorKind, JsonObject, string};
use crate::token::{Scope, Scopes, TokenAttributes, TokenCreator, TokenLabel};
use crate::user::Role;

/// Lifetime of a token that is requested without an expiry time.
const DEFAULT_LIFETIME: SignedDuration = SignedDuration::from_hours(90 * 24);
/// Time before its end from which a token can be renewed.
const RENEWAL_PERIOD: SignedDuration = SignedDuration::from_hours(14 * 24);

/// A token to create. A field that is `null` counts as absent, and one that is not known is an error
#[derive(Clone, Debug, PartialEq, Eq, ToSchema)]
#[schema(as = NewToken, examples(json!({"label": "balcony", "scopes": ["plants:read"]})))]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    #[schema(value_type = Option<TokenLabel>)]
    label: TokenLabel,
    /// Those for plants that the token that you send has, unless given
    #[schema(value_type = Option<Vec<Scope>>, min_items = 1)]
    scopes: Option<Scopes>,
    /// Expiry time, at most that of the token that you send; 90 days unless given
    expires_at: Option<Timestamp>,
    /// The new token replaces the one that you send, which expires within 14 days: it may last 90 days
    #[schema(value_type = Option<bool>)]
    renew: bool,
}

/// The credentials that a token is requested with. They limit what the new token can have.
#[derive(Clone, Copy, Debug)]
pub struct ParentToken {
    pub creator: TokenCreator,
    pub scopes: Scopes,
    /// Expiry time; `None` for a token that never expires.
    pub expires: Option<Timestamp>,
}

/// A token or a share would give more than the token that it is requested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRequestError {
    #[error("an access token can only give scopes that it has, and this one lacks: {0}")]
    Scopes(Scopes),
    #[error("this access token has no scope for plants: name the `scopes` of the new one")]
    NoDefaultScopes,
    #[error("an access token created with this one can expire at {0} at the latest")]
    Expiry(Timestamp),
    #[error("an access token can be renewed from 14 days before its end on, and this one expires at {0}")]
    RenewalTooEarly(Timestamp),
    #[error("an access token can only grant what it can do itself, and to grant this role it lacks: {0}")]
    Role(Scopes),
}

impl TokenRequest {
    pub fn from_json(bytes: &[u8], now: Timestamp) -> Result<Self, BodyError> {
        let mut object = JsonObject::parse(bytes, "")?;
        let label = object.optional("label", label).unwrap_or_default();
        let scopes = object.optional("scopes", scopes);
        let expires_at = object.optional("expires_at", |raw| expiry(raw, now));
        let renew = object.optional("renew", boolean).unwrap_or_default();
        // A misspelt `scopes` must not make a token with the default scopes.
        object.reject_unknown();
        object.finish(Some(Self { label, scopes, expires_at, renew }))
    }

    /// Returns the attributes of the new token: a subset of the scopes of the parent token, and an expiry time that is not
    /// later unless it renews the parent token. Without scopes in the request, the default scopes that the parent token has.
    pub fn attributes(self, parent: ParentToken, now: Timestamp) -> Result<TokenAttributes, TokenRequestError> {
        let default = Scopes::DEFAULT.intersection(parent.scopes);
        let scopes = match self.scopes {
            Some(scopes) => scopes,
            None if default.is_empty() => return Err(TokenRequestError::NoDefaultScopes),
            None => default,
        };
        let missing = scopes.without(parent.scopes);
        if !missing.is_empty() {
            return Err(TokenRequestError::Scopes(missing));
        }
        let default = whole_seconds(now.checked_add(DEFAULT_LIFETIME).unwrap_or(Timestamp::MAX));
        let latest = match (parent.creator, parent.expires) {
            // It is short-lived, and the new token must not end with it.
            (TokenCreator::Issuer, _) => Some(default),
            (_, Some(end)) if self.renew && end.duration_since(now) > RENEWAL_PERIOD => {
                return Err(TokenRequestError::RenewalTooEarly(end));
            }
            (_, Some(_)) if self.renew => Some(default),
            (TokenCreator::Operator | TokenCreator::Token(_), expires) => expires,
        };
        let expires = self.expires_at.unwrap_or_else(|| latest.map_or(default, |latest| latest.min(default)));
        match latest {
            Some(latest) if expires > latest => Err(TokenRequestError::Expiry(latest)),
            _ => Ok(TokenAttributes {
                label: self.label,
                scopes,
                creator: parent.creator,
                created: now,
                expires: Some(expires),
            }),
        }
    }
}

/// A role for your plants. A field that is not known is an error
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(as = NewShare, examples(json!({"role": "reader"})))]
#[serde(deny_unknown_fields)]
pub struct ShareRequest {
    role: Role,
}

impl ShareRequest {
    pub fn from_json(bytes: &[u8]) -> Result<Self, BodyError> {
        let mut object = JsonObject::parse(bytes, " with `role`")?;
        let role = object.required("role", role);
        object.reject_unknown();
        object.finish(role.map(|role| Self { role }))
    }

    /// Returns the role, if a token with these scopes can do all that the role allows.
    pub fn role(self, scopes: Scopes) -> Result<Role, TokenRequestError> {
        let missing = Scopes::of_role(self.role).without(scopes);
        if missing.is_empty() { Ok(self.role) } else { Err(TokenRequestError::Role(missing)) }
    }
}

fn label(raw: &RawValue) -> Checked<TokenLabel> {
    let text =
        string(raw)?.ok_or_else(|| (FieldErrorKind::Rule, "must not hold an unpaired surrogate escape".to_owned()));
    text.and_then(|text| {
        TokenLabel::parse(&text).map_err(|error| (FieldErrorKind::Rule, format!("is not valid: {error}")))
    })
}

fn scopes(raw: &RawValue) -> Checked<Scopes> {
    let wrong = || (FieldErrorKind::Type, format!("must be an array with at least one of: {}", Scopes::ALL));
    let names: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(|_| wrong())?;
    let known = names.into_iter().map(|name| Scope::from_name(&string(name).ok()??)).collect::<Option<Vec<_>>>();
    known.filter(|known| !known.is_empty()).map(Scopes::of).ok_or_else(wrong)
}

fn boolean(raw: &RawValue) -> Checked<bool> {
    serde_json::from_str(raw.get()).map_err(|_| (FieldErrorKind::Type, "must be `true` or `false`".to_owned()))
}

fn expiry(raw: &RawValue, now: Timestamp) -> Checked<Timestamp> {
    let wrong = |detail: &str| (FieldErrorKind::Type, detail.to_owned());
    let text = string(raw)?.filter(|text| has_rfc_3339_form(text));
    let time = text.and_then(|text| text.parse().ok());
    let time =
        time.map(whole_seconds).ok_or_else(|| wrong("must be a time such as 2030-01-31T12:00:00Z (RFC 3339)"))?;
    if time > now { Ok(time) } else { Err(wrong("must be in the future")) }
}

fn role(raw: &RawValue) -> Checked<Role> {
    let role = string(raw)?.and_then(|name| Role::from_name(&name));
    role.ok_or_else(|| (FieldErrorKind::Type, "must be `reader` or `editor`".to_owned()))
}

/// Checks for the form of RFC 3339, because the parser accepts others, too.
fn has_rfc_3339_form(text: &str) -> bool {
    let form = |character: char| match character {
        '0'..='9' => '9',
        other => other.to_ascii_uppercase(),
    };
    let text: String = text.chars().map(form).collect();
    let Some(rest) = text.strip_prefix("9999-99-99T99:99:99") else { return false };
    let offset = rest.strip_prefix('.').map_or(rest, |fraction| fraction.trim_start_matches('9'));
    !rest.starts_with(".Z") && matches!(offset, "Z" | "+99:99" | "-99:99")
}

/// Removes the fraction of a second, because the store has whole seconds.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
