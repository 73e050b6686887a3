//! Plants: what a client may send, what the service shows, and the rules between the two.
//!
//! Parsing happens once, here, into types whose fields are private: whatever holds a [`NewPlant`] holds one that keeps
//! every rule. This module knows nothing of HTTP or SQL.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Longest name, in characters (Unicode scalar values).
pub const NAME_MAX_CHARS: usize = 1_000;
/// Longest tag, in characters (Unicode scalar values).
pub const TAG_MAX_CHARS: usize = 200;

/// The fields of a plant.
const FIELDS: [&[u8]; 3] = [b"id", b"name", b"tag"];
/// Unknown keys given twice that are named in an answer: enough to see the fault, too few to grow the answer.
const REPEATED_SHOWN: usize = 5;
/// Characters of such a key that are shown.
const KEY_SHOWN_CHARS: usize = 40;

/// The number a client gave its plant: any 64-bit signed integer, unique per user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PlantId(i64);

impl PlantId {
    /// The id with this value.
    pub const fn new(value: i64) -> Self {
        Self(value)
    }

    /// The value as the store keeps it.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Reads an integer literal as JSON writes it: no plus sign, no leading zero, no fraction, no exponent, no space.
    pub fn parse(text: &str) -> Result<Self, IdFault> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let canonical = digits == "0" || !digits.starts_with('0');
        if digits.is_empty() || !canonical || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(IdFault::NotAnInteger);
        }
        text.parse().map(Self).map_err(|_| IdFault::OutOfRange)
    }
}

