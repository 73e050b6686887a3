//! The state of the store for `/readyz`: one query serves all requests within 100 ms.
//!
//! The probe needs no token, so its cost is bounded in total and not for each request.

use std::time::Duration;

use plantstore_store::{Store, StoreError};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// Least time from the start of one query to the start of the next, and the time for which an outcome is used.
const INTERVAL: Duration = Duration::from_millis(100);

/// The last query about the store's state. Requests wait for the lock while a query is in flight.
#[derive(Default)]
pub(crate) struct Readiness(Mutex<LastQuery>);

#[derive(Default)]
struct LastQuery {
    started: Option<Instant>,
    ended: Option<(Instant, Result<(), StoreError>)>,
}

impl Readiness {
    /// Returns the state of the store, from the last query if that is recent enough.
    pub(crate) async fn check(&self, store: &Store) -> Result<(), StoreError> {
        let mut last = self.0.lock().await;
        if let Some((time, outcome)) = &last.ended
            && time.elapsed() < INTERVAL
        {
            return outcome.clone();
        }
        // The client of the last query may have disconnected before its end.
        if let Some(started) = last.started {
            sleep_until(started + INTERVAL).await;
        }
        last.started = Some(Instant::now());
        let outcome = store.ping().await;
        last.ended = Some((Instant::now(), outcome.clone()));
        outcome
    }
}
