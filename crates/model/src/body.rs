//! Request bodies: one JSON object each, whose fields are checked one by one, so that all errors are reported together.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// Maximum number of unknown keys that an error message names, of those that are repeated and of those that are not allowed.
const UNKNOWN_KEYS_SHOWN: usize = 5;
/// Maximum number of characters of such a key in the message.
const KEY_SHOWN_CHARS: usize = 40;

/// The reason why a body is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the body is not JSON: {0}")]
    NotJson(String),
    /// With the required fields, in the words of a sentence.
    #[error("the body must be a JSON object{0}")]
    NotAnObject(&'static str),
    /// An object with one or more errors, in the order of the fields.
    #[error("{}", join(.0, "; "))]
    Fields(Vec<FieldError>),
}

/// An error in one field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` {detail}")]
pub struct FieldError {
    pub field: String,
    pub kind: FieldErrorKind,
    /// The predicate of a sentence about the field, such as "is required".
    pub detail: String,
}

/// Kinds of field errors, in the order of precedence: the lowest of a body decides the error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldErrorKind {
    Missing,
    /// The wrong type, a value out of range, or a repeated key.
    Type,
    /// The wrong length, or a character that is not allowed.
    Rule,
    /// A field that the body must not have.
    Unknown,
}

pub(crate) fn join(errors: &[impl fmt::Display], separator: &str) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}

/// Result of parsing one value.
pub(crate) type Checked<T> = Result<T, (FieldErrorKind, String)>;

/// The members of a JSON object. Their values are not parsed yet.
pub(crate) struct JsonObject<'a> {
    members: Members<'a>,
    /// The fields that were asked for.
    known: Vec<&'static str>,
    errors: Vec<FieldError>,
}

impl<'a> JsonObject<'a> {
    /// Parses a body. `required` names the fields that must be present, for the error message about a body that is not an
    /// object.
    pub(crate) fn parse(bytes: &'a [u8], required: &'static str) -> Result<Self, BodyError> {
        let text = std::str::from_utf8(bytes).map_err(|_| BodyError::NotJson("it is not UTF-8 text".to_owned()))?;
        if text.trim_ascii().is_empty() {
            return Err(BodyError::NotJson("it is empty".to_owned()));
        }
        let members = serde_json::from_str(text).map_err(|_| match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => BodyError::NotAnObject(required),
            Err(error) => BodyError::NotJson(describe(&error)),
        })?;
        Ok(Self { members, known: Vec::new(), errors: Vec::new() })
    }

    /// Parses a field that must be present.
    pub(crate) fn required<T>(&mut self, field: &'static str, parse: impl Fn(&RawValue) -> Checked<T>) -> Option<T> {
        let raw = self.take(field);
        if raw.is_none() {
            self.reject(field, FieldErrorKind::Missing, "is required".to_owned());
        }
        self.check(raw, field, parse)
    }

    /// Parses a field that may be absent, but not `null`.
    pub(crate) fn if_present<T>(&mut self, field: &'static str, parse: impl Fn(&RawValue) -> Checked<T>) -> Option<T> {
        let raw = self.take(field);
        self.check(raw, field, parse)
    }

    /// Parses a field that may be absent; `null` counts as absent.
    pub(crate) fn optional<T>(&mut self, field: &'static str, parse: impl Fn(&RawValue) -> Checked<T>) -> Option<T> {
        let raw = self.take(field).filter(|raw| raw.get() != "null");
        self.check(raw, field, parse)
    }

    fn take(&mut self, field: &'static str) -> Option<&'a RawValue> {
        self.known.push(field);
        // Of a repeated key, the last value is checked.
        self.members.values.iter().rfind(|(key, _)| key == field).map(|(_, raw)| *raw)
    }

    fn check<T>(&mut self, raw: Option<&RawValue>, field: &str, parse: impl Fn(&RawValue) -> Checked<T>) -> Option<T> {
        parse(raw?).map_err(|(kind, detail)| self.reject(field, kind, detail)).ok()
    }

    fn reject(&mut self, field: &str, kind: FieldErrorKind, detail: String) {
        self.errors.push(FieldError { field: field.to_owned(), kind, detail });
    }

    /// Rejects fields that were not asked for.
    pub(crate) fn reject_unknown(&mut self) {
        let detail = format!("is not known here: the fields are `{}`", join(&self.known, "`, `"));
        let keys = self.members.values.iter().map(|(key, _)| key.to_string());
        let mut unknown: Vec<_> = keys.filter(|key| !self.known.contains(&key.as_str())).collect();
        unknown.dedup();
        for key in unknown.iter().take(UNKNOWN_KEYS_SHOWN) {
            self.reject(&shown(key), FieldErrorKind::Unknown, detail.clone());
        }
    }

    /// Returns the parsed body, or the errors of all fields: those about repeated keys first.
    pub(crate) fn finish<T>(self, body: Option<T>) -> Result<T, BodyError> {
        match body {
            Some(body) if self.errors.is_empty() && self.members.repeated.is_empty() => return Ok(body),
            _ => {}
        }
        let is_known = |key: &String| self.known.contains(&key.as_str());
        let (known, unknown): (Vec<_>, Vec<_>) = self.members.repeated.into_iter().partition(is_known);
        let shown = known.into_iter().chain(unknown.into_iter().take(UNKNOWN_KEYS_SHOWN)).map(|key| shown(&key));
        let detail = || "is given more than once".to_owned();
        let repeated = shown.map(|field| FieldError { field, kind: FieldErrorKind::Type, detail: detail() });
        Err(BodyError::Fields(repeated.chain(self.errors).collect()))
    }
}

