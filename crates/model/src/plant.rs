//! Plants: the types for input ([`NewPlant`]) and output ([`Plant`]), and their validation.
//!
//! Input is parsed once, here, into types whose fields are private, so that a [`NewPlant`] is always valid.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::body::{BodyError, Checked, FieldErrorKind, JsonObject, join, string};
use crate::user::UserName;

/// Maximum length of a name, in characters (Unicode scalar values).
pub const NAME_MAX_CHARS: usize = 1_000;
/// Maximum length of a tag, in characters (Unicode scalar values).
pub const TAG_MAX_CHARS: usize = 200;

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

/// Name of a plant.
pub type PlantName = PlantText<1, NAME_MAX_CHARS>;
/// Tag of a plant, which may be empty.
pub type Tag = PlantText<0, TAG_MAX_CHARS>;

/// Text stored exactly as sent: `MIN` to `MAX` characters, no control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlantText<const MIN: usize, const MAX: usize>(String);

impl<const MIN: usize, const MAX: usize> PlantText<MIN, MAX> {
    pub fn parse(text: String) -> Result<Self, TextErrors> {
        Self::check(&text).map(|()| Self(text))
    }

    /// Validates a text without copying it.
    pub fn check(text: &str) -> Result<(), TextErrors> {
        let mut errors = Vec::new();
        // A text of at most `MAX` bytes has at most `MAX` characters, so only a longer one is counted.
        let has = if text.len() <= MAX { text.len() } else { text.chars().count() };
        if has < MIN || has > MAX {
            errors.push(TextError::Length { min: MIN, max: MAX, has });
        }
        if let Some(control) = text.chars().find(|character| character.is_control()) {
            errors.push(TextError::Control(u32::from(control)));
        }
        if errors.is_empty() { Ok(()) } else { Err(TextErrors(errors)) }
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

/// A plant, as responses and exports have it
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(examples(json!({"name": "Monstera", "tag": "indoor"})))]
pub struct Plant<'a> {
    /// Present with `include=id`
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub id: Option<PlantId>,
    /// The name of the owner; present with `include=owner`
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<UserName>, nullable = false)]
    pub owner: Option<&'a str>,
    #[schema(value_type = PlantName)]
    pub name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Tag>, nullable = false)]
    pub tag: Option<&'a str>,
}

impl Plant<'_> {
    /// Appends the plant to a text in JSON, as its `Serialize` does, but with half the instructions.
    pub fn write_json(&self, json: &mut Vec<u8>) {
        json.push(b'{');
        if let Some(id) = self.id {
            json.extend_from_slice(b"\"id\":");
            // Writing to memory does not fail.
            let _ = serde_json::to_writer(&mut *json, &id);
            json.push(b',');
        }
        if let Some(owner) = self.owner {
            json.extend_from_slice(b"\"owner\":");
            write_string(owner, json);
            json.push(b',');
        }
        json.extend_from_slice(b"\"name\":");
        write_string(self.name, json);
        if let Some(tag) = self.tag {
            json.extend_from_slice(b",\"tag\":");
            write_string(tag, json);
        }
        json.push(b'}');
    }
}

/// Appends a string in JSON. Nearly all are plain, which is found out for 8 bytes at a time.
fn write_string(text: &str, json: &mut Vec<u8>) {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    // The highest bit of some byte is set if a byte of the word is below the limit, which is at most 128.
    let below = |limit: u64, word: u64| word.wrapping_sub(EACH * limit) & !word;
    let special = |bytes: &[u8; 8]| {
        let word = u64::from_ne_bytes(*bytes);
        let is = |byte: u8| below(1, word ^ (EACH * u64::from(byte)));
        below(0x20, word) | is(b'"') | is(b'\\')
    };
    let (words, rest) = text.as_bytes().as_chunks();
    let mut last = [b' '; 8];
    last[..rest.len()].copy_from_slice(rest);
    let found = words.iter().fold(special(&last), |found, word| found | special(word));
    if found & (EACH << 7) == 0 {
        json.push(b'"');
        json.extend_from_slice(text.as_bytes());
        json.push(b'"');
    } else {
        // Writing to memory does not fail.
        let _ = serde_json::to_writer(json, text);
    }
}

/// A plant to create
#[derive(Clone, Debug, PartialEq, Eq, ToSchema)]
#[schema(examples(json!({"id": 1, "name": "Monstera", "tag": "indoor"})))]
pub struct NewPlant {
    pub id: PlantId,
    pub name: PlantName,
    pub tag: Option<Tag>,
}

impl NewPlant {
    /// Parses one JSON object and reports all errors together. A tag of `null` counts as none, and
    /// unknown fields are ignored.
    pub fn from_json(bytes: &[u8]) -> Result<Self, BodyError> {
        if let Some(plant) = Self::from_plain_json(bytes) {
            return Ok(plant);
        }
        let mut object = JsonObject::parse(bytes, " with `id` and `name`")?;
        let id = object.required("id", parse_id);
        Self::finish(object, id)
    }

    /// Parses an object with all fields known and valid, as nearly all bodies are. It takes fewer instructions, and finds no errors.
    fn from_plain_json(bytes: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct PlainPlant {
            id: i64,
            name: String,
            tag: Option<String>,
        }

        // An array would pass for the fields in their order.
        let PlainPlant { id, name, tag } = serde_json::from_slice(bytes).ok().filter(|_| bytes.starts_with(b"{"))?;
        let tag = tag.map(Tag::parse).transpose().ok()?;
        Some(Self { id: PlantId(id), name: PlantName::parse(name).ok()?, tag })
    }

    /// Parses the name and the tag that replace those of the plant `id`, by the same rules. The object may have this id.
    pub fn replacing(id: PlantId, bytes: &[u8]) -> Result<Self, BodyError> {
        let mut object = JsonObject::parse(bytes, " with `name`")?;
        object.if_present("id", |raw| match parse_id(raw)? {
            same if same == id => Ok(same),
            _ => Err((FieldErrorKind::Type, format!("must be {id}, as in the path, or absent"))),
        });
        Self::finish(object, Some(id))
    }

    fn finish(mut object: JsonObject<'_>, id: Option<PlantId>) -> Result<Self, BodyError> {
        let name = object.required("name", |raw| text(raw, PlantName::parse));
        let tag = object.optional("tag", |raw| text(raw, Tag::parse));
        object.finish(id.zip(name).map(|(id, name)| Self { id, name, tag }))
    }

    /// Returns the plant as the response to its creation or replacement shows it.
    pub fn shown(&self) -> Plant<'_> {
        Plant { id: None, owner: None, name: self.name.as_str(), tag: self.tag.as_ref().map(Tag::as_str) }
    }
}

fn parse_id(raw: &RawValue) -> Checked<PlantId> {
    PlantId::parse(raw.get()).map_err(|error| (FieldErrorKind::Type, error.to_string()))
}

fn text<T>(raw: &RawValue, parse: fn(String) -> Result<T, TextErrors>) -> Checked<T> {
    let decoded = string(raw)?.ok_or(TextErrors(vec![TextError::Surrogate]));
    decoded.and_then(parse).map_err(|error| (FieldErrorKind::Rule, error.to_string()))
}
