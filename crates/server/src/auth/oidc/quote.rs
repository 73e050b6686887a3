//! Quotes values of the issuer or of a client in log messages: escaped and shortened.

use serde_json::Value;

/// Maximum number of characters of a quoted value.
const QUOTED_CHARS_MAX: usize = 200;

pub(super) fn quoted(text: &str) -> String {
    quoted_json(&Value::from(text))
}

/// Returns the value as JSON. Line breaks and invisible characters are escaped.
pub(super) fn quoted_json(value: &Value) -> String {
    let text = value.to_string();
    let mut characters = text.chars();
    let mut quoted = String::new();
    for character in characters.by_ref().take(QUOTED_CHARS_MAX) {
        match character {
            // Already escaped by JSON where needed.
            '"' | '\'' | '\\' => quoted.push(character),
            _ => quoted.extend(character.escape_debug()),
        }
    }
    if characters.next().is_some() {
        quoted.push('…');
    }
    quoted
}
