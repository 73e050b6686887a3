//! The state of the store for `/readyz`: one query serves all requests within 100 ms.
//!
//! The probe needs no token, so its cost is bounded in total and not for each request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use tokio::task::AbortHandle;

use plantstore_store::{Store, StoreError};

/// Least time from the start of one query to the start of the next.
const INTERVAL: Duration = Duration::from_millis(100);

/// The outcome of a query, shared by all requests that wait for it.
type SharedResult = Shared<BoxFuture<'static, Result<(), StoreError>>>;

/// The last query about the store's state.
#[derive(Default)]
pub(crate) struct Readiness {
    last: Mutex<Option<Query>>,
}

struct Query {
    started: Instant,
    task: AbortHandle,
    outcome: SharedResult,
}

impl Query {
    /// Starts a query in a task of its own: a client that disconnects neither ends what other requests wait for nor makes the
    /// next request start over.
    fn start(store: &Arc<Store>) -> Self {
        let store = Arc::clone(store);
        let query = tokio::spawn(async move { store.ping().await });
        let task = query.abort_handle();
        let outcome = query.map(|joined| joined.unwrap_or_else(|error| Err(StoreError::Internal(error.to_string()))));
        Self { started: Instant::now(), task, outcome: outcome.boxed().shared() }
    }

    /// Returns true while it is in flight or recent enough.
    fn is_current(&self) -> bool {
        !self.task.is_finished() || self.started.elapsed() < INTERVAL
    }
}

impl Readiness {
    /// Returns the state of the store, from the query in flight or the last one if that is recent enough.
    pub(crate) async fn check(&self, store: &Arc<Store>) -> Result<(), StoreError> {
        let outcome = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            match &*last {
                Some(query) if query.is_current() => query.outcome.clone(),
                _ => last.insert(Query::start(store)).outcome.clone(),
            }
        };
        outcome.await
    }
}
