//! The standard streams: results go to standard output, errors and warnings to standard error; `-` in place of a file.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use super::format::strip_os_error_codes;
use super::style::{Style, Styler};
use plantstore_model::text::Escaped;

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
    let label = Styler::new(&errors).apply(Style::Error, "error:");
    let _ = writeln!(errors, "{label} {}", Escaped(&strip_os_error_codes(message)));
}

pub(super) fn print_warning(message: &str) {
    let mut errors = io::stderr();
    let label = Styler::new(&errors).apply(Style::Warning, "warning:");
    let _ = writeln!(errors, "{label} {}", Escaped(message));
}

/// Checks for `-`, which stands for standard input or output.
pub(super) fn is_dash(path: &Path) -> bool {
    path == Path::new("-")
}
