//! Times and texts in the lines of the log.

use std::fmt::{self, Write as _};

use jiff::Timestamp;
use plantstore_model::text::write_escaped;

/// Formats times in milliseconds. Date, hours, minutes and seconds are formatted again only when the second changes.
#[derive(Default)]
pub(super) struct TimeFormatter {
    second: i64,
    text: String,
}

impl TimeFormatter {
    pub(super) fn format(&mut self, time: Timestamp) -> &str {
        let second = time.as_second();
        if second > 0 && self.second == second {
            let milliseconds = time.subsec_millisecond();
            self.text.truncate(self.text.len() - "000Z".len());
            for digit in [milliseconds / 100, milliseconds / 10 % 10, milliseconds % 10] {
                self.text.push(char::from(b'0' + u8::try_from(digit).unwrap_or_default()));
            }
            self.text.push('Z');
        } else {
            self.second = second;
            self.text.clear();
            let _ = write!(self.text, "{time:.3}");
        }
        &self.text
    }
}

/// Escapes text for a JSON string. Human-readable lines use it, too, so that no invisible character reaches a terminal.
pub(super) struct EscapingWriter<'a>(pub(super) &'a mut String);

impl fmt::Write for EscapingWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Almost all texts are plain, and short.
        let is_plain = |byte: u8| matches!(byte, b' ' | b'!' | b'#'..=b'[' | b']'..=b'~');
        if text.bytes().all(is_plain) {
            self.0.push_str(text);
            return Ok(());
        }
        for character in text.chars() {
            match character {
                '"' => self.0.push_str("\\\""),
                '\\' => self.0.push_str("\\\\"),
                other => write_escaped(other, self.0)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_formatted_alike_in_the_same_second_and_in_another() {
        let mut formatter = TimeFormatter::default();
        for millisecond in [0, 1, 999, 1_000, 1_001, 61_234, 61_235, 1_800_000_000_007, 1_800_000_000_123, -1, -1_500] {
            let time = Timestamp::from_millisecond(millisecond).expect("a time in range");
            assert_eq!(formatter.format(time), format!("{time:.3}"));
        }
    }

    #[test]
    fn quotes_backslashes_and_control_characters_are_escaped() {
        for (text, escaped) in
            [("Grün ~!", "Grün ~!"), ("a\"b\\c", "a\\\"b\\\\c"), ("\n\u{7f}\u{85}\u{202e}", "\\n\\u007f\\u0085\\u202e")]
        {
            let mut line = String::new();
            EscapingWriter(&mut line).write_str(text).expect("a string accepts everything");
            assert_eq!(line, escaped);
        }
    }
}
