//! Responses with lists.

use axum::body::Body;
use axum::response::Response;
use hyper::header::{self, HeaderMap, HeaderValue};

use crate::api::entity_tag::{self, EntityTag};

/// Header fields of a response, about: memory that is allocated at once.
const HEADERS_USUAL: usize = 12;

pub(super) fn respond(body: Body, next: Option<HeaderValue>, tag: HeaderValue) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.reserve(HEADERS_USUAL);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    validators(headers, tag);
    if let Some(next) = next {
        headers.insert(header::LINK, next);
    }
    response
}

/// Returns the response to a client that has the list already.
pub(super) fn not_modified(tag: EntityTag) -> Response {
    let mut response = entity_tag::not_modified();
    response.headers_mut().reserve(HEADERS_USUAL);
    validators(response.headers_mut(), tag.header());
    response
}

/// Adds the entity tag, and the directive for caches to revalidate the list with every request.
fn validators(headers: &mut HeaderMap, tag: HeaderValue) {
    headers.insert(header::ETAG, tag);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    headers.insert(header::VARY, HeaderValue::from_static("Authorization"));
}
