//! The web console: a page at `/` that is an ordinary client of the API. Its files are part of the binary.

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use hyper::Method;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;

use super::static_files::{self, HTML, SCRIPT, STYLE, StaticFile, add_policy};
use crate::api::{ApiError, accepts_html};

/// Content security policy: scripts and styles only from this server and never inline, and no text is parsed as HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

const PICTURE: &str = "image/svg+xml";
const ICON: &str = "image/x-icon";

/// The page for paths without a page.
const MISSING: &str = include_str!("console/missing.html");

/// Embeds a file of the console and gives its path, by default below `/console/`.
macro_rules! asset {
    ($file:literal, $media_type:expr) => {
        asset!($file, $media_type, concat!("/console/", $file))
    };
    ($file:literal, $media_type:expr, $path:expr) => {
        ($path, StaticFile::new(include_bytes!(concat!("console/", $file)).as_slice(), $media_type))
    };
}

/// Returns the routes of the console's files.
pub(crate) fn routes<App: Clone + Send + Sync + 'static>() -> Router<App> {
    let assets = [
        asset!("index.html", HTML, "/"),
        asset!("style.css", STYLE),
        asset!("icon.svg", PICTURE),
        asset!("favicon.ico", ICON, "/favicon.ico"),
        asset!("theme.js", SCRIPT),
        asset!("app.js", SCRIPT),
        asset!("address.js", SCRIPT),
        asset!("sign-in.js", SCRIPT),
        asset!("token.js", SCRIPT),
        asset!("permissions.js", SCRIPT),
        asset!("overview.js", SCRIPT),
        asset!("list.js", SCRIPT),
        asset!("dialogs.js", SCRIPT),
        asset!("toasts.js", SCRIPT),
        asset!("text.js", SCRIPT),
        asset!("storage.js", SCRIPT),
        asset!("drawing.js", SCRIPT),
        asset!("garden.js", SCRIPT),
        asset!("rules.js", SCRIPT),
        asset!("api.js", SCRIPT),
        asset!("json.js", SCRIPT),
    ];
    static_files::routes(assets, POLICY)
}

/// Checks that a person opens a URL in a browser, without a token. Programs and the console's own scripts do not ask for HTML.
pub(crate) fn is_navigation(parts: &Parts) -> bool {
    matches!(parts.method, Method::GET | Method::HEAD)
        && !parts.headers.contains_key(AUTHORIZATION)
        && accepts_html(&parts.headers)
}

/// Returns the response to a navigation to a URL that needs a token or does not exist: in both cases the same page with the same
/// status, so that it does not reveal which paths the API has.
pub(crate) fn not_found() -> Response {
    let mut response = ApiError::NoRoute.into_response();
    *response.body_mut() = Body::from(MISSING);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(HTML));
    add_policy(headers, POLICY);
    response
}
