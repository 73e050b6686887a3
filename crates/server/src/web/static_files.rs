//! Files that do not change while the program runs: the OpenAPI document, and the pages with their files. They are compressed for
//! clients that accept gzip.

use std::io::Write as _;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use tokio::sync::OnceCell;

use crate::api::{EntityTag, IfNoneMatch, accepts_gzip, not_modified};

pub(super) const HTML: &str = "text/html; charset=utf-8";
pub(super) const SCRIPT: &str = "text/javascript; charset=utf-8";
pub(super) const STYLE: &str = "text/css; charset=utf-8";

/// Browser features that the pages do not use.
const PERMISSIONS: &str = "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()";

pub(crate) struct StaticFile {
    content_type: &'static str,
    identity: Representation,
    /// The gzip representation, if it is smaller. Compressed on the first request, not at the start of each program.
    gzip: OnceCell<Option<Representation>>,
}

struct Representation {
    bytes: Bytes,
    tag: EntityTag,
}

impl Representation {
    fn new(bytes: Bytes) -> Self {
        Self { tag: EntityTag::of_bytes(&bytes), bytes }
    }
}

impl StaticFile {
    pub(crate) fn new(bytes: impl Into<Bytes>, content_type: &'static str) -> Self {
        Self { content_type, identity: Representation::new(bytes.into()), gzip: OnceCell::new() }
    }

    /// Returns the response to a request with these headers; 304 if the client already has the representation.
    pub(crate) async fn respond(&self, request: &HeaderMap) -> Response {
        let gzip = if accepts_gzip(request) { self.gzip().await } else { None };
        let sent = gzip.unwrap_or(&self.identity);
        let is_current = IfNoneMatch::of(request).is_some_and(|condition| condition.matches(&sent.tag.header()));
        let mut response = if is_current { not_modified() } else { Response::new(Body::from(sent.bytes.clone())) };
        if !is_current {
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
            if gzip.is_some() {
                headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
        }
        let headers = response.headers_mut();
        headers.insert(header::ETAG, sent.tag.header());
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        response
    }

    #[expect(clippy::disallowed_methods, reason = "once for each file, and no read of the store")]
    async fn gzip(&self) -> Option<&Representation> {
        let compress = async || {
            let bytes = self.identity.bytes.clone();
            // Takes tens of milliseconds for the largest file, so it must not block a thread of the runtime.
            tokio::task::spawn_blocking(move || compress(&bytes)).await.ok().flatten()
        };
        self.gzip.get_or_init(compress).await.as_ref()
    }
}

/// Compresses the bytes; `None` if the result is not smaller.
fn compress(bytes: &[u8]) -> Option<Representation> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).ok()?;
    let compressed = encoder.finish().ok()?;
    (compressed.len() < bytes.len()).then(|| Representation::new(compressed.into()))
}

/// A file at a path, with the content security policy of its page. It contains no secret and needs no token.
pub(crate) struct PageFile {
    pub(crate) path: &'static str,
    pub(super) file: StaticFile,
    pub(super) policy: HeaderValue,
}

impl PageFile {
    pub(crate) async fn respond(&self, request: &HeaderMap) -> Response {
        let mut response = self.file.respond(request).await;
        add_policy(response.headers_mut(), self.policy.clone());
        response
    }
}

/// Adds the header fields that restrict what a browser lets the page do.
pub(super) fn add_policy(headers: &mut HeaderMap, policy: HeaderValue) {
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    for (name, value) in [
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("permissions-policy"), PERMISSIONS),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