impl fmt::Display for PlantId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Why a text is not a [`PlantId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdFault {
    /// Not an integer literal.
    #[error("must be an integer such as 42 or -7, without leading zeros, fraction or exponent")]
    NotAnInteger,
    /// An integer, but not one of 64 bits.
    #[error("must lie between -9223372036854775808 and 9223372036854775807")]
    OutOfRange,
}

/// A plant's name, kept exactly as sent: 1 to [`NAME_MAX_CHARS`] characters, no control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlantName(String);

impl PlantName {
    /// Checks the rules of a name.
    pub fn parse(text: String) -> Result<Self, TextFaults> {
        Self::check(&text).map(|()| Self(text))
    }

    /// The same for a text that is stored already.
    pub fn check(text: &str) -> Result<(), TextFaults> {
        check_text(text, 1, NAME_MAX_CHARS)
    }

    /// The text as it was sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A plant's tag, kept exactly as sent: up to [`TAG_MAX_CHARS`] characters, no control characters; may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(String);

impl Tag {
    /// Checks the rules of a tag.
    pub fn parse(text: String) -> Result<Self, TextFaults> {
        Self::check(&text).map(|()| Self(text))
    }

    /// The same for a text that is stored already.
    pub fn check(text: &str) -> Result<(), TextFaults> {
        check_text(text, 0, TAG_MAX_CHARS)
    }

    /// The text as it was sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// All that keeps a text from being a name or a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFaults(Vec<TextFault>);

impl fmt::Display for TextFaults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { " and " };
            write!(formatter, "{separator}{fault}")?;
        }
        Ok(())
    }
}

/// One thing that keeps a text from being a name or a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextFault {
    /// Too short or too long.
    #[error("must have {min} to {max} characters, has {has}")]
    Length {
        /// Fewest characters allowed.
        min: usize,
        /// Most characters allowed.
        max: usize,
        /// Characters found.
        has: usize,
    },
    /// Holds a character of the Unicode category Cc.
    #[error("must not hold control characters (found U+{0:04X})")]
    Control(u32),
    /// Holds half of a surrogate pair, which is no character.
    #[error("must not hold an unpaired surrogate escape")]
    Surrogate,
}

fn check_text(text: &str, min: usize, max: usize) -> Result<(), TextFaults> {
    let mut faults = Vec::new();
    // A text of at most `max` bytes has at most `max` characters: counting is for the long ones.
    let has = if text.len() <= max { text.len() } else { text.chars().count() };
    if has < min || has > max {
        faults.push(TextFault::Length { min, max, has });
    }
    if let Some(control) = text.chars().find(|character| character.is_control()) {
        faults.push(TextFault::Control(u32::from(control)));
    }
    if faults.is_empty() { Ok(()) } else { Err(TextFaults(faults)) }
}

/// The shape the service shows: borrowed from wherever the plant is kept, `id` and `owner` only when they were asked for.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plant<'a> {
    /// Present when the client opted in to seeing ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<PlantId>,
    /// Whose it is; present when the client opted in to seeing that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<&'a str>,
    /// The name, as sent.
    pub name: &'a str,
    /// The tag, if one was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<&'a str>,
}

/// A plant that a client asks to create; every rule is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPlant {
    /// The client's own number for it.
    pub id: PlantId,
    /// Its name.
    pub name: PlantName,
    /// Its tag; `null` counts as none.
    pub tag: Option<Tag>,
}

impl NewPlant {
    /// Reads one JSON object, reporting all its faults together.
    pub fn from_json(bytes: &[u8]) -> Result<Self, BadPlant> {
        let text = std::str::from_utf8(bytes).map_err(|_| BadPlant::NotJson("it is not UTF-8 text".to_owned()))?;
        if text.trim_ascii().is_empty() {
            return Err(BadPlant::NotJson("it is empty".to_owned()));
        }
        // First the grammar of the whole, so that a number too large for a machine or a value of another type is
        // still told apart from bytes that are no JSON.
        let whole: &RawValue = serde_json::from_str(text).map_err(|fault| BadPlant::NotJson(in_words(&fault)))?;
        if !whole.get().starts_with('{') {
            return Err(BadPlant::NotAnObject);
        }
        let fields: Fields<'_> =
            serde_json::from_str(whole.get()).map_err(|fault| BadPlant::NotJson(in_words(&fault)))?;
        fields.check()
    }

    /// The shape the service answers with.
    pub fn shown(&self) -> Plant<'_> {
        Plant { id: None, owner: None, name: self.name.as_str(), tag: self.tag.as_ref().map(Tag::as_str) }
    }
}

/// The message of the JSON parser without its internal terms.
fn in_words(fault: &serde_json::Error) -> String {
    let message = fault.to_string().replace("EOF while parsing", "it ends in the middle of");
    message.replace("expected ident", "a word other than true, false and null")
}

/// Why a body is no [`NewPlant`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPlant {
    /// The bytes are not one JSON value.
    #[error("the body is not JSON: {0}")]
    NotJson(String),
    /// JSON, but not an object.
    #[error("the body must be a JSON object with `id` and `name`")]
    NotAnObject,
    /// An object with one or more faults, in the order of its fields.
    #[error("{}", Faults(.0))]
    Fields(Vec<Fault>),
}

/// One fault of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The field at fault.
    pub field: String,
    /// What kind of fault.
    pub kind: FaultKind,
    /// What is wrong, completing a sentence that starts with the field.
    pub detail: String,
}

/// The kinds of fault, the gravest first: with several faults in one body the first kind names the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A required field is absent.
    Missing,
    /// A field has another type, is out of range, or is given twice.
    Type,
    /// A field breaks a rule of length or characters.
    Rule,
}

struct Faults<'a>(&'a [Fault]);

impl fmt::Display for Faults<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(formatter, "{separator}`{}` {}", fault.field, fault.detail)?;
        }
        Ok(())
    }
}

/// The members of the object as they stand, each value still raw text.
#[derive(Default)]
struct Fields<'a> {
    id: Option<&'a RawValue>,
    name: Option<&'a RawValue>,
    tag: Option<&'a RawValue>,
    repeated: BTreeSet<Key>,
}

/// A key of the object, decoded; in bytes, because an escape in it may stand for no character.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key(Vec<u8>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Key;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a key")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Key, E> {
                Ok(Key(bytes.to_owned()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(Key(text.as_bytes().to_owned()))
            }
        }

        deserializer.deserialize_byte_buf(Bytes)
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Fields<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
                let mut fields = Fields::default();
                let mut unknown = BTreeSet::new();
                while let Some(key) = members.next_key::<Key>()? {
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

        deserializer.deserialize_map(Members)
    }
}

impl Fields<'_> {
    fn check(self) -> Result<NewPlant, BadPlant> {
        let mut faults = Vec::new();
        let (known, unknown): (Vec<_>, Vec<_>) =
            self.repeated.iter().map(|Key(key)| key.as_slice()).partition(|key| FIELDS.contains(key));
        for key in known.into_iter().chain(unknown.into_iter().take(REPEATED_SHOWN)) {
            // The key is the client's own text: shown shortened and escaped, so that the message stays one line.
            let text = String::from_utf8_lossy(key);
            let field = text.chars().take(KEY_SHOWN_CHARS).flat_map(char::escape_debug).collect();
            faults.push(Fault { field, kind: FaultKind::Type, detail: "is given more than once".to_owned() });
        }
        let id = required("id", self.id, &mut faults, |raw| {
            PlantId::parse(raw.get()).map_err(|fault| (FaultKind::Type, fault.to_string()))
        });
        let name = required("name", self.name, &mut faults, |raw| text(raw, PlantName::parse));
        let tag = self.tag.filter(|raw| raw.get() != "null");
        let tag = tag.map(|raw| checked("tag", raw, &mut faults, |raw| text(raw, Tag::parse)));
        match (id, name) {
            (Some(id), Some(name)) if faults.is_empty() => Ok(NewPlant { id, name, tag: tag.flatten() }),
            _ => Err(BadPlant::Fields(faults)),
        }
    }
}

type Checked<T> = Result<T, (FaultKind, String)>;

fn required<T>(
    field: &str,
    raw: Option<&RawValue>,
    faults: &mut Vec<Fault>,
    parse: impl Fn(&RawValue) -> Checked<T>,
) -> Option<T> {
    if let Some(raw) = raw {
        return checked(field, raw, faults, parse);
    }
    faults.push(Fault { field: field.to_owned(), kind: FaultKind::Missing, detail: "is required".to_owned() });
    None
}

fn checked<T>(
    field: &str,
    raw: &RawValue,
    faults: &mut Vec<Fault>,
    parse: impl Fn(&RawValue) -> Checked<T>,
) -> Option<T> {
    match parse(raw) {
        Ok(value) => Some(value),
        Err((kind, detail)) => {
            faults.push(Fault { field: field.to_owned(), kind, detail });
            None
        }
    }
}

fn text<T>(raw: &RawValue, parse: fn(String) -> Result<T, TextFaults>) -> Checked<T> {
    if !raw.get().starts_with('"') {
        return Err((FaultKind::Type, "must be a string".to_owned()));
    }
    // The grammar was checked with the whole body: what can still fail is an escape that stands for no character.
    let decoded = serde_json::from_str(raw.get()).map_err(|_| TextFaults(vec![TextFault::Surrogate]));
    decoded.and_then(parse).map_err(|fault| (FaultKind::Rule, fault.to_string()))
}
