//! Load shedding: rejects early and cheaply what the service has no capacity for.
//!
//! [`ReadCapacity`] and [`WriteCapacity`] are handler arguments after the caller, so that a request for which there is no
//! capacity is rejected before its body is read and parsed. Two things can be exhausted:
//!
//! - The runtime. When more tasks are ready than its threads can run, they wait in its global queue, and everything they
//!   do takes that much longer. Lists and writes are then rejected alike until the queue is short again.
//! - The store's write queue. It is the only place where writes wait: a semaphore in front of it would hand its permits to
//!   tasks that wait for the scheduler, and on a saturated machine leave the writer idle while they do.

use axum::extract::{FromRef, FromRequestParts};
use hyper::http::request::Parts;
use plantstore_store::{ReservedPlace, StoreError};

use crate::api::error::ApiError;
use crate::api::state::Api;
use crate::observe::Context;

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
