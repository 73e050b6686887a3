//! Responses to list requests.

use axum::body::Body;
use axum::response::Response;
use hyper::header::{self, HeaderMap, HeaderValue};

use super::coding::Coding;
use crate::api::entity_tag::{self, EntityTag};

/// Approximate number of header fields of a response, reserved at once.
const HEADERS_USUAL: usize = 12;

/// `Vary` of responses that are never compressed.
pub(super) const NOT_NEGOTIATED: HeaderValue = HeaderValue::from_static("Authorization");
/// `Vary` of responses that are compressed for clients that accept it.
pub(super) const NEGOTIATED: HeaderValue = HeaderValue::from_static("Authorization, Accept-Encoding");

pub(super) fn respond(body: Body, next: Option<HeaderValue>, tag: HeaderValue) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.reserve(HEADERS_USUAL);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    add_validators(headers, tag, NOT_NEGOTIATED);
    if let Some(next) = next {
        headers.insert(header::LINK, next);
    }
    response
}

/// Returns the response with a list in this coding.
pub(super) fn respond_encoded(body: Body, coding: &Coding, next: Option<HeaderValue>, tag: HeaderValue) -> Response {
    let mut response = respond(body, next, tag);
    coding.add_headers(response.headers_mut());
    if coding.is_negotiated() {
        response.headers_mut().insert(header::VARY, NEGOTIATED);
    }
    response
}

/// Returns the response to a client that already has what it asks for.
pub(super) fn not_modified(tag: EntityTag, vary: HeaderValue) -> Response {
    let mut response = entity_tag::not_modified();
    response.headers_mut().reserve(HEADERS_USUAL);
    add_validators(response.headers_mut(), tag.header(), vary);
    response
}

/// Adds the entity tag, and the directives for caches: revalidate with every request, and store one list per token.
fn add_validators(headers: &mut HeaderMap, tag: HeaderValue, vary: HeaderValue) {
    headers.insert(header::ETAG, tag);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    headers.insert(header::VARY, vary);
}
