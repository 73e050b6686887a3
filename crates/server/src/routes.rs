//! The route table: the operations with their handlers, the HTML pages, and the label of each route in the log and the metrics.
//! Requests are dispatched by it, and the OpenAPI document is made from it.

use std::sync::LazyLock;

use axum::extract::Request;
use axum::handler::Handler as _;
use axum::response::Response;
use futures_util::future::BoxFuture;
use hyper::header::HeaderMap;
use hyper::{Method, Uri};
use serde_json::{Value, json};

use crate::api::operation::{Access, DEFAULT, Operation, inline, list, one};
use crate::api::{ApiError, RequestState, events, openapi, plants, probes, shares, tokens};
use crate::auth::{Caller, NoScopeRequired, Public};
use crate::request_handler::{NO_ROUTE, Respond};
use crate::web::{self, PageFile, SignIn, StaticFile};
use plantstore_model::plant::{NewPlant, Plant};
use plantstore_model::self_service::{ShareRequest, TokenRequest};
use plantstore_model::token::Scope;

/// All operations with their handlers; those that are called most come first.
static OPERATIONS: [Operation; 18] = [
    Operation {
        call: |request, state| plants::list.call(request, state),
        line: ("GET", "/plants"),
        access: Access::Scope(Scope::Read),
        parameters: &["limit", "after", "tag", "include", "owner", "If-None-Match"],
        returns: Some(list::<Plant<'_>>()),
        headers: &["Link", "Content-Encoding"],
        errors: &[40004, 40006, 40400],
        ..DEFAULT
    },
    Operation {
        call: |request, state| plants::create.call(request, state),
        line: ("POST", "/plants"),
        access: Access::Scope(Scope::Write),
        parameters: &["owner", "Idempotency-Key"],
        takes: Some(one::<NewPlant>()),
        returns: Some(one::<Plant<'_>>()),
        headers: &["Location"],
        errors: &[40000, 40001, 40002, 40003, 40400, 40900, 40901, 41500, 42200],
    },
    Operation {
        call: |request, state| plants::read.call(request, state),
        line: ("GET", "/plants/{id}"),
        access: Access::Scope(Scope::Read),
        parameters: &["PlantId", "include", "owner", "If-None-Match"],
        returns: Some(one::<Plant<'_>>()),
        errors: &[40005, 40400],
        ..DEFAULT
    },
    Operation {
        call: |request, state| plants::replace.call(request, state),
        line: ("PUT", "/plants/{id}"),
        access: Access::Scope(Scope::Write),
        parameters: &["PlantId", "owner", "Idempotency-Key"],
        takes: Some(inline(plants::replacement_schema)),
        returns: Some(one::<Plant<'_>>()),
        errors: &[40000, 40001, 40002, 40003, 40005, 40400, 40901, 41500, 42200],
        ..DEFAULT
    },
    Operation {
        call: |request, state| plants::delete.call(request, state),
        line: ("DELETE", "/plants/{id}"),
        access: Access::Scope(Scope::Delete),
        parameters: &["PlantId", "owner", "Idempotency-Key"],
        errors: &[40005, 40400, 40901, 42200],
        ..DEFAULT
    },
    Operation {
        call: |request, state| events::stream.call(request, state),
        line: ("GET", "/events"),
        access: Access::Scope(Scope::Read),
        parameters: &["owner", "Last-Event-ID"],
        headers: &["Cache-Control", "X-Accel-Buffering"],
        errors: &[40400],
        ..DEFAULT
    },
    Operation {
        call: |request, state| tokens::show_me.call(request, state),
        line: ("GET", "/me"),
        access: Access::AnyToken,
        returns: Some(one::<tokens::Me>()),
        headers: &["Cache-Control"],
        ..DEFAULT
    },
    Operation {
        call: |request, state| tokens::list.call(request, state),
        line: ("GET", "/tokens"),
        access: Access::Scope(Scope::ManageTokens),
        returns: Some(list::<tokens::Token>()),
        headers: &["Cache-Control"],
        ..DEFAULT
    },
    Operation {
        call: |request, state| tokens::create.call(request, state),
        line: ("POST", "/tokens"),
        access: Access::Scope(Scope::ManageTokens),
        takes: Some(one::<TokenRequest>()),
        returns: Some(one::<tokens::CreatedToken>()),
        headers: &["Cache-Control", "Location"],
        errors: &[40000, 40002, 40003, 40008, 40902, 41500],
        ..DEFAULT
    },
    Operation {
        call: |request, state| tokens::revoke.call(request, state),
        line: ("DELETE", "/tokens/{id}"),
        access: Access::Scope(Scope::ManageTokens),
        parameters: &["TokenId"],
        errors: &[40005, 40402],
        ..DEFAULT
    },
    Operation {
        call: |request, state| shares::list.call(request, state),
        line: ("GET", "/shares"),
        access: Access::Scope(Scope::ManageShares),
        returns: Some(one::<shares::Shares>()),
        headers: &["Cache-Control"],
        ..DEFAULT
    },
    Operation {
        call: |request, state| shares::grant.call(request, state),
        line: ("PUT", "/shares/{user}"),
        access: Access::Scope(Scope::ManageShares),
        parameters: &["User"],
        takes: Some(one::<ShareRequest>()),
        errors: &[40000, 40001, 40002, 40008, 40903, 41500],
        ..DEFAULT
    },
    Operation {
        call: |request, state| shares::revoke.call(request, state),
        line: ("DELETE", "/shares/{user}"),
        access: Access::Scope(Scope::ManageShares),
        parameters: &["User"],
        errors: &[40403],
        ..DEFAULT
    },
    Operation {
        call: |request, state| shares::accept.call(request, state),
        line: ("PUT", "/shares/received/{owner}"),
        access: Access::Scope(Scope::ManageShares),
        parameters: &["SharingOwner"],
        errors: &[40403, 40903],
        ..DEFAULT
    },
    Operation {
        call: |request, state| shares::decline.call(request, state),
        line: ("DELETE", "/shares/received/{owner}"),
        access: Access::Scope(Scope::ManageShares),
        parameters: &["SharingOwner"],
        errors: &[40403],
        ..DEFAULT
    },
    Operation {
        call: |request, state| probes::livez.call(request, state),
        line: ("GET", "/livez"),
        returns: Some(inline(|| probes::schema("live"))),
        headers: &["Cache-Control"],
        ..DEFAULT
    },
    Operation {
        call: |request, state| probes::readyz.call(request, state),
        line: ("GET", "/readyz"),
        returns: Some(inline(|| probes::schema("ready"))),
        headers: &["Cache-Control"],
        ..DEFAULT
    },
    Operation {
        call: |request, state| openapi_document.call(request, state),
        line: ("GET", "/openapi.json"),
        parameters: &["If-None-Match"],
        returns: Some(inline(|| json!({"type": "object"}))),
        headers: &["Content-Encoding"],
        ..DEFAULT
    },
];

/// Labels of the HTML pages and their files. The files of a page share a label.
const PAGES: [&str; 5] = ["/docs", "/docs/{file}", "/", "/console/{file}", "/favicon.ico"];

/// Checks that a path is one of those with this label, in which `{…}` stands for one segment.
fn has_label(path: &str, label: &str) -> bool {
    let rest = || label.split_once('{').and_then(|(prefix, _)| path.strip_prefix(prefix));
    path == label || rest().is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
}

/// Iterates over the labels of all routes. That of an operation is its path, and occurs once for each method.
fn route_labels() -> impl Iterator<Item = &'static str> {
    OPERATIONS.iter().map(Operation::path).chain(PAGES)
}

/// Returns the labels of all routes; the last is for paths without a route.
pub(crate) fn labels() -> Vec<&'static str> {
    let mut labels: Vec<_> = route_labels().collect();
    labels.sort_unstable();
    labels.dedup();
    labels.push(NO_ROUTE);
    labels
}

pub(crate) fn label_of(path: &str) -> &'static str {
    let path = if path == "/docs/" { "/docs" } else { path };
    route_labels().find(|label| has_label(path, label)).unwrap_or(NO_ROUTE)
}

pub(crate) fn is_routine(label: &str) -> bool {
    probes::PATHS.contains(&label) || PAGES.contains(&label)
}

pub fn openapi() -> Value {
    openapi::document(&OPERATIONS)
}

/// `GET /openapi.json`
async fn openapi_document(_: Public, request: HeaderMap) -> Response {
    static DOCUMENT: LazyLock<StaticFile> =
        LazyLock::new(|| StaticFile::new(openapi().to_string(), "application/json"));
    DOCUMENT.respond(&request).await
}

/// Returns the function that responds to requests. With `sign_in`, users of the console can sign in with that issuer.
pub(crate) fn respond(console: bool, sign_in: Option<&SignIn>) -> Respond {
    let console_files = console.then(|| web::console_files(sign_in)).into_iter().flatten();
    let files: &'static [PageFile] = Vec::leak(web::docs_files(console).chain(console_files).collect());
    Box::new(move |request, state| call_handler(request, state, files))
}

fn call_handler(request: Request, state: RequestState, files: &'static [PageFile]) -> BoxFuture<'static, Response> {
    let path = request.uri().path();
    let method = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
    let operations = || OPERATIONS.iter().filter(|operation| has_label(path, operation.path()));
    if let Some(operation) = operations().find(|operation| operation.method() == method) {
        return (operation.call)(request, state);
    }
    let mut methods: Vec<_> = operations().map(Operation::method).collect();
    if let Some(file) = files.iter().find(|file| file.path == path) {
        if method == "GET" {
            let serve = async move |_: Public, request: HeaderMap| file.respond(&request).await;
            return serve.call(request, state);
        }
        methods.push("GET");
    }
    if methods.is_empty() {
        return no_route.call(request, state);
    }
    let allowed = methods.join(",").replace("GET", "GET,HEAD");
    // Requires a token, too.
    let not_allowed = async move |_: Caller<NoScopeRequired>| ApiError::MethodNotAllowed(allowed);
    not_allowed.call(request, state)
}

/// Requires a token, so that other clients do not learn which paths exist.
async fn no_route(_: Caller<NoScopeRequired>, uri: Uri) -> ApiError {
    let without_slash = uri.path().strip_suffix('/').map_or(NO_ROUTE, label_of);
    let is_operation = without_slash != NO_ROUTE && !PAGES.contains(&without_slash);
    if is_operation { ApiError::SlashAtEnd } else { ApiError::NoRoute }
}
