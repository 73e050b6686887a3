//! Delays repeated rejections of one connection.
//!
//! The first 503 of a connection is sent at once. A client that sends again before its `Retry-After` has passed and is
//! rejected again gets that response later and later. Without this, clients that retry at once would occupy the processors
//! with rejections, and the requests that could be served would starve.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::RETRY_AFTER;

/// Delay of the second rejection in a row; each further one doubles it.
const DELAY_MIN: Duration = Duration::from_secs(2);
/// Longest delay of a rejection. A rejection costs about as much as a cached list, so the number of connections divided by
/// this time must be a small part of the requests per second that can be served.
const DELAY_MAX: Duration = Duration::from_secs(4);

/// Delays the responses of one connection that is rejected again and again.
#[derive(Default)]
pub(crate) struct RejectionDelay(Mutex<Option<Rejections>>);

struct Rejections {
    last: Instant,
    /// Rejections in a row, each within [`RETRY_AFTER`] of the one before.
    in_a_row: u32,
}

impl RejectionDelay {
    /// Counts a rejection and waits as long as its response is to be delayed.
    pub(crate) async fn wait(&self) {
        let delay = self.next(Instant::now());
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    fn next(&self, now: Instant) -> Duration {
        let mut rejections = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match &*rejections {
            Some(before) if now.saturating_duration_since(before.last) < RETRY_AFTER => before.in_a_row,
            _ => 0,
        };
        let doublings = before.checked_sub(1);
        let delay = doublings.map_or(Duration::ZERO, |doublings| {
            DELAY_MIN.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(DELAY_MAX)
        });
        // The client can send again when it has the response.
        *rejections = Some(Rejections { last: now + delay, in_a_row: before.saturating_add(1) });
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_rejections_are_delayed_longer_and_longer() {
        let delay = RejectionDelay::default();
        let start = Instant::now();
        let delays: Vec<u128> = (0..7).map(|_| delay.next(start).as_millis()).collect();
        assert_eq!(delays, [0, 2_000, 4_000, 4_000, 4_000, 4_000, 4_000]);
    }

    #[test]
    fn a_client_that_honours_retry_after_is_never_delayed() {
        let delay = RejectionDelay::default();
        let start = Instant::now();
        for attempt in 0..5 {
            assert_eq!(delay.next(start + attempt * RETRY_AFTER), Duration::ZERO);
        }
    }
}
