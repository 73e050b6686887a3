//! The web console: a page at `/` that is a client of the service like any other. Its files are part of the binary.
//!
//! They are the same for everybody and hold no secret, so anybody may have them. What the page may do is in its policy: run
//! these scripts, call this server, and nothing else.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::get;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use super::App;
use super::auth::Public;
use super::listing::IfNoneMatch;

/// Scripts and styles come from this server alone, never from within the page, and no text ever becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";
/// What a page of plants has no use for.
const PERMISSIONS: &str = "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// A file of the console.
struct Asset {
    path: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
}

/// An asset of this name, at the address that the page looks for it.
macro_rules! asset {
    ($file:literal, $media_type:expr) => {
        asset!($file, $media_type, concat!("/console/", $file))
    };
    ($file:literal, $media_type:expr, $path:expr) => {
        Asset { path: $path, media_type: $media_type, bytes: include_bytes!(concat!("console/", $file)) }
    };
}

static ASSETS: [Asset; 14] = [
    asset!("index.html", HTML, "/"),
    asset!("style.css", STYLE),
    asset!("icon.svg", PICTURE),
    asset!("theme.js", SCRIPT),
    asset!("app.js", SCRIPT),
    asset!("sign-in.js", SCRIPT),
    asset!("list.js", SCRIPT),
    asset!("dialogs.js", SCRIPT),
    asset!("toasts.js", SCRIPT),
    asset!("drawing.js", SCRIPT),
    asset!("garden.js", SCRIPT),
    asset!("rules.js", SCRIPT),
    asset!("api.js", SCRIPT),
    asset!("json.js", SCRIPT),
];

/// One tag for all of them: a browser never mixes the files of two releases.
static TAG: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for asset in &ASSETS {
        hash.update(asset.bytes);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
});

/// The addresses of the console.
pub(super) fn routes() -> Router<Arc<App>> {
    let serve = |asset: &'static Asset| get(async move |_: Public, headers: HeaderMap| asset.answer(&headers));
    ASSETS.iter().fold(Router::new(), |routes, asset| routes.route(asset.path, serve(asset)))
}

impl Asset {
    /// The file, unless the browser has it already.
    fn answer(&self, request: &HeaderMap) -> Response {
        let is_known = IfNoneMatch::of(request).is_some_and(|known| known.names(&TAG));
        let mut response = Response::new(if is_known { Body::empty() } else { Body::from(self.bytes) });
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        if !is_known {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        }
        if let Ok(tag) = HeaderValue::try_from(format!("\"{}\"", *TAG)) {
            headers.insert(header::ETAG, tag);
        }
        for (name, value) in [
            (header::CACHE_CONTROL, "no-cache"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("permissions-policy"), PERMISSIONS),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
