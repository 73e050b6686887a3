//! Access to plants, capacity, path and body as handler arguments. An incomplete body is rejected here. Other errors are passed to the handler,
//! which may have to store the rejection under an idempotency key.

use std::borrow::Cow;
use std::convert::Infallible;
use std::marker::PhantomData;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap};
use hyper::http::request::Parts;
use percent_encoding::percent_decode_str;

use super::collections::{OwnerParameter, write_context};
use super::error::ApiError;
use super::state::RequestState;
use crate::auth::{Caller, RequiredScope};
use plantstore_model::body::BodyError;
use plantstore_model::plant::{NewPlant, PlantId, PlantIdError};
use plantstore_model::user::UserName;
use plantstore_store::{ReservedPlace, StoreError, WriteContext};

/// Maximum number of bytes of an oversized body that are read and discarded, so that the connection stays usable.
const DISCARD_MAX: usize = 1 << 20;

/// An authenticated caller who may change the plants of the requested owner.
pub(crate) struct WriteAccess<S> {
    pub(crate) context: WriteContext,
    pub(crate) owner: OwnerParameter,
    scope: PhantomData<S>,
}

impl<S: RequiredScope + Send> FromRequestParts<RequestState> for WriteAccess<S> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &RequestState) -> Result<Self, ApiError> {
        let caller = Caller::<S>::from_request_parts(parts, state).await?;
        let owner = OwnerParameter::from_request_parts(parts, state).await?;
        let context = write_context(&caller.session, &owner)?;
        Ok(Self { context, owner, scope: PhantomData })
    }
}

/// Rejects the request if the runtime is saturated. An argument after the caller, as [`WriteCapacity`], so that a request for which
/// there is no capacity is rejected before its body is read and parsed.
pub(crate) struct ReadCapacity {
    _place: Option<ReservedPlace>,
}

impl FromRequestParts<RequestState> for ReadCapacity {
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, RequestState { api, context }: &RequestState) -> Result<Self, ApiError> {
        let place = api.saturation.admit(context).inspect_err(|_| api.reads_shed.count())?;
        Ok(Self { _place: place })
    }
}

/// Proof that the runtime was not saturated and the store's write queue had a free place. Holds no place of the queue: that is
/// taken when the body has arrived, so that slow bodies hold none. The queue is the only place where writes wait: a semaphore in
/// front of it would hand its permits to tasks that wait for the scheduler, and on a saturated machine leave the writer idle while
/// they do.
pub(crate) struct WriteCapacity {
    _place: Option<ReservedPlace>,
}

impl FromRequestParts<RequestState> for WriteCapacity {
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, RequestState { api, context }: &RequestState) -> Result<Self, ApiError> {
        let has_place = context.user_id().is_some_and(|user| api.store.has_write_capacity(user));
        let place = if has_place { api.saturation.admit(context) } else { Err(StoreError::Overloaded) };
        Ok(Self { _place: place.map_err(|error| api.write_error(error))? })
    }
}

/// The body of a request, which describes a plant. Consumes the body, so it is a handler's last argument.
pub(crate) struct PlantBody {
    pub(crate) bytes: Bytes,
    is_json: bool,
}

impl PlantBody {
    /// Parses the plant: a new one, or the plant `replaced` with a new name and tag.
    pub(crate) fn parse(self, replaced: Option<PlantId>) -> Result<NewPlant, ApiError> {
        check_type(&self.bytes, self.is_json)?;
        Ok(match replaced {
            None => NewPlant::from_json(&self.bytes)?,
            Some(id) => NewPlant::replacing(id, &self.bytes)?,
        })
    }
}

impl FromRequest<RequestState> for PlantBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &RequestState) -> Result<Self, ApiError> {
        Ok(Self { is_json: is_json(request.headers()), bytes: receive(request, state).await? })
    }
}

/// The body of a request, which has the media type of JSON. Consumes the body, so it is a handler's last argument.
pub(crate) struct JsonBody(pub(crate) Bytes);

