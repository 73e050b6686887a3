//! Numbers, moments and errors as people read them.

use jiff::Timestamp;

/// A number with a comma before every three digits.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

/// A number of things, in words.
pub(super) fn count(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A moment, to the minute.
pub(super) fn shown(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%d %H:%M").to_string()
}

/// The day of a moment.
pub(super) fn day(moment: Timestamp) -> String {
    moment.strftime("%Y-%m-%d").to_string()
}

/// The message of an error without the numbers that the standard library adds to those of the operating system.
pub(super) fn without_os_codes(message: &str) -> String {
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
    fn operating_system_codes_are_left_out() {
        let error = std::io::Error::from_raw_os_error(2).to_string();
        assert!(error.contains("(os error 2)"), "{error}");
        assert_eq!(
            without_os_codes(&format!("cannot read x: {error}; y")),
            "cannot read x: No such file or directory; y"
        );
        assert_eq!(without_os_codes("plain (os error x) text"), "plain (os error x) text");
    }
}
