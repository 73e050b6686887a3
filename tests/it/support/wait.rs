//! Waiting for conditions.

use std::time::{Duration, Instant};

/// Longest wait for an expected event before the test fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until `condition` gives something.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "timed out waiting for {what}");
        #[expect(clippy::disallowed_methods, reason = "the pause between two looks at a condition")]
        std::thread::sleep(Duration::from_millis(5));
    }
}
