//! Parsers of the values of server options. Their messages say what to write instead of an invalid value.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Formats a number with a comma between groups of three digits.
pub fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

pub fn number<T>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<u64>,
{
    let (min, max) = range.into_inner();
    move |text| {
        let number = text.parse().ok().filter(|number| (min..=max).contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match max {
            u64::MAX => format!("write a whole number, {} or more", group_digits(min)),
            _ => format!("write a whole number from {} to {}", group_digits(min), group_digits(max)),
        })
    }
}

/// A thousand years: its sum with the current time is a valid timestamp.
const DURATION_MAX: Duration = Duration::from_secs(365_000 * 86_400);

/// Parses a duration such as `500ms`, `10s`, `5m`, `2h` or `90d`; zero is rejected.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write a whole number and a unit, for example 500ms, 10s, 5m, 2h or 90d".to_owned();
    let unit = text.find(|character: char| !character.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..unit].parse().map_err(|_| wrong())?;
    let milliseconds = match &text[unit..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    match number.checked_mul(milliseconds).map(Duration::from_millis) {
        Some(Duration::ZERO) => Err("must be longer than zero".to_owned()),
        Some(duration) if duration <= DURATION_MAX => Ok(duration),
        _ => Err("is too long: the maximum is 365000d".to_owned()),
    }
}
