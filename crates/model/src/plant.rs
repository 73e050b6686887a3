//! Plants: the types for input ([`NewPlant`]) and output ([`Plant`]), and their validation.
//!
//! Input is parsed once, here, into types whose fields are private, so that a [`NewPlant`] is always valid.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Maximum length of a name, in characters (Unicode scalar values).
pub const NAME_MAX_CHARS: usize = 1_000;
/// Maximum length of a tag, in characters (Unicode scalar values).
pub const TAG_MAX_CHARS: usize = 200;

const FIELDS: [&[u8]; 3] = [b"id", b"name", b"tag"];
/// Maximum number of repeated unknown keys that an error message names.
const REPEATED_KEYS_SHOWN: usize = 5;
/// Maximum number of characters of such a key in the message.
const KEY_SHOWN_CHARS: usize = 40;

/// Id of a plant, chosen by the client: any 64-bit signed integer, unique per owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PlantId(i64);

impl PlantId {
    pub const fn new(value: i64) -> Self {
        Self(value)
    }

    pub const fn get(self) -> i64 {
        self.0
    }

    /// Parses a JSON integer literal: no plus sign, leading zero, fraction, exponent or space.
    pub fn parse(text: &str) -> Result<Self, PlantIdError> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let canonical = digits == "0" || !digits.starts_with('0');
        if digits.is_empty() || !canonical || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(PlantIdError::NotAnInteger);
        }
        text.parse().map(Self).map_err(|_| PlantIdError::OutOfRange)
    }
}