/// Parses a JSON object without repeated names, which parsers would read in different ways; `None` if it is anything else.
pub fn unique_members(json: &[u8]) -> Option<BTreeMap<String, Value>> {
    let Members { values, repeated } = serde_json::from_slice(json).ok()?;
    let member =
        |(name, raw): (Cow<'_, str>, &RawValue)| Some((name.into_owned(), serde_json::from_str(raw.get()).ok()?));
    if repeated.is_empty() { values.into_iter().map(member).collect() } else { None }
}

/// Decodes a value that must be a string. `None` for an escape of half a surrogate pair, which is not a character.
pub(crate) fn string(raw: &RawValue) -> Checked<Option<String>> {
    if !raw.get().starts_with('"') {
        return Err((FieldErrorKind::Type, "must be a string".to_owned()));
    }
    // The syntax is known to be valid, so decoding an escape can only fail at an unpaired surrogate.
    let text = raw.get();
    Ok(if text.contains('\\') { serde_json::from_str(text).ok() } else { Some(text[1..text.len() - 1].to_owned()) })
}

/// Returns the message of the JSON parser with its internal terms replaced.
fn describe(error: &serde_json::Error) -> String {
    let message = error.to_string().replace("EOF while parsing", "it ends in the middle of");
    message.replace("expected ident", "a word other than true, false and null")
}

/// Returns a key for a message. The client chose it: it is shortened and escaped, so that the message stays one short line.
fn shown(key: &str) -> String {
    key.chars().take(KEY_SHOWN_CHARS).flat_map(char::escape_debug).collect()
}

/// The members of an object, sorted by key, and the keys that are repeated.
struct Members<'a> {
    values: Vec<(Cow<'a, str>, &'a RawValue)>,
    repeated: BTreeSet<String>,
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut values: Vec<(Cow<'de, str>, &RawValue)> = Vec::new();
                while let Some(key) = map.next_key::<&RawValue>()? {
                    let quoted = key.get();
                    let decoded = if quoted.contains('\\') {
                        // A key with an unpaired surrogate, which is not a character, stays as it is written.
                        serde_json::from_str(quoted).map_or(Cow::Borrowed(quoted), Cow::Owned)
                    } else {
                        Cow::Borrowed(&quoted[1..quoted.len() - 1])
                    };
                    values.push((decoded, map.next_value()?));
                }
                // Members with the same key stay in their order.
                values.sort_by(|(key, _), (other, _)| key.cmp(other));
                let repeated = values.windows(2).filter(|pair| pair[0].0 == pair[1].0);
                let repeated = repeated.map(|pair| pair[0].0.to_string()).collect();
                Ok(Members { values, repeated })
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}
