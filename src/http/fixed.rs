//! What is the same as long as the program runs: the OpenAPI document, and the pages for people with their files.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::App;
use super::auth::Public;
use super::listing::{IfNoneMatch, Tag};

pub(crate) const HTML: &str = "text/html; charset=utf-8";
pub(crate) const SCRIPT: &str = "text/javascript; charset=utf-8";
pub(crate) const STYLE: &str = "text/css; charset=utf-8";

/// What a page about plants has no use for.
const PERMISSIONS: &str = "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()";

/// Something that does not change, and its type.
pub(crate) struct Fixed {
    bytes: Bytes,
    content_type: &'static str,
    tag: Tag,
}

impl Fixed {
    pub(crate) fn new(bytes: impl Into<Bytes>, content_type: &'static str) -> Self {
        let bytes = bytes.into();
        Self { tag: Tag::of_bytes(&bytes), bytes, content_type }
    }

    /// The answer to a request with these headers: nothing, for whoever has it already.
    pub(crate) fn answer(&self, request: &HeaderMap) -> Response {
        let known = IfNoneMatch::of(request).is_some_and(|known| known.matches(self.tag));
        let mut response = Response::new(if known { Body::empty() } else { Body::from(self.bytes.clone()) });
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        }
        let headers = response.headers_mut();
        headers.insert(header::ETAG, self.tag.header());
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }
}

/// A page and its files, at their addresses. They are for people and hold no secret, so anybody may have them; what the page may
/// do is in its policy.
pub(crate) fn pages(
    files: impl IntoIterator<Item = (&'static str, Fixed)>,
    policy: &'static str,
) -> Router<&'static App> {
    files.into_iter().fold(Router::new(), |router, (path, file)| {
        let file = Arc::new(file);
        let serve = async move |_: Public, request: HeaderMap| {
            let mut response = file.answer(&request);
            confine(response.headers_mut(), policy);
            response
        };
        router.route(path, get(serve))
    })
}

fn confine(headers: &mut HeaderMap, policy: &'static str) {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("permissions-policy"), PERMISSIONS),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
