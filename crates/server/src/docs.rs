//! The interactive page about the interface, and the OpenAPI document that it shows: everything comes from the binary, and
//! the page may not load from anywhere else.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::response::Response;
use hyper::HeaderMap;

use super::App;
use super::auth::Public;
use super::fixed::{self, Fixed, HTML, SCRIPT, STYLE};
use super::openapi::{self, OpenapiAnswers, OpenapiParameters, SERVICE};

/// What the page may do: run our scripts, use our styles, and call this service.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

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
    DOCUMENT.answer(&request).await
}

/// The page and its files. They are for people: the OpenAPI document does not describe them.
pub(crate) fn pages() -> Router<&'static App> {
    let page = || Fixed::new(include_str!("docs/index.html"), HTML);
    let files = [
        ("/docs", page()),
        ("/docs/", page()),
        ("/docs/page.css", Fixed::new(include_str!("docs/page.css"), STYLE)),
        ("/docs/start.js", Fixed::new(include_str!("docs/start.js"), SCRIPT)),
        ("/docs/swagger-ui.css", of_viewer("swagger-ui.css", STYLE)),
        ("/docs/swagger-ui-bundle.js", of_viewer("swagger-ui-bundle.js", SCRIPT)),
        ("/docs/favicon-32x32.png", of_viewer("favicon-32x32.png", "image/png")),
    ];
    fixed::pages(files, POLICY)
}

/// A file of the viewer that the page starts.
fn of_viewer(name: &str, content_type: &'static str) -> Fixed {
    let file = utoipa_swagger_ui::serve(name, Arc::default()).ok().flatten();
    match file.map(|file| file.bytes) {
        Some(Cow::Borrowed(bytes)) => Fixed::new(bytes, content_type),
        _ => unreachable!("{name} stands in the binary as it is"),
    }
}
