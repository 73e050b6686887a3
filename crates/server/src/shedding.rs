//! Load shedding: rejecting early and cheaply what the service has no capacity for.
//!
//! [`ReadCapacity`] and [`WriteCapacity`] are handler arguments behind the caller, so that a request for which there is no
//! capacity is rejected before its body is read and parsed. Two things can be exhausted:
//!
//! - The runtime. When more tasks are ready than its workers can run, they wait in its global queue, and everything they
//!   do takes that much longer. Lists and writes are then rejected alike until the queue is short again.
//! - The store's write queue. It is the only place where writes wait: a semaphore in front of it would hand its permits to
//!   tasks that wait for the scheduler, and on a saturated machine leave the writer idle while they do.
//!
//! The first 503 of a connection is sent at once. A client that sends again before its `Retry-After` has passed and is
//! rejected again gets that response later and later ([`RejectionDelay`]). Without this, clients that retry at once
//! would occupy the processors with rejections, and the requests that could be served would starve.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use hyper::http::request::Parts;
use tokio::runtime::{Handle, RuntimeMetrics};

use super::App;
use super::error::{ApiError, RETRY_AFTER};
use plantstore_store::StoreError;

/// Delay of the second rejection in a row; each further one doubles it.
const DELAY_MIN: Duration = Duration::from_millis(100);
/// Longest delay of a rejection.
const DELAY_MAX: Duration = RETRY_AFTER;

/// Tasks per worker that may wait in the runtime's global queue before requests are rejected: about as many as a worker has
/// room for in its own queue, and some ten milliseconds of work.
const READY_TASKS_MAX: usize = 256;

/// Detects that the runtime has more tasks ready than it can run soon.
pub(super) struct Scheduler {
    runtime: RuntimeMetrics,
    ready_max: usize,
}

impl Scheduler {
    /// Watches the runtime that this is called in.
    pub(super) fn current() -> Self {
        let runtime = Handle::current().metrics();
        Self { ready_max: READY_TASKS_MAX * runtime.num_workers(), runtime }
    }

    fn is_saturated(&self) -> bool {
        self.runtime.global_queue_depth() > self.ready_max
    }
}

/// Proof that the runtime was not saturated when the request was handled.
pub(crate) struct ReadCapacity;

impl FromRequestParts<&'static App> for ReadCapacity {
    type Rejection = ApiError;

    async fn from_request_parts(_parts: &mut Parts, app: &&'static App) -> Result<Self, ApiError> {
        if app.scheduler.is_saturated() {
            app.reads_shed.count();
            return Err(ApiError::Overloaded);
        }
        Ok(Self)
    }
}

/// Proof that, beside that, the write queue had a free place. Holds nothing: the place is taken when the body is there, so
/// that slow bodies hold none.
pub(crate) struct WriteCapacity;

impl FromRequestParts<&'static App> for WriteCapacity {
    type Rejection = ApiError;

    async fn from_request_parts(_parts: &mut Parts, app: &&'static App) -> Result<Self, ApiError> {
        let available = !app.scheduler.is_saturated() && app.store.has_write_capacity();
        if available { Ok(Self) } else { Err(app.write_error(StoreError::Overloaded)) }
    }
}

impl App {
    /// The response to a write that the store has rejected; counts those for which it had no capacity.
    pub(crate) fn write_error(&self, error: StoreError) -> ApiError {
        if let StoreError::Overloaded = error {
            self.writes_shed.count();
        }
        error.into()
    }
}

/// Delays the responses of one connection that is rejected again and again.
#[derive(Default)]
pub(super) struct RejectionDelay(Mutex<Option<Rejections>>);

struct Rejections {
    last: Instant,
    /// How many came in a row, each within [`RETRY_AFTER`] of the one before.
    in_a_row: u32,
}

impl RejectionDelay {
    /// Counts a rejection and waits as long as its response is to be delayed.
    pub(super) async fn wait(&self) {
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
        assert_eq!(delays, [0, 100, 200, 400, 800, 1_000, 1_000]);
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
