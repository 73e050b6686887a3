//! Values that the issuer or a client chose, escaped and shortened for log lines.

use serde_json::Value;

/// The most characters of a foreign value that are logged.
const QUOTED_CHARS_MAX: usize = 200;

/// A foreign text, in quotes, escaped and shortened.
pub(super) fn quoted(text: &str) -> String {
    quoted_json(&Value::from(text))
}

/// A foreign value as JSON, escaped, so that it stays on its line and hides nothing, and shortened.
pub(super) fn quoted_json(value: &Value) -> String {
    let text = value.to_string();
    let mut characters = text.chars();
    let mut quoted = String::new();
    for character in characters.by_ref().take(QUOTED_CHARS_MAX) {
        match character {
            // JSON has escaped these where it must.
            '"' | '\'' | '\\' => quoted.push(character),
            _ => quoted.extend(character.escape_debug()),
        }
    }
    if characters.next().is_some() {
        quoted.push('…');
    }
    quoted
}
