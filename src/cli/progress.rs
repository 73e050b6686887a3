//! How far a long command has come: one line on the terminal, drawn again and again. Elsewhere, nothing.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use super::words::grouped;
use plantstore_store::archive::Progress;

/// The time between two drawings.
const REDRAW: Duration = Duration::from_millis(100);
/// How many characters the bar has.
const WIDTH: u64 = 20;

/// The line; it is gone when this is dropped.
pub(super) struct Bar {
    shown: bool,
    start: Instant,
    drawn: Option<Instant>,
}

impl Bar {
    pub(super) fn new() -> Self {
        Self { shown: io::stderr().is_terminal(), start: Instant::now(), drawn: None }
    }

    /// Draws it, unless it has just been drawn.
    pub(super) fn update(&mut self, progress: Progress) {
        if !self.shown || self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW) {
            return;
        }
        self.drawn = Some(Instant::now());
        // A terminal that takes nothing is no reason to stop.
        let _ = write!(io::stderr(), "\r\x1b[K{}", line(progress, self.start.elapsed()));
    }

    /// Makes room for another line.
    pub(super) fn clear(&mut self) {
        if self.drawn.take().is_some() {
            clear_line();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Clears the line of a terminal that a bar may stand on.
pub(super) fn clear_line() {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

fn line(progress: Progress, elapsed: Duration) -> String {
    let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = progress.plants.saturating_mul(1_000) / milliseconds;
    let counts = format!("{} plants, {}/s", grouped(progress.plants), grouped(rate));
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
    fn lines() {
        let at = |plants, percent| line(Progress { plants, percent }, Duration::from_secs(2));
        assert_eq!(at(0, None), "0 plants, 0/s");
        assert_eq!(at(1_234_567, None), "1,234,567 plants, 617,283/s");
        assert_eq!(at(1_000, Some(0)), "[....................]   0% 1,000 plants, 500/s");
        assert_eq!(at(1_000, Some(50)), "[##########..........]  50% 1,000 plants, 500/s");
        assert_eq!(at(1_000, Some(100)), "[####################] 100% 1,000 plants, 500/s");
        assert_eq!(line(Progress { plants: u64::MAX, percent: None }, Duration::ZERO).split(' ').count(), 3);
    }
}
