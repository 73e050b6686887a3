//! Delays repeated rejections on one connection.
//!
//! The first 503 on a connection is sent at once. A request that arrives within `Retry-After` of that response and is
//! rejected again gets its response later. Without this, clients that retry at once would occupy the processors with
//! rejections, and requests that could be served would starve. Requests that arrived before the last rejection was sent, as
//! concurrent streams of HTTP/2 do, are not retries of it and are not delayed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::api::error::RETRY_AFTER;

/// Delay of the second rejection in a row; each further one doubles it.
const DELAY_MIN: Duration = Duration::from_secs(2);
/// Longest delay of a rejection. A rejection costs about as much as a cached list, so the number of connections divided by
/// this time must be a small part of the requests per second that can be served.
const DELAY_MAX: Duration = Duration::from_secs(4);

/// The rejections on one connection.
#[derive(Default)]
pub(crate) struct OverloadDelay(Mutex<Option<Rejections>>);

#[derive(Clone, Copy)]
struct Rejections {
    /// Time at which the last one was sent.
    sent: Instant,
    /// Number of rejections in a row, each of a request that arrived within [`RETRY_AFTER`] of the one before.
    in_a_row: u32,
}

impl OverloadDelay {
    /// Counts the rejection of a request, and waits as long as its response is to be delayed.
    pub(crate) async fn wait(&self, arrived: Instant) {
        let in_a_row = self.next(arrived);
        let delay = delay_of(in_a_row);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.set_sent(Instant::now(), in_a_row);
    }

    /// Returns the number of consecutive rejections, including that of a request that arrived at this time.
    fn next(&self, arrived: Instant) -> u32 {
        match *self.lock() {
            Some(last) if arrived <= last.sent => 1,
            Some(last) if arrived < last.sent + RETRY_AFTER => last.in_a_row.saturating_add(1),
            Some(_) | None => 1,
        }
    }

    fn set_sent(&self, now: Instant, in_a_row: u32) {
        let mut last = self.lock();
        // A rejection of a concurrent request does not end a row.
        let longest =
            last.filter(|last| now < last.sent + RETRY_AFTER).map_or(in_a_row, |last| last.in_a_row.max(in_a_row));
        *last = Some(Rejections { sent: now, in_a_row: longest });
    }

    fn lock(&self) -> MutexGuard<'_, Option<Rejections>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the delay of this rejection in a row: none for the first, then doubling.
fn delay_of(in_a_row: u32) -> Duration {
    match in_a_row.checked_sub(2) {
        None => Duration::ZERO,
        Some(doublings) => DELAY_MIN.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(DELAY_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    /// Rejects a request that arrived at this time, and returns the delay of its response and when it was sent.
    fn reject(delay: &OverloadDelay, arrived: Instant) -> (Duration, Instant) {
        let in_a_row = delay.next(arrived);
        let sent = arrived + delay_of(in_a_row);
        delay.set_sent(sent, in_a_row);
        (delay_of(in_a_row), sent)
    }

    #[test]
    fn repeated_rejections_are_delayed_longer_and_longer() {
        let (delay, mut time) = (OverloadDelay::default(), Instant::now());
        let delays = [(); 4].map(|()| {
            let (delayed, sent) = reject(&delay, time);
            time = sent + MOMENT;
            delayed.as_secs()
        });
        assert_eq!(delays, [0, 2, 4, 4]);
    }

    #[test]
    fn a_client_that_honours_retry_after_is_never_delayed() {
        let (delay, start) = (OverloadDelay::default(), Instant::now());
        for attempt in 0..5 {
            assert_eq!(reject(&delay, start + attempt * RETRY_AFTER).0, Duration::ZERO);
        }
    }

    #[test]
    fn concurrent_requests_are_not_retries_of_each_other() {
        let (delay, start) = (OverloadDelay::default(), Instant::now());
        reject(&delay, start + MOMENT);
        assert_eq!(reject(&delay, start).0, Duration::ZERO);
        // Both retries are delayed alike, although the first has not been sent when the second arrives.
        assert_eq!([delay.next(start + 2 * MOMENT), delay.next(start + 3 * MOMENT)], [2, 2]);
    }
}
