//! Detects that the runtime has more tasks ready than it can run soon.

use std::sync::Arc;
use std::time::Duration;

use hyper::http::request::Parts;
use plantstore_store::{Reserve, ReservedPlace, StoreError};
use tokio::runtime::{Handle, RuntimeMetrics};

use crate::observe::Context;

/// Tasks per thread that may wait in the runtime's global queue before requests are rejected. On two cores, 1,024 brought the
/// 99th percentile of a mix of lists and creates above 250 ms (`scripts/bench overload`); fewer reject more for no gain.
const READY_TASKS_MAX: usize = 512;
/// Requests per thread that are admitted to a saturated runtime within [`RESERVE_HOLD`], all users together: a small part of
/// what a thread can handle in this time.
const RESERVED_REQUESTS: usize = 128;
/// Most requests end without waiting, so their number in flight says nothing about the time of the processors that they use.
const RESERVE_HOLD: Duration = Duration::from_millis(50);

pub(in crate::api) struct Saturation {
    runtime: RuntimeMetrics,
    ready_max: usize,
    reserve: Arc<Reserve>,
}

impl Saturation {
    /// Watches the runtime that this is called in.
    pub(in crate::api) fn of_current_runtime() -> Self {
        let runtime = Handle::current().metrics();
        let workers = runtime.num_workers();
        let reserve = Reserve::new(RESERVED_REQUESTS * workers, RESERVE_HOLD);
        Self { runtime, ready_max: READY_TASKS_MAX * workers, reserve }
    }

    /// Admits a request, to a saturated runtime only with a place of the reserve.
    pub(super) fn admit(&self, parts: &Parts) -> Result<Option<ReservedPlace>, StoreError> {
        if self.runtime.global_queue_depth() <= self.ready_max {
            return Ok(None);
        }
        let user = Context::of(parts).user_id();
        user.and_then(|user| self.reserve.take(user)).map(Some).ok_or(StoreError::Overloaded)
    }
}
