//! Responses that operations have in common.

use std::sync::LazyLock;

use axum::body::Body;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;

use super::error::ApiError;
use crate::transport::REQUEST_ID;

/// Number of header fields that are reserved at once. Room for one more would be twice as large, and memory of more than a KiB is
/// slow to allocate.
const HEADERS_USUAL: usize = 6;

/// Header fields of responses with a list or a plant. A copy of them takes fewer instructions than inserting them. The empty
/// ones are replaced in the copy, which does not grow by that.
static PAGE: LazyLock<HeaderMap> = LazyLock::new(|| {
    let fields = [
        (header::CONTENT_TYPE, "application/json"),
        (header::ETAG, ""),
        // Revalidate with every request, and store one list per token.
        (header::CACHE_CONTROL, "private, no-cache"),
        (header::VARY, "Authorization"),
        (header::LINK, ""),
        (REQUEST_ID, ""),
        (header::X_CONTENT_TYPE_OPTIONS, ""),
        (header::DATE, ""),
    ];
    fields.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
});
static LAST_PAGE: LazyLock<HeaderMap> = LazyLock::new(|| without(&PAGE, &header::LINK));
static NOT_MODIFIED: LazyLock<HeaderMap> = LazyLock::new(|| {
    let mut fields = without(&LAST_PAGE, &header::CONTENT_TYPE);
    fields.insert(header::VARY, NEGOTIATED);
    fields
});

/// Copies all fields but one, and their capacity, because replacing a field in a full map lets it grow.
fn without(fields: &HeaderMap, omitted: &HeaderName) -> HeaderMap {
    let mut others = HeaderMap::with_capacity(fields.capacity());
    others
        .extend(fields.iter().filter(|(name, _)| *name != omitted).map(|(name, value)| (name.clone(), value.clone())));
    others
}

/// `Vary` of responses that are never compressed.
pub(super) const NOT_NEGOTIATED: HeaderValue = HeaderValue::from_static("Authorization");
/// `Vary` of responses that are compressed for clients that accept it.
pub(super) const NEGOTIATED: HeaderValue = HeaderValue::from_static("Authorization, Accept-Encoding");

/// Returns a response with this body of JSON.
pub(super) fn json(body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    let headers = response.headers_mut();
    headers.reserve(HEADERS_USUAL);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns a response with this body of JSON, which no cache may store.
pub(super) fn uncached_json(body: impl Into<Body>) -> Response {
    let mut response = json(body);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(super) fn serialize(body: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(body).map_err(|error| ApiError::Internal(error.to_string()))
}

/// Returns a response without a body.
fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Returns the response to a change without a result.
pub(super) fn no_content() -> Response {
    empty(StatusCode::NO_CONTENT)
}

/// Returns a 304 response without header fields.
pub(crate) fn not_modified() -> Response {
    empty(StatusCode::NOT_MODIFIED)
}

/// Returns the response with a list or a plant, and the `Link` to the next page.
pub(super) fn plants(body: impl Into<Body>, next: Option<HeaderValue>, tag: HeaderValue) -> Response {
    let mut response = Response::new(body.into());
    let headers = response.headers_mut();
    *headers = if next.is_some() { PAGE.clone() } else { LAST_PAGE.clone() };
    headers.insert(header::ETAG, tag);
    if let Some(next) = next {
        headers.insert(header::LINK, next);
    }
    response
}

/// Returns the response to a client that already has the list, which may be one that is compressed for some clients.
pub(super) fn plants_not_modified(tag: HeaderValue) -> Response {
    let mut response = not_modified();
    let headers = response.headers_mut();
    *headers = NOT_MODIFIED.clone();
    headers.insert(header::ETAG, tag);
    response
}