impl FromRequest<RequestState> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &RequestState) -> Result<Self, ApiError> {
        let is_json = is_json(request.headers());
        let bytes = receive(request, state).await?;
        check_type(&bytes, is_json).map(|()| Self(bytes))
    }
}

/// Reads a body within the limits of size and time. The rest of the request is dropped before, so that the future is small.
async fn receive(request: Request, RequestState { api, context }: &RequestState) -> Result<Bytes, ApiError> {
    let headers = request.headers();
    let deadline = context.arrived + api.limits.request_timeout;
    let limit = api.limits.max_body_bytes;
    // A client that sends `Expect: 100-continue` has not sent the body yet, so there is nothing to discard.
    let discard = if headers.contains_key(EXPECT) { limit } else { DISCARD_MAX.max(limit) };
    let announced: Option<usize> = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length| length > discard) {
        return Err(ApiError::BodyTooLarge { limit, close: true });
    }
    let received = tokio::time::timeout_at(deadline.into(), read(request.into_body(), limit, discard)).await;
    received.map_err(|_| ApiError::RequestTimeout)?
}

fn check_type(bytes: &[u8], is_json: bool) -> Result<(), ApiError> {
    if bytes.is_empty() {
        return Err(BodyError::NotJson("it is empty".to_owned()).into());
    }
    if is_json { Ok(()) } else { Err(ApiError::NotJsonType) }
}

/// Reads a body to its end. A body larger than `limit` is discarded, one larger than `discard` is not read to its end.
async fn read(body: Body, limit: usize, discard: usize) -> Result<Bytes, ApiError> {
    let too_large = |close| ApiError::BodyTooLarge { limit, close };
    let mut frames = body.into_data_stream();
    let mut whole = BytesMut::new();
    let mut length = 0;
    while let Some(frame) = frames.next().await {
        let frame = frame.map_err(|_| ApiError::BodyUnreadable)?;
        length += frame.len();
        if length > discard {
            return Err(too_large(true));
        }
        if length <= limit {
            whole.extend_from_slice(&frame);
        }
    }
    if length > limit { Err(too_large(false)) } else { Ok(whole.freeze()) }
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let is_json = types.next().and_then(|value| value.to_str().ok()).is_some_and(|value| {
        let mut parts = value.split(';').map(str::trim);
        parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) && parts.all(is_utf_8)
    });
    let mut codings =
        headers.get_all(CONTENT_ENCODING).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let encoded = codings.any(|coding| !coding.trim_ascii().eq_ignore_ascii_case(b"identity"));
    is_json && types.next().is_none() && !encoded
}

/// Checks that a parameter of a media type names no character set other than that of JSON, or its subset ASCII.
fn is_utf_8(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else { return true };
    let charset = value.trim_matches('"');
    !name.eq_ignore_ascii_case("charset")
        || ["utf-8", "utf8", "us-ascii"].iter().any(|known| charset.eq_ignore_ascii_case(known))
}

/// Decodes the last segment of the path of a request; `None` if it is not text.
fn last_segment(parts: &Parts) -> Option<Cow<'_, str>> {
    let segment = parts.uri.path().rsplit('/').next()?;
    percent_decode_str(segment).decode_utf8().ok()
}

/// The id in the path of a request, if it is valid.
pub(crate) struct PathId(pub(crate) Result<PlantId, ApiError>);

impl<App: Send + Sync> FromRequestParts<App> for PathId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, Infallible> {
        let id = last_segment(parts).ok_or(PlantIdError::NotAnInteger).and_then(|id| PlantId::parse(&id));
        Ok(Self(id.map_err(ApiError::BadPathId)))
    }
}

/// The user name in the path of a request.
pub(crate) struct PathUser(pub(crate) UserName);

impl<App: Send + Sync> FromRequestParts<App> for PathUser {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, ApiError> {
        let name = last_segment(parts).and_then(|name| UserName::parse(&name).ok());
        name.map(Self).ok_or(ApiError::BadRequest(
            "a user name in the path has 1 to 255 characters, none of them white space, invisible or a control character",
        ))
    }
}
