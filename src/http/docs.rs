//! The interactive page about the interface, and the OpenAPI document that it shows: everything comes from the binary, and
//! the page may not load from anywhere else.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderValue};

use super::App;
use super::auth::Public;
use super::listing::{IfNoneMatch, Tag};
use super::openapi::{self, OpenapiAnswers, OpenapiParameters, SERVICE};

/// What the page may do: run our scripts, use our styles, and call this service.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// Something that is the same as long as the program runs.
struct Fixed {
    bytes: Bytes,
    content_type: HeaderValue,
    tag: Tag,
}

impl Fixed {
    fn new(bytes: impl Into<Bytes>, content_type: &'static str) -> Self {
        let bytes = bytes.into();
        Self { tag: Tag::of_bytes(&bytes), bytes, content_type: HeaderValue::from_static(content_type) }
    }

    /// The answer to a request with these headers.
    fn answer(&self, request: &HeaderMap) -> Response {
        let known = IfNoneMatch::of(request).is_some_and(|known| known.matches(self.tag));
        let mut response = Response::new(if known { Body::empty() } else { Body::from(self.bytes.clone()) });
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            response.headers_mut().insert(header::CONTENT_TYPE, self.content_type.clone());
        }
        let headers = response.headers_mut();
        headers.insert(header::ETAG, self.tag.header());
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }
}

/// `GET /openapi.json`
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "getOpenapi",
    tag = SERVICE,
    summary = "This document",
    description = "Describes the interface, in OpenAPI 3.1.",
    params(OpenapiParameters),
    responses(OpenapiAnswers),
)]
pub(crate) async fn openapi(_: Public, request: HeaderMap) -> Response {
    static DOCUMENT: LazyLock<Fixed> = LazyLock::new(|| {
        let document = openapi::openapi().to_json().expect("strings, numbers and lists of them are always JSON");
        Fixed::new(document, "application/json")
    });
    DOCUMENT.answer(&request)
}

/// The page and its files. They are for people: the OpenAPI document does not describe them.
pub(crate) fn pages() -> Router<Arc<App>> {
    let page = || Fixed::new(include_str!("docs/index.html"), "text/html; charset=utf-8");
    let files = [
        ("/docs", page()),
        ("/docs/", page()),
        ("/docs/page.css", Fixed::new(include_str!("docs/page.css"), "text/css; charset=utf-8")),
        ("/docs/start.js", Fixed::new(include_str!("docs/start.js"), "text/javascript; charset=utf-8")),
        ("/docs/swagger-ui.css", of_viewer("swagger-ui.css", "text/css; charset=utf-8")),
        ("/docs/swagger-ui-bundle.js", of_viewer("swagger-ui-bundle.js", "text/javascript; charset=utf-8")),
        ("/docs/favicon-32x32.png", of_viewer("favicon-32x32.png", "image/png")),
    ];
    files.into_iter().fold(Router::new(), |router, (path, file)| {
        let file = Arc::new(file);
        let serve = async move |_: Public, request: HeaderMap| {
            let mut response = file.answer(&request);
            response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, POLICY);
            response
        };
        router.route(path, get(serve))
    })
}

/// A file of the viewer that the page starts.
fn of_viewer(name: &str, content_type: &'static str) -> Fixed {
    let file = utoipa_swagger_ui::serve(name, Arc::default()).ok().flatten();
    match file.map(|file| file.bytes) {
        Some(Cow::Borrowed(bytes)) => Fixed::new(bytes, content_type),
        _ => unreachable!("{name} stands in the binary as it is"),
    }
}