impl fmt::Display for PlantId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The reason why a text is not a [`PlantId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlantIdError {
    #[error("must be an integer such as 42 or -7, without leading zeros, fraction or exponent")]
    NotAnInteger,
    #[error("must lie between -9223372036854775808 and 9223372036854775807")]
    OutOfRange,
}

/// Name of a plant, stored exactly as sent: 1 to [`NAME_MAX_CHARS`] characters, no control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlantName(String);

impl PlantName {
    pub fn parse(text: String) -> Result<Self, TextErrors> {
        Self::check(&text).map(|()| Self(text))
    }

    /// Validates a text without copying it.
    pub fn check(text: &str) -> Result<(), TextErrors> {
        check_text(text, 1, NAME_MAX_CHARS)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Tag of a plant, stored exactly as sent: up to [`TAG_MAX_CHARS`] characters, no control characters; may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(String);

impl Tag {
    pub fn parse(text: String) -> Result<Self, TextErrors> {
        Self::check(&text).map(|()| Self(text))
    }

    /// Validates a text without copying it.
    pub fn check(text: &str) -> Result<(), TextErrors> {
        check_text(text, 0, TAG_MAX_CHARS)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Every reason why a text is not a valid name or tag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", join(.0, " and "))]
pub struct TextErrors(Vec<TextError>);

/// One reason why a text is not a valid name or tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    #[error("must have {min} to {max} characters, has {has}")]
    Length { min: usize, max: usize, has: usize },
    /// The code point of a character of the Unicode category Cc.
    #[error("must not hold control characters (found U+{0:04X})")]
    Control(u32),
    /// An escape for one half of a surrogate pair, which is not a character.
    #[error("must not hold an unpaired surrogate escape")]
    Surrogate,
}

fn check_text(text: &str, min: usize, max: usize) -> Result<(), TextErrors> {
    let mut errors = Vec::new();
    // A text of at most `max` bytes has at most `max` characters, so only a longer one is counted.
    let has = if text.len() <= max { text.len() } else { text.chars().count() };
    if has < min || has > max {
        errors.push(TextError::Length { min, max, has });
    }
    if let Some(control) = text.chars().find(|character| character.is_control()) {
        errors.push(TextError::Control(u32::from(control)));
    }
    if errors.is_empty() { Ok(()) } else { Err(TextErrors(errors)) }
}

/// A plant as it is serialised in responses and exports.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plant<'a> {
    /// Present if the client asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<PlantId>,
    /// Name of the owner; present if the client asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<&'a str>,
    pub name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<&'a str>,
}

/// A valid plant to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPlant {
    pub id: PlantId,
    pub name: PlantName,
    pub tag: Option<Tag>,
}

impl NewPlant {
    /// Parses one JSON object and reports all errors together. A tag of `null` counts as none.
    pub fn from_json(bytes: &[u8]) -> Result<Self, BadPlant> {
        let text = std::str::from_utf8(bytes).map_err(|_| BadPlant::NotJson("it is not UTF-8 text".to_owned()))?;
        if text.trim_ascii().is_empty() {
            return Err(BadPlant::NotJson("it is empty".to_owned()));
        }
        // The syntax is checked first, so that an integer out of range or a value of the wrong type is not reported as
        // invalid JSON.
        let whole: &RawValue = serde_json::from_str(text).map_err(|error| BadPlant::NotJson(describe(&error)))?;
        if !whole.get().starts_with('{') {
            return Err(BadPlant::NotAnObject);
        }
        let fields: RawFields<'_> =
            serde_json::from_str(whole.get()).map_err(|error| BadPlant::NotJson(describe(&error)))?;
        fields.check()
    }

    /// Returns the plant as the response to its creation shows it.
    pub fn shown(&self) -> Plant<'_> {
        Plant { id: None, owner: None, name: self.name.as_str(), tag: self.tag.as_ref().map(Tag::as_str) }
    }
}

/// Returns the message of the JSON parser with its internal terms replaced.
fn describe(error: &serde_json::Error) -> String {
    let message = error.to_string().replace("EOF while parsing", "it ends in the middle of");
    message.replace("expected ident", "a word other than true, false and null")
}

/// The reason why a body is not a [`NewPlant`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPlant {
    #[error("the body is not JSON: {0}")]
    NotJson(String),
    #[error("the body must be a JSON object with `id` and `name`")]
    NotAnObject,
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
    /// The wrong type, an integer out of range, or a repeated key.
    Type,
    /// The wrong length, or a character that is not allowed.
    Rule,
}

fn join(errors: &[impl fmt::Display], separator: &str) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}

/// The members of the JSON object, with unparsed values.
#[derive(Default)]
struct RawFields<'a> {
    id: Option<&'a RawValue>,
    name: Option<&'a RawValue>,
    tag: Option<&'a RawValue>,
    repeated: BTreeSet<JsonKey>,
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

impl<'de> Deserialize<'de> for RawFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = RawFields<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
                let mut fields = RawFields::default();
                let mut unknown = BTreeSet::new();
                while let Some(key) = members.next_key::<JsonKey>()? {
                    let value: &RawValue = members.next_value()?;
                    let first = match &*key.0 {
                        b"id" => fields.id.replace(value).is_none(),
                        b"name" => fields.name.replace(value).is_none(),
                        b"tag" => fields.tag.replace(value).is_none(),
                        _ => unknown.insert(key.clone()),
                    };
                    if !first {
                        fields.repeated.insert(key);
                    }
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(FieldsVisitor)
    }
}

impl RawFields<'_> {
    fn check(self) -> Result<NewPlant, BadPlant> {
        let mut errors = Vec::new();
        let (known, unknown): (Vec<_>, Vec<_>) =
            self.repeated.iter().map(|JsonKey(key)| key.as_slice()).partition(|key| FIELDS.contains(key));
        for key in known.into_iter().chain(unknown.into_iter().take(REPEATED_KEYS_SHOWN)) {
            // The client chose the key: it is shortened and escaped, so that the message stays one short line.
            let text = String::from_utf8_lossy(key);
            let field = text.chars().take(KEY_SHOWN_CHARS).flat_map(char::escape_debug).collect();
            errors.push(FieldError { field, kind: FieldErrorKind::Type, detail: "is given more than once".to_owned() });
        }
        let id = required("id", self.id, &mut errors, |raw| {
            PlantId::parse(raw.get()).map_err(|error| (FieldErrorKind::Type, error.to_string()))
        });
        let name = required("name", self.name, &mut errors, |raw| text(raw, PlantName::parse));
        let tag = self.tag.filter(|raw| raw.get() != "null");
        let tag = tag.map(|raw| checked("tag", raw, &mut errors, |raw| text(raw, Tag::parse)));
        match (id, name) {
            (Some(id), Some(name)) if errors.is_empty() => Ok(NewPlant { id, name, tag: tag.flatten() }),
            _ => Err(BadPlant::Fields(errors)),
        }
    }
}

type Checked<T> = Result<T, (FieldErrorKind, String)>;

fn required<T>(
    field: &str,
    raw: Option<&RawValue>,
    errors: &mut Vec<FieldError>,
    parse: impl Fn(&RawValue) -> Checked<T>,
) -> Option<T> {
    if let Some(raw) = raw {
        return checked(field, raw, errors, parse);
    }
    errors.push(FieldError {
        field: field.to_owned(),
        kind: FieldErrorKind::Missing,
        detail: "is required".to_owned(),
    });
    None
}

fn checked<T>(
    field: &str,
    raw: &RawValue,
    errors: &mut Vec<FieldError>,
    parse: impl Fn(&RawValue) -> Checked<T>,
) -> Option<T> {
    match parse(raw) {
        Ok(value) => Some(value),
        Err((kind, detail)) => {
            errors.push(FieldError { field: field.to_owned(), kind, detail });
            None
        }
    }
}

fn text<T>(raw: &RawValue, parse: fn(String) -> Result<T, TextErrors>) -> Checked<T> {
    if !raw.get().starts_with('"') {
        return Err((FieldErrorKind::Type, "must be a string".to_owned()));
    }
    // The syntax is known to be valid, so this can only fail at an unpaired surrogate.
    let decoded = serde_json::from_str(raw.get()).map_err(|_| TextErrors(vec![TextError::Surrogate]));
    decoded.and_then(parse).map_err(|error| (FieldErrorKind::Rule, error.to_string()))
}
