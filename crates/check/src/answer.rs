//! What a server answered, and how it is measured: every `expect` either holds or says what was expected and what came.

use serde_json::Value;

use super::Trouble;

/// Characters of what somebody else sent that are repeated in a message.
const SHOWN_CHARS: usize = 200;

/// An answer as it came.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// The request, as messages name it.
    pub(super) asked: String,
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// A plant as the service shows it, read with indulgence: one fault of shape is one check that fails, and not all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) id: Option<i64>,
    pub(super) name: String,
    pub(super) tag: Option<String>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// That something of the answer is not as it must be.
    pub(super) fn broken(&self, expected: impl std::fmt::Display) -> Trouble {
        let body = String::from_utf8_lossy(&self.body);
        let got = if body.is_empty() { String::new() } else { format!(" with {}", shown(&body)) };
        Trouble::Broken(format!("{}: expected {expected}, got {}{got}", shown(&self.asked), self.status))
    }

    pub(super) fn expect(&self, holds: bool, expected: impl std::fmt::Display) -> Result<(), Trouble> {
        if holds { Ok(()) } else { Err(self.broken(expected)) }
    }

    pub(super) fn expect_status(&self, status: u16) -> Result<(), Trouble> {
        self.expect(self.status == status, format_args!("status {status}"))
    }

    /// That it was done. Which status says so is a check of its own.
    pub(super) fn expect_success(&self) -> Result<(), Trouble> {
        self.expect(self.is_success(), "success")
    }

    pub(super) fn expect_header(&self, name: &str, value: &str) -> Result<(), Trouble> {
        let got = self.header(name);
        let found = got.map_or_else(|| "none".to_owned(), |got| format!("`{}`", shown(got)));
        self.expect(got == Some(value), format_args!("the header `{name}: {value}` (it is {found})"))
    }

    /// That it is an error of this status and number.
    pub(super) fn expect_error(&self, status: u16, number: i64) -> Result<(), Trouble> {
        let found = self.json().ok().and_then(|json| json["error"].as_i64());
        let holds = self.status == status && found == Some(number);
        self.expect(holds, format_args!("status {status} with the error {number}"))
    }

    pub(super) fn json(&self) -> Result<Value, Trouble> {
        serde_json::from_slice(&self.body).map_err(|_| self.broken("a body of JSON"))
    }

    pub(super) fn is_json_type(&self) -> bool {
        let essence = self.header("content-type").and_then(|value| value.split(';').next());
        essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
    }

    /// The plant that a create is answered with.
    pub(super) fn plant(&self) -> Result<Shown, Trouble> {
        self.expect_success()?;
        Shown::of(&self.json()?).ok_or_else(|| self.broken("a plant with a `name`"))
    }

    /// The plants of a list.
    pub(super) fn plants(&self) -> Result<Vec<Shown>, Trouble> {
        self.expect_success()?;
        let json = self.json()?;
        let plants = json.as_array().and_then(|array| array.iter().map(Shown::of).collect());
        plants.ok_or_else(|| self.broken("an array of plants with a `name`"))
    }
}

impl Shown {
    fn of(json: &Value) -> Option<Self> {
        let id = match json.get("id") {
            Some(id) => Some(id.as_i64()?),
            None => None,
        };
        let tag = json.get("tag").and_then(Value::as_str).map(str::to_owned);
        Some(Self { id, name: json.get("name")?.as_str()?.to_owned(), tag })
    }
}

/// Whether a plant has exactly the shape of the interface, where that says something: `tag` is text or absent.
pub(super) fn is_plant(json: &Value) -> bool {
    json["name"].is_string() && json.get("tag").is_none_or(Value::is_string)
}

/// Text of somebody else, short enough for a message and without what a terminal obeys.
pub(super) fn shown(text: &str) -> String {
    let plain = |character: char| if character.is_control() { '\u{fffd}' } else { character };
    let mut short: String = text.chars().take(SHOWN_CHARS).map(plain).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        short.push('…');
    }
    short
}
