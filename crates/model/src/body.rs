//! Request bodies: one JSON object each, whose fields are checked one by one, so that all errors are reported together.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Maximum number of repeated unknown keys that an error message names.
const REPEATED_KEYS_SHOWN: usize = 5;
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
}

pub(crate) fn join(errors: &[impl fmt::Display], separator: &str) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}

/// Result of parsing one value.
pub(crate) type Checked<T> = Result<T, (FieldErrorKind, String)>;

/// The members of a JSON object with `N` known fields. Their values are not parsed yet.
pub(crate) struct JsonObject<'a, const N: usize> {
    names: [&'static str; N],
    values: [Option<&'a RawValue>; N],
    errors: Vec<FieldError>,
}

impl<'a, const N: usize> JsonObject<'a, N> {
    /// Parses a body with these fields. Unknown fields are ignored. `required` names those that must be present, for the error
    /// message about a body that is not an object.
    pub(crate) fn parse(bytes: &'a [u8], names: [&'static str; N], required: &'static str) -> Result<Self, BodyError> {
        let text = std::str::from_utf8(bytes).map_err(|_| BodyError::NotJson("it is not UTF-8 text".to_owned()))?;
        if text.trim_ascii().is_empty() {
            return Err(BodyError::NotJson("it is empty".to_owned()));
        }
        // The syntax is checked first, so that an integer out of range or a value of the wrong type is not reported as
        // invalid JSON.
        let whole: &RawValue = serde_json::from_str(text).map_err(|error| BodyError::NotJson(describe(&error)))?;
        if !whole.get().starts_with('{') {
            return Err(BodyError::NotAnObject(required));
        }
        let mut deserializer = serde_json::Deserializer::from_str(whole.get());
        let members = Members { names: &names }.deserialize(&mut deserializer);
        let (values, repeated) = members.map_err(|error| BodyError::NotJson(describe(&error)))?;
        Ok(Self { names, values, errors: repeated_keys(&names, &repeated) })
    }

    /// Parses a field that must be present.
    pub(crate) fn required<T>(&mut self, field: usize, parse: impl Fn(&RawValue) -> Checked<T>) -> Option<T> {
        if self.values[field].is_none() {
            self.reject(field, FieldErrorKind::Missing, "is required".to_owned());
        }
        self.check(self.values[field], field, parse)
    }

    /// Parses a field that may be absent; `null` counts as absent.
    pub(crate) fn optional<T>(&mut self, field: usize, parse: impl Fn(&RawValue) -> Checked<T>) -> Option<T> {
        self.check(self.values[field].filter(|raw| raw.get() != "null"), field, parse)
    }

    fn check<T>(&mut self, raw: Option<&RawValue>, field: usize, parse: impl Fn(&RawValue) -> Checked<T>) -> Option<T> {
        parse(raw?).map_err(|(kind, detail)| self.reject(field, kind, detail)).ok()
    }

    fn reject(&mut self, field: usize, kind: FieldErrorKind, detail: String) {
        self.errors.push(FieldError { field: self.names[field].to_owned(), kind, detail });
    }

    /// Returns the parsed body, or the errors of all fields.
    pub(crate) fn finish<T>(self, body: Option<T>) -> Result<T, BodyError> {
        match body {
            Some(body) if self.errors.is_empty() => Ok(body),
            _ => Err(BodyError::Fields(self.errors)),
        }
    }
}

/// Decodes a value that must be a string. `None` for an escape of half a surrogate pair, which is not a character.
pub(crate) fn string(raw: &RawValue) -> Checked<Option<String>> {
    if !raw.get().starts_with('"') {
        return Err((FieldErrorKind::Type, "must be a string".to_owned()));
    }
    // The syntax is known to be valid, so this can only fail at an unpaired surrogate.
    Ok(serde_json::from_str(raw.get()).ok())
}

/// Returns the message of the JSON parser with its internal terms replaced.
fn describe(error: &serde_json::Error) -> String {
    let message = error.to_string().replace("EOF while parsing", "it ends in the middle of");
    message.replace("expected ident", "a word other than true, false and null")
}

/// Returns an error for each repeated key, those of known fields first.
fn repeated_keys(names: &[&str], repeated: &BTreeSet<JsonKey>) -> Vec<FieldError> {
    let is_known = |key: &&[u8]| names.iter().any(|name| name.as_bytes() == *key);
    let (known, unknown): (Vec<_>, Vec<_>) = repeated.iter().map(|JsonKey(key)| key.as_slice()).partition(is_known);
    let shown = known.into_iter().chain(unknown.into_iter().take(REPEATED_KEYS_SHOWN));
    let error = |key: &[u8]| {
        // The client chose the key: it is shortened and escaped, so that the message stays one short line.
        let text = String::from_utf8_lossy(key);
        let field = text.chars().take(KEY_SHOWN_CHARS).flat_map(char::escape_debug).collect();
        FieldError { field, kind: FieldErrorKind::Type, detail: "is given more than once".to_owned() }
    };
    shown.map(error).collect()
}

/// A decoded key of the object, in bytes, because an escape in it may be an unpaired surrogate.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct JsonKey(Vec<u8>);

impl<'de> Deserialize<'de> for JsonKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;

        impl Visitor<'_> for KeyVisitor {
            type Value = JsonKey;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a key")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<JsonKey, E> {
                Ok(JsonKey(bytes.to_owned()))
            }

            fn visit_str<E>(self, text: &str) -> Result<JsonKey, E> {
                Ok(JsonKey(text.as_bytes().to_owned()))
            }
        }

        deserializer.deserialize_byte_buf(KeyVisitor)
    }
}

/// Collects the values of the known fields and the keys that are repeated.
struct Members<'n, const N: usize> {
    names: &'n [&'static str; N],
}

impl<'de, const N: usize> DeserializeSeed<'de> for Members<'_, N> {
    type Value = ([Option<&'de RawValue>; N], BTreeSet<JsonKey>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, const N: usize> Visitor<'de> for Members<'_, N> {
    type Value = ([Option<&'de RawValue>; N], BTreeSet<JsonKey>);

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut values = [None; N];
        let (mut unknown, mut repeated) = (BTreeSet::new(), BTreeSet::new());
        while let Some(key) = members.next_key::<JsonKey>()? {
            let value: &RawValue = members.next_value()?;
            let first = match self.names.iter().position(|name| name.as_bytes() == key.0) {
                Some(field) => values[field].replace(value).is_none(),
                None => unknown.insert(key.clone()),
            };
            if !first {
                repeated.insert(key);
            }
        }
        Ok((values, repeated))
    }
}
