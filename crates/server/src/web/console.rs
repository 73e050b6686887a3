//! The web console: a page at `/` that is a client of the service like any other. Its files are part of the binary.

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use hyper::Method;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;

use super::static_files::{self, HTML, SCRIPT, STYLE, StaticFile, add_policy};
use crate::api::{ApiError, accepts_html};

/// Scripts and styles come from this server alone, never from within the page, and no text ever becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

const PICTURE: &str = "image/svg+xml";
const ICON: &str = "image/x-icon";

/// The page at every path that is no page.
const MISSING: &str = include_str!("console/missing.html");

/// A file of the console, at the address that the page looks for it.
macro_rules! asset {
    ($file:literal, $media_type:expr) => {
        asset!($file, $media_type, concat!("/console/", $file))
    };
    ($file:literal, $media_type:expr, $path:expr) => {
        ($path, StaticFile::new(include_bytes!(concat!("console/", $file)).as_slice(), $media_type))
    };
}

/// Routes the files of the console.
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

/// Checks that a person opens an address in a browser, without a token. Programs, and the console's own scripts, do not name HTML
/// among what they accept.
pub(crate) fn is_navigation(parts: &Parts) -> bool {
    matches!(parts.method, Method::GET | Method::HEAD)
        && !parts.headers.contains_key(AUTHORIZATION)
        && accepts_html(&parts.headers)
}

/// Returns the response to such a person at an address that needs a token or does not exist: the same page with the same
/// status, so that it does not show which addresses the API has.
pub(crate) fn not_found() -> Response {
    let mut response = ApiError::NoRoute.into_response();
    *response.body_mut() = Body::from(MISSING);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(HTML));
    add_policy(headers, POLICY);
    response
}
