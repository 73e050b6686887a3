//! Responses to list requests.

use axum::body::Body;
use axum::response::Response;
use hyper::header::{self, HeaderMap, HeaderValue};

use crate::api::entity_tag::{self, EntityTag};

/// Approximate number of header fields of a response, reserved at once.
const HEADERS_USUAL: usize = 12;

pub(super) fn respond(body: Body, next: Option<HeaderValue>, tag: HeaderValue) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.reserve(HEADERS_USUAL);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    add_validators(headers, tag);
    if let Some(next) = next {
        headers.insert(header::LINK, next);
    }
    response
}

/// Returns the response to a client that already has the list.
pub(super) fn not_modified(tag: EntityTag) -> Response {
    let mut response = entity_tag::not_modified();
    response.headers_mut().reserve(HEADERS_USUAL);
    add_validators(response.headers_mut(), tag.header());
    response
}

/// Adds the entity tag, and the directives for caches: revalidate with every request, and store one list per token.
fn add_validators(headers: &mut HeaderMap, tag: HeaderValue) {
    headers.insert(header::ETAG, tag);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    headers.insert(header::VARY, HeaderValue::from_static("Authorization"));
}
