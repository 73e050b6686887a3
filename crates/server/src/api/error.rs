//! Errors of the API: status, error code and message of each.
//!
//! All inner errors are mapped to [`ApiError`], and every [`ApiError`] is sent as `{"error": …, "message": …}`. Error codes are
//! stable and never reused; `docs/reference/errors.md` lists them.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::AuthError;
use crate::transport::Rejection;
use plantstore_model::body::{BodyError, FieldErrorKind};
use plantstore_model::plant::{PlantId, PlantIdError};
use plantstore_model::self_service::TokenRequestError;
use plantstore_model::token::Scope;
use plantstore_store::{SHARES_GRANTED_MAX, SHARES_RECEIVED_MAX, StoreError, StoredError, TOKENS_MAX};

/// Time after which a client is asked to retry a request that was rejected for a transient reason.
const RETRY_AFTER_SECONDS: u64 = 1;
/// Challenge for clients without a valid token (RFC 6750).
const CHALLENGE: &str = r#"Bearer realm="plants""#;

/// Maximum number of open event streams of a user.
pub(super) const STREAMS_PER_USER: usize = 10;

/// Marks a stored response that is sent again.
pub(super) const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// An error response. The texts are for clients: they say what to do and never contain a token, SQL or a file path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("{0}")]
    BadBody(#[from] BodyError),
    #[error("`limit` {0}")]
    BadLimit(&'static str),
    #[error("the id in the path {0}")]
    BadPathId(PlantIdError),
    #[error("`after` is not a cursor of this service: take it unchanged from the `Link` header of a list")]
    BadCursor,
    #[error("{0}")]
    BadRequest(&'static str),
    #[error("{0}")]
    ExceedsToken(#[from] TokenRequestError),
    #[error("send the header `Authorization: Bearer <ACCESS_TOKEN>`")]
    NoToken,
    #[error("the access token is not valid: ask the operator of this service for a new one")]
    InvalidToken,
    #[error("the access token lacks the scope `{}`: use one that has it", .0.name())]
    ScopeMissing(Scope),
    #[error("there is no plant with this id: list yours with `?include=id` to see their ids")]
    NoPlant,
    #[error("there is no owner of this name whose plants you can read: leave `owner` out for your own")]
    NoCollection,
    #[error("you can read the plants of this owner, not change them: ask the owner for the role `editor`")]
    ReaderOnly,
    #[error("you have no active token with this id: list yours to see their ids")]
    UnknownToken,
    #[error("you do not share your plants with a user of this name: list your shares to see the names")]
    UnknownShare,
    #[error("no owner of this name shares their plants with you: list your shares to see the names")]
    UnknownReceivedShare,
    #[error("there is nothing at this address: /openapi.json lists what there is")]
    NoRoute,
    #[error("there is nothing at this address: use it without the slash at the end")]
    SlashAtEnd,
    #[error("there is nothing at this address: the metrics are at /metrics")]
    NoMetricsHere,
    /// With the allowed methods in the format of `Allow`.
    #[error("this method is not allowed here: use {}", .0.replace(',', ", "))]
    MethodNotAllowed(String),
    #[error("the request took too long to arrive: send it again")]
    RequestTimeout,
    #[error("a plant with the id {0} exists already: choose another id, or delete it first")]
    Duplicate(PlantId),
    #[error("a request with this `Idempotency-Key` is in flight: send the same again in a moment for its answer")]
    KeyInFlight,
    #[error("you have {TOKENS_MAX} active tokens, which is the most: revoke one first")]
    TooManyTokens,
    #[error("you share your plants with {SHARES_GRANTED_MAX} users, which is the most: revoke one share first")]
    TooManyGranted,
    #[error("you have accepted {SHARES_RECEIVED_MAX} shares, which is the most: leave one first")]
    TooManyReceived,
    #[error("the body is larger than {limit} bytes: send a smaller one")]
    BodyTooLarge {
        limit: usize,
        /// The body is too large to be discarded, so the connection is closed.
        close: bool,
    },
    #[error("the body could not be read to its end")]
    BodyUnreadable,
    #[error("`Transfer-Encoding` must be `chunked` alone: send the body without any other coding")]
    BadTransferEncoding,
    #[error("send the body as `Content-Type: application/json`, in UTF-8 and without a `Content-Encoding`")]
    NotJsonType,
    #[error("this `Idempotency-Key` was sent with another request: send every new request with a new key")]
    KeyReused,
    #[error("{}", .0.message)]
    Replayed(StoredError),
    #[error("too many requests with an invalid access token: try again in {0} s")]
    TooManyFailures(u64),
    #[error("this user has sent too many requests, nothing was done: try again in {0} s")]
    TooManyRequests(u64),
    #[error("you have {STREAMS_PER_USER} open event streams, which is the most: close one first")]
    TooManyStreams,
    #[error("the request line and the header fields are too large or too many: send less")]
    HeadersTooLarge,
    #[error("internal error: search the server log for the request id")]
    Internal(String),
    #[error("the service is overloaded, nothing was done: try again")]
    Overloaded,
    #[error("the service is shutting down: try again")]
    Draining,
    #[error("the keys of the access token's issuer are not known yet, nothing was done: try again")]
    NoIssuerKeys,
    #[error("the store is unavailable, nothing was done: try again")]
    Unavailable(String),
    #[error(
        "the outcome is unknown: send the same again with the same `Idempotency-Key` to find out; without one, list the plants to see"
    )]
    OutcomeUnknown(String),
    #[error("the outcome is unknown: list your tokens or shares to see")]
    ChangeUnknown(String),
    #[error("storage is full, nothing was done: tell the operator of this service")]
    StorageFull(String),
}

impl ApiError {
    /// Returns the error code, whose first three digits are the status.
    pub(crate) fn code(&self) -> i32 {
        match self {
            Self::BadBody(BodyError::NotJson(_)) => 40000,
            Self::BadBody(BodyError::NotAnObject(_)) => 40002,
            Self::BadBody(BodyError::Fields(errors)) => match errors.iter().map(|error| error.kind).min() {
                Some(FieldErrorKind::Missing) => 40001,
                Some(FieldErrorKind::Type) | None => 40002,
                Some(FieldErrorKind::Rule) => 40003,
                Some(FieldErrorKind::Unknown) => 40007,
            },
            Self::BadLimit(_) => 40004,
            Self::BadPathId(_) => 40005,
            Self::BadCursor => 40006,
            Self::BadRequest(_) | Self::BodyUnreadable | Self::BadTransferEncoding => 40007,
            Self::ExceedsToken(_) => 40008,
            Self::NoToken => 40100,
            Self::InvalidToken => 40101,
            Self::ScopeMissing(_) | Self::ReaderOnly => 40300,
            Self::NoPlant | Self::NoCollection => 40400,
            Self::NoRoute | Self::SlashAtEnd | Self::NoMetricsHere => 40401,
            Self::UnknownToken => 40402,
            Self::UnknownShare | Self::UnknownReceivedShare => 40403,
            Self::MethodNotAllowed(_) => 40500,
            Self::RequestTimeout => 40800,
            Self::Duplicate(_) => 40900,
            Self::KeyInFlight => 40901,
            Self::TooManyTokens => 40902,
            Self::TooManyGranted | Self::TooManyReceived => 40903,
            Self::BodyTooLarge { .. } => 41300,
            Self::NotJsonType => 41500,
            Self::KeyReused => 42200,
            Self::Replayed(stored) => stored.code,
            Self::TooManyFailures(_) | Self::TooManyRequests(_) | Self::TooManyStreams => 42900,
            Self::HeadersTooLarge => 43100,
            Self::Internal(_) => 50000,
            Self::Overloaded | Self::Draining | Self::NoIssuerKeys | Self::Unavailable(_) => 50300,
            Self::OutcomeUnknown(_) | Self::ChangeUnknown(_) => 50301,
            Self::StorageFull(_) => 50700,
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        status_of(self.code())
    }

    /// Returns true for an error in the request itself, which is the same for every retry and therefore stored under the
    /// idempotency key.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self.status(), StatusCode::BAD_REQUEST | StatusCode::UNSUPPORTED_MEDIA_TYPE)
    }

    /// Returns the header field that belongs to the error.
    fn header(&self) -> Option<(HeaderName, String)> {
        match self {
            Self::NoToken => Some((header::WWW_AUTHENTICATE, CHALLENGE.to_owned())),
            Self::InvalidToken => Some((header::WWW_AUTHENTICATE, format!(r#"{CHALLENGE}, error="invalid_token""#))),
            Self::ScopeMissing(scope) => {
                let scope = scope.name();
                let challenge = format!(r#"{CHALLENGE}, error="insufficient_scope", scope="{scope}""#);
                Some((header::WWW_AUTHENTICATE, challenge))
            }
            Self::MethodNotAllowed(methods) => Some((header::ALLOW, methods.clone())),
            Self::TooManyFailures(seconds) | Self::TooManyRequests(seconds) => {
                Some((header::RETRY_AFTER, seconds.to_string()))
            }
            Self::Overloaded
            | Self::Draining
            | Self::NoIssuerKeys
            | Self::Unavailable(_)
            | Self::OutcomeUnknown(_)
            | Self::TooManyStreams
            | Self::KeyInFlight => Some((header::RETRY_AFTER, RETRY_AFTER_SECONDS.to_string())),
            Self::Replayed(_) => Some((IDEMPOTENCY_REPLAYED, "true".to_owned())),
            // The rest of the request is not read, or the end of its body is unknown: no request can follow on the connection.
            Self::RequestTimeout
            | Self::BodyUnreadable
            | Self::BadTransferEncoding
            | Self::BodyTooLarge { close: true, .. } => Some((header::CONNECTION, "close".to_owned())),
            _ => None,
        }
    }

    /// Returns the cause for the log; clients never see it.
    fn detail(&self) -> Option<&str> {
        match self {
            Self::Internal(detail)
            | Self::Unavailable(detail)
            | Self::OutcomeUnknown(detail)
            | Self::ChangeUnknown(detail)
            | Self::StorageFull(detail) => Some(detail),
            _ => None,
        }
    }
}

/// Returns the status in the first three digits of an error code.
fn status_of(code: i32) -> StatusCode {
    let status = u16::try_from(code / 100).ok().and_then(|status| StatusCode::from_u16(status).ok());
    status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The body of every error response
#[derive(Serialize, ToSchema)]
#[schema(as = Error)]
pub(super) struct ErrorBody {
    /// The error code: stable, never reused; its first three digits are the status. Each response lists the codes that it can
    /// have; accept others, because later releases may add some
    error: i32,
    /// Text for people: the reason, and how to correct the request
    message: String,
}

/// An error as the access log reports it, carried as an extension of the response.
#[derive(Clone)]
pub(crate) struct ErrorReport {
    pub(crate) code: i32,
    /// The cause of an error of the server.
    pub(crate) detail: Option<String>,
    /// The request was rejected for lack of capacity.
    pub(crate) overloaded: bool,
}

impl ErrorReport {
    pub(crate) fn is_unauthorized(&self) -> bool {
        status_of(self.code) == StatusCode::UNAUTHORIZED
    }
}

impl ApiError {
    /// Returns status, header fields and body of the response.
    pub(crate) fn render(&self) -> (StatusCode, HeaderMap, Bytes) {
        // Serialising a number and a string cannot fail.
        let body = serde_json::to_vec(&ErrorBody { error: self.code(), message: self.to_string() }).unwrap_or_default();
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some((name, value)) = self.header()
            && let Ok(value) = HeaderValue::try_from(value)
        {
            headers.insert(name, value);
        }
        (self.status(), headers, Bytes::from(body))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, headers, body) = self.render();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        let overloaded = matches!(self, Self::Overloaded);
        let report = ErrorReport { code: self.code(), detail: self.detail().map(str::to_owned), overloaded };
        response.extensions_mut().insert(report);
        response
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::HeadTimeout => Self::RequestTimeout,
            Rejection::HeadTooLarge => Self::HeadersTooLarge,
            Rejection::TransferEncoding => Self::BadTransferEncoding,
            Rejection::Overloaded => Self::Overloaded,
            Rejection::NotEncrypted => Self::BadRequest("this port is encrypted: write https:// in place of http://"),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let detail = error.to_string();
        match error {
            StoreError::Overloaded => Self::Overloaded,
            StoreError::Full(_) => Self::StorageFull(detail),
            StoreError::Unavailable(_) => Self::Unavailable(detail),
            StoreError::InFlight => Self::KeyInFlight,
            StoreError::OutcomeUnknown(_) => Self::OutcomeUnknown(detail),
            // The last two are errors of operators' commands; no request causes them.
            StoreError::Internal(_) | StoreError::NewUserName(_) | StoreError::BadRow(_) => Self::Internal(detail),
        }
    }
}

impl From<AuthError> for ApiError {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::NoToken => Self::NoToken,
            AuthError::InvalidToken => Self::InvalidToken,
            AuthError::ScopeMissing(scope) => Self::ScopeMissing(scope),
            AuthError::BadRequest(message) => Self::BadRequest(message),
            AuthError::TooManyFailures(seconds) => Self::TooManyFailures(seconds),
            AuthError::TooManyRequests(seconds) => Self::TooManyRequests(seconds),
            AuthError::NoIssuerKeys => Self::NoIssuerKeys,
            AuthError::Unavailable(detail) => Self::Unavailable(detail),
            AuthError::Store(error) => error.into(),
        }
    }
}

impl IntoResponse for AuthError {
    fn into_response(self) -> Response {
        ApiError::from(self).into_response()
    }
}
