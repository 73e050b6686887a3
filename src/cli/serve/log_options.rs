//! Options of `plantstore serve`: level and format of the log.

use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use tracing::Level;

use crate::cli::style::Styler;
use plantstore_telemetry::logging;

#[derive(Args, Clone, Copy, Debug)]
pub(super) struct LogOptions {
    /// The lowest level of events that are logged. Changes of tokens and shares are logged at every level
    #[arg(long, value_name = "LEVEL", env = "PLANTSTORE_LOG_LEVEL", default_value = "info")]
    log_level: LogLevel,
    /// The format of the log; `auto` is `human` on a terminal and `json` otherwise
    #[arg(long, value_name = "FORMAT", env = "PLANTSTORE_LOG_FORMAT", default_value = "auto")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Auto,
    Human,
    Json,
}

impl LogOptions {
    pub(super) fn start_log(self) -> logging::Guard {
        logging::start(self.format(), self.level())
    }

    fn format(self) -> logging::Format {
        match self.log_format {
            LogFormat::Auto | LogFormat::Human if io::stderr().is_terminal() => {
                logging::Format::Terminal { colours: Styler::new(&io::stderr()).is_enabled() }
            }
            LogFormat::Human => logging::Format::Human,
            LogFormat::Auto | LogFormat::Json => logging::Format::Json,
        }
    }

    fn level(self) -> Level {
        match self.log_level {
            LogLevel::Error => Level::ERROR,
            LogLevel::Warn => Level::WARN,
            LogLevel::Info => Level::INFO,
            LogLevel::Debug => Level::DEBUG,
            LogLevel::Trace => Level::TRACE,
        }
    }
}
