//! The route table: the handler of each path, and the label of each route in the log and the metrics.

mod operations;

use axum::Router;
use axum::routing::MethodFilter;
use hyper::Uri;
use serde_json::Value;

use self::operations::OPERATIONS;
use crate::api::{ApiError, openapi, probes};
use crate::auth::{Caller, NoScopeRequired};
use crate::request_handler::{AppState, NO_ROUTE};
use crate::web;

/// Labels and paths of the HTML pages and their files. The files of a page share a label.
const PAGES: [(&str, Paths); 5] = [
    ("/docs", Paths::WithSlash("/docs")),
    ("/docs/{file}", Paths::Below("/docs/")),
    ("/", Paths::Exact("/")),
    ("/console/{file}", Paths::Below("/console/")),
    ("/favicon.ico", Paths::Exact("/favicon.ico")),
];

enum Paths {
    Exact(&'static str),
    /// With or without a slash at the end.
    WithSlash(&'static str),
    /// One segment behind the prefix.
    Segment(&'static str),
    /// Everything behind the prefix.
    Below(&'static str),
}

impl Paths {
    fn contain(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => path == *exact,
            Self::WithSlash(exact) => path.strip_suffix('/').unwrap_or(path) == *exact,
            Self::Segment(prefix) => {
                path.strip_prefix(prefix).is_some_and(|segment| !segment.is_empty() && !segment.contains('/'))
            }
            Self::Below(prefix) => path.starts_with(prefix),
        }
    }
}

/// Iterates over labels and paths of all routes. The label of an operation is its path in the OpenAPI document; a path with
/// several methods occurs as often.
fn routes() -> impl Iterator<Item = (&'static str, Paths)> {
    let operations = OPERATIONS.iter().map(|(_, operation)| {
        let label = operation.path();
        (label, label.split_once('{').map_or(Paths::Exact(label), |(prefix, _)| Paths::Segment(prefix)))
    });
    operations.chain(PAGES)
}

/// Returns the labels of all routes; the last is for paths without a route.
pub(crate) fn labels() -> Vec<&'static str> {
    let mut labels: Vec<_> = routes().map(|(label, _)| label).collect();
    labels.sort_unstable();
    labels.dedup();
    labels.push(NO_ROUTE);
    labels
}

/// Returns the label of a path's route.
pub(crate) fn label_of(path: &str) -> &'static str {
    routes().find(|(_, paths)| paths.contain(path)).map_or(NO_ROUTE, |(label, _)| label)
}

/// Returns true for the labels of probes and static files.
pub(crate) fn is_routine(label: &str) -> bool {
    probes::PATHS.contains(&label) || PAGES.iter().any(|(page, _)| *page == label)
}

/// Returns the OpenAPI document.
pub fn openapi() -> Value {
    openapi::document(OPERATIONS.iter().map(|(_, operation)| operation))
}

pub(crate) fn openapi_json() -> String {
    openapi().to_string()
}

pub(crate) fn router(state: AppState, console: bool) -> Router {
    let docs = web::docs_routes(console);
    let console = if console { web::console_routes(state.web.sign_in.as_ref()) } else { Router::new() };
    let operations = OPERATIONS.iter().fold(Router::new(), |router, (handler, operation)| {
        let method = MethodFilter::try_from(operation.method()).unwrap_or(MethodFilter::GET);
        router.route(operation.path(), handler(method))
    });
    operations
        .merge(docs)
        .merge(console)
        .fallback(no_route)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(state)
}

/// Requires a token, so that other clients do not learn which paths exist.
async fn no_route(_: Caller<NoScopeRequired>, uri: Uri) -> ApiError {
    let without_slash = uri.path().strip_suffix('/').map_or(NO_ROUTE, label_of);
    let is_page = PAGES.iter().any(|(page, _)| *page == without_slash);
    if without_slash == NO_ROUTE || is_page { ApiError::NoRoute } else { ApiError::SlashAtEnd }
}

/// Leaves the methods out: the router adds `Allow`, from which `name_allowed_methods` fills them in.
async fn method_not_allowed(_: Caller<NoScopeRequired>) -> ApiError {
    ApiError::MethodNotAllowed(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_of_a_route_is_also_one_of_its_paths() {
        for label in labels() {
            assert_eq!(label_of(label), label);
        }
    }

    #[test]
    fn paths_have_the_label_of_their_route() {
        for (path, label) in [
            ("/plants/", NO_ROUTE),
            ("/plants/1/2", NO_ROUTE),
            ("/plants/x", "/plants/{id}"),
            ("/tokens/1", "/tokens/{id}"),
            ("/shares/ada", "/shares/{user}"),
            ("/shares/received", "/shares/{user}"),
            ("/shares/received/ada", "/shares/received/{owner}"),
            ("/docs/", "/docs"),
            ("/docs/page.css", "/docs/{file}"),
            ("/console/a/b", "/console/{file}"),
            ("/nothing", NO_ROUTE),
        ] {
            assert_eq!(label_of(path), label, "{path}");
        }
    }
}
