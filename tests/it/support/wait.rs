//! Waiting for conditions, and measuring documented time limits.

use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use super::Response;

/// Longest wait for an expected event before the test fails. Long, because a virtual machine may get a small part of
/// its processors for minutes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(240);
/// Shortest and longest pause between two checks of a condition.
const INTERVAL_MIN: Duration = Duration::from_millis(5);
const INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Polls `condition` until it returns a value. `what` completes "timed out waiting for …". A pause is a hundredth of
/// the wait so far: a condition may send requests or start processes, and other tests need the processor.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "timed out waiting for {what}");
        #[expect(clippy::disallowed_methods, reason = "the pause between two checks of a condition")]
        std::thread::sleep((start.elapsed() / 100).clamp(INTERVAL_MIN, INTERVAL_MAX));
    }
}

/// Polls `condition` until it is true.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Repeats a request that fails without effect: while the store is unavailable or the key is in flight, and if a busy
/// machine misses a short `--store-timeout`.
#[track_caller]
pub(crate) fn retry_while_unavailable(call: impl Fn() -> Response) -> Response {
    wait_for("the store to be available", || {
        Some(call()).filter(|response| response.status < 400 || !matches!(response.error(), 40901 | 50300))
    })
}

/// Measures a time that has a documented limit. It does not count the time in which this process did not run, because
/// a virtual machine may be paused for seconds.
pub(crate) struct Stopwatch {
    start: Instant,
    paused_before: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), paused_before: paused() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed().saturating_sub(paused().saturating_sub(self.paused_before))
    }
}

/// Returns the time in which this process did not run, since the first call. A thread that should wake up in short
/// intervals notices pauses.
fn paused() -> Duration {
    const INTERVAL: Duration = Duration::from_millis(20);
    const PAUSE_MIN: Duration = Duration::from_millis(200);
    static LAST: LazyLock<Mutex<(Instant, Duration)>> = LazyLock::new(|| {
        std::thread::spawn(|| {
            loop {
                #[expect(clippy::disallowed_methods, reason = "a longer sleep than this is a pause")]
                std::thread::sleep(INTERVAL);
                update();
            }
        });
        Mutex::new((Instant::now(), Duration::ZERO))
    });
    // Every caller updates the sum, because after a pause any thread may be the first to run.
    fn update() -> Duration {
        let (last, paused) = &mut *LAST.lock().expect("no panic before");
        let since = last.elapsed();
        if since >= PAUSE_MIN {
            *paused += since.saturating_sub(INTERVAL);
        }
        *last = Instant::now();
        *paused
    }
    update()
}
