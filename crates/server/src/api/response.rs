//! Responses that operations have in common.

use axum::body::Body;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderValue};
use serde::Serialize;

use super::error::ApiError;

/// Number of header fields that are reserved at once: of most responses, and of lists and plants. Room for one more would be
/// twice as large, and memory of more than a KiB is slow to allocate.
const HEADERS_USUAL: usize = 6;
const HEADERS_OF_PLANTS: usize = 12;

/// `Vary` of responses that are never compressed.
pub(super) const NOT_NEGOTIATED: HeaderValue = HeaderValue::from_static("Authorization");
/// `Vary` of responses that are compressed for clients that accept it.
pub(super) const NEGOTIATED: HeaderValue = HeaderValue::from_static("Authorization, Accept-Encoding");

/// Returns a response with this body of JSON.
pub(super) fn json(body: impl Into<Body>) -> Response {
    json_with_room(body, HEADERS_USUAL)
}

fn json_with_room(body: impl Into<Body>, room: usize) -> Response {
    let mut response = Response::new(body.into());
    let headers = response.headers_mut();
    headers.reserve(room);
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
    let mut response = json_with_room(body, HEADERS_OF_PLANTS);
    let headers = response.headers_mut();
    add_validators(headers, tag, NOT_NEGOTIATED);
    if let Some(next) = next {
        headers.insert(header::LINK, next);
    }
    response
}

/// Returns the response to a client that already has the list or plant.
pub(super) fn plants_not_modified(tag: HeaderValue, vary: HeaderValue) -> Response {
    let mut response = not_modified();
    response.headers_mut().reserve(HEADERS_USUAL);
    add_validators(response.headers_mut(), tag, vary);
    response
}

/// Adds the entity tag, and the directives for caches: revalidate with every request, and store one list per token.
fn add_validators(headers: &mut HeaderMap, tag: HeaderValue, vary: HeaderValue) {
    headers.insert(header::ETAG, tag);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    headers.insert(header::VARY, vary);
}
