//! Formatting of numbers, times and error messages for people.

use jiff::Timestamp;
pub(super) use plantstore_server::value_parser::group_digits;

/// Formats a number with its noun: `1 plant`, `2,000 plants`.
pub(super) fn count(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", group_digits(number), if number == 1 { "" } else { "s" })
}

pub(super) fn format_date_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M").to_string()
}

pub(super) fn format_date(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d").to_string()
}

/// Removes the ` (os error N)` that the standard library adds to messages of the operating system.
pub(super) fn strip_os_error_codes(message: &str) -> String {
    let mut pieces = message.split(" (os error ");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.split_once(')') {
            Some((code, rest)) if code.bytes().all(|byte| byte.is_ascii_digit()) => text.push_str(rest),
            _ => text.extend([" (os error ", piece]),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operating_system_codes_are_stripped() {
        let error = std::io::Error::from_raw_os_error(2).to_string();
        assert!(error.contains("(os error 2)"), "{error}");
        assert_eq!(
            strip_os_error_codes(&format!("cannot read x: {error}; y")),
            "cannot read x: No such file or directory; y"
        );
        assert_eq!(strip_os_error_codes("plain (os error x) text"), "plain (os error x) text");
    }
}
