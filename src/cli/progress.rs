//! The progress bar of a long command, shown only on a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use super::format::group_digits;
use plantstore_store::transfer::TransferProgress;

const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Width of the bar in characters.
const WIDTH: u64 = 20;

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
        let _ = write!(io::stderr(), "\r\x1b[K{}", line(progress, self.start.elapsed()));
    }

    /// Clears the line for other output.
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

fn line(progress: TransferProgress, elapsed: Duration) -> String {
    let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = progress.plants.saturating_mul(1_000) / milliseconds;
    let counts = format!("{} plants, {}/s", group_digits(progress.plants), group_digits(rate));
    match progress.percent {
        None => counts,
        Some(percent) => {
            let full = percent * WIDTH / 100;
            let bar: String = (0..WIDTH).map(|place| if place < full { '#' } else { '.' }).collect();
            format!("[{bar}] {percent:3}% {counts}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_counts_and_a_bar_if_the_total_is_known() {
        let at = |plants, percent| line(TransferProgress { plants, percent }, Duration::from_secs(2));
        assert_eq!(at(0, None), "0 plants, 0/s");
        assert_eq!(at(1_234_567, None), "1,234,567 plants, 617,283/s");
        assert_eq!(at(1_000, Some(0)), "[....................]   0% 1,000 plants, 500/s");
        assert_eq!(at(1_000, Some(50)), "[##########..........]  50% 1,000 plants, 500/s");
        assert_eq!(at(1_000, Some(100)), "[####################] 100% 1,000 plants, 500/s");
        assert_eq!(line(TransferProgress { plants: u64::MAX, percent: None }, Duration::ZERO).split(' ').count(), 3);
    }
}
