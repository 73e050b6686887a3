//! Text on the standard streams: results go to standard output, errors, warnings and progress to standard error. Text is styled
//! only on a terminal that has styles, unless `NO_COLOR` is set (<https://no-color.org>).

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jiff::Timestamp;
use serde::Serialize;

use super::environment::variable;
use plantstore_model::text::Escaped;
use plantstore_server::value_parser::group_digits;
use plantstore_store::transfer::TransferProgress;

const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
const BAR_WIDTH: u64 = 20;

/// Writes a command's results to standard output. A reader that closes the pipe early is not an error.
pub(super) fn print(write: impl FnOnce(&mut io::StdoutLock<'_>) -> io::Result<()>) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    match write(&mut output).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot print"),
        _ => Ok(()),
    }
}

pub(super) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    // An invisible character can only be in a string, where its escaped form means the same.
    print(|output| text.lines().try_for_each(|line| writeln!(output, "{}", Escaped(line))))
}

pub(super) fn print_error(message: &str) {
    let mut errors = io::stderr();
    let label = Styler::new(&errors).apply(Style::ERROR, "error:");
    let _ = writeln!(errors, "{label} {}", Escaped(&strip_os_error_codes(message)));
}

pub(super) fn print_warning(message: &str) {
    let mut errors = io::stderr();
    let label = Styler::new(&errors).apply(Style::WARNING, "warning:");
    let _ = writeln!(errors, "{label} {}", Escaped(message));
}

/// Checks for `-`, which stands for standard input or output.
pub(super) fn is_dash(path: &Path) -> bool {
    path == Path::new("-")
}

/// Parameters of the escape sequence that starts a style.
#[derive(Clone, Copy)]
pub(super) struct Style(&'static str);

impl Style {
    pub(super) const ADDRESS: Self = Self("36");
    pub(super) const ERROR: Self = Self("31;1");
    pub(super) const FAINT: Self = Self("2");
    pub(super) const STRONG: Self = Self("1");
    pub(super) const SUCCESS: Self = Self("32");
    pub(super) const WARNING: Self = Self("33;1");
}

/// Applies styles to text for one output stream.
#[derive(Clone, Copy)]
pub(super) struct Styler {
    pub(super) enabled: bool,
}

impl Styler {
    pub(super) fn new(output: &impl IsTerminal) -> Self {
        let enabled = output.is_terminal()
            && variable("NO_COLOR").is_none()
            && variable("TERM").is_none_or(|term| term != "dumb");
        Self { enabled }
    }

    pub(super) fn apply(self, style: Style, text: &str) -> String {
        if self.enabled { format!("\x1b[{}m{text}\x1b[0m", style.0) } else { text.to_owned() }
    }
}

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

/// Progress bar on standard error. Dropping it clears the line.
pub(super) struct ProgressBar {
    shown: bool,
    start: Instant,
    drawn: Option<Instant>,
}

impl ProgressBar {
    pub(super) fn new() -> Self {
        Self { shown: io::stderr().is_terminal(), start: Instant::now(), drawn: None }
    }

    /// Draws the bar, at most once per `REDRAW_INTERVAL`.
    pub(super) fn update(&mut self, progress: TransferProgress) {
        if !self.shown || self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW_INTERVAL) {
            return;
        }
        self.drawn = Some(Instant::now());
        // An error of the terminal does not stop the command.
        let _ = write!(io::stderr(), "\r\x1b[K{}", progress_line(progress, self.start.elapsed()));
    }

    pub(super) fn clear(&mut self) {
        if self.drawn.take().is_some() {
            clear_line();
        }
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Clears the terminal's line, which may hold a progress bar.
pub(super) fn clear_line() {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

fn progress_line(progress: TransferProgress, elapsed: Duration) -> String {
    let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = progress.plants.saturating_mul(1_000) / milliseconds;
    let counts = format!("{} plants, {}/s", group_digits(progress.plants), group_digits(rate));
    match progress.percent {
        None => counts,
        Some(percent) => {
            let full = percent * BAR_WIDTH / 100;
            let bar: String = (0..BAR_WIDTH).map(|place| if place < full { '#' } else { '.' }).collect();
            format!("[{bar}] {percent:3}% {counts}")
        }
    }
}
