//! Options that several commands share, and how their values are read. Builds nothing.

use std::time::Duration;

use clap::{Args, ValueEnum};

/// Which store a command works on.
#[derive(Args, Clone, Debug)]
pub(super) struct StoreOption {
    /// Where the plants are kept: sqlite:PATH or postgres://user@host:port/database
    // Kept as text: what is wrong with it is said by the command, without repeating a URL that may hold a password.
    #[arg(
        long,
        value_name = "URL",
        env = "PLANTSTORE_STORE",
        default_value = "sqlite:plantstore.db",
        hide_env_values = true
    )]
    pub store: String,
}

/// Permission for a command to make a store.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct CreateOption {
    /// Make the store if there is none, instead of rejecting that
    #[arg(long)]
    pub create: bool,
}

/// How much the log says, and how.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct LogOptions {
    /// The least grave events that are logged
    #[arg(long, value_name = "LEVEL", env = "PLANTSTORE_LOG_LEVEL", default_value = "info")]
    pub log_level: LogLevel,
    /// The look of the log; `auto` is human on a terminal and JSON otherwise
    #[arg(long, value_name = "FORMAT", env = "PLANTSTORE_LOG_FORMAT", default_value = "auto")]
    pub log_format: LogFormat,
}

/// The levels of the log.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// The looks of the log.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LogFormat {
    Auto,
    Human,
    Json,
}

/// A thousand years, beyond which neither clocks nor calendars are to be trusted.
const DURATION_MAX: Duration = Duration::from_secs(365_000 * 86_400);

/// Reads a length of time such as `500ms`, `10s`, `5m`, `2h` or `90d`; always more than nothing.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
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
        Some(Duration::ZERO) => Err("must be longer than nothing".to_owned()),
        Some(duration) if duration <= DURATION_MAX => Ok(duration),
        _ => Err("is too long: the most is 365000d".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("90d"), Ok(Duration::from_secs(90 * 86_400)));
        for wrong in ["", "s", "10", "10x", "-1s", "1.5s", "0s", "365001d", "99999999999999999999s", "１s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
