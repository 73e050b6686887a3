//! Load shedding: rejects early and cheaply what the service has no capacity for.
//!
//! [`ReadCapacity`] and [`WriteCapacity`] are handler arguments after the caller, so that a request for which there is no
//! capacity is rejected before its body is read and parsed. Two things can be exhausted:
//!
//! - The runtime. When more tasks are ready than its threads can run, they wait in its global queue, and everything they
//!   do takes that much longer. Lists and writes are then rejected alike until the queue is short again.
//! - The store's write queue. It is the only place where writes wait: a semaphore in front of it would hand its permits to
//!   tasks that wait for the scheduler, and on a saturated machine leave the writer idle while they do.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRef, FromRequestParts};
use hyper::http::request::Parts;
use plantstore_store::{Reserve, ReservedPlace, StoreError};
use tokio::runtime::{Handle, RuntimeMetrics};

use crate::api::error::ApiError;
use crate::api::state::Api;
use crate::observe::Context;

/// Tasks per thread that may wait in the runtime's global queue before requests are rejected. On two cores, 1,024 brought the
/// 99th percentile of a mix of lists and creates above 250 ms (`scripts/bench overload`); fewer reject more for no gain.
const READY_TASKS_MAX: usize = 512;
/// Requests per thread that are admitted to a saturated runtime within [`RESERVE_HOLD`], all users together: a small part of
/// what a thread can handle in this time.
const RESERVED_REQUESTS: usize = 128;
/// Most requests end without waiting, so their number in flight says nothing about the time of the processors that they use.
const RESERVE_HOLD: Duration = Duration::from_millis(50);

/// Detects that the runtime has more tasks ready than it can run soon.
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
    fn admit(&self, parts: &Parts) -> Result<Option<ReservedPlace>, StoreError> {
        if self.runtime.global_queue_depth() <= self.ready_max {
            return Ok(None);
        }
        let user = Context::of(parts).user_id();
        user.and_then(|user| self.reserve.take(user)).map(Some).ok_or(StoreError::Overloaded)
    }
}

/// Rejects the request if the runtime is saturated.
pub(crate) struct ReadCapacity {
    _place: Option<ReservedPlace>,
}

impl<App: Send + Sync> FromRequestParts<App> for ReadCapacity
where
    &'static Api: FromRef<App>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let api = <&'static Api>::from_ref(app);
        let place = api.saturation.admit(parts).inspect_err(|_| api.reads_shed.count())?;
        Ok(Self { _place: place })
    }
}

/// Proof that the runtime was not saturated and the write queue had a free place. Holds no place of the queue: that is taken when
/// the body has arrived, so that slow bodies hold none.
pub(crate) struct WriteCapacity {
    _place: Option<ReservedPlace>,
}

impl<App: Send + Sync> FromRequestParts<App> for WriteCapacity
where
    &'static Api: FromRef<App>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let api = <&'static Api>::from_ref(app);
        let has_place = Context::of(parts).user_id().is_some_and(|user| api.store.has_write_capacity(user));
        let place = if has_place { api.saturation.admit(parts) } else { Err(StoreError::Overloaded) };
        Ok(Self { _place: place.map_err(|error| api.write_error(error))? })
    }
}
