//! The route table: the operations with their handlers and descriptions, the HTML pages, and the label of each route in the log and
//! the metrics. Requests are dispatched by it, and the OpenAPI document is made from it.

use std::sync::LazyLock;

use axum::extract::Request;
use axum::handler::Handler as _;
use axum::response::Response;
use futures_util::future::BoxFuture;
use hyper::header::HeaderMap;
use hyper::{Method, Uri};
use serde_json::{Value, json};

use crate::api::operation::{Access, DEFAULT, Operation, Returns, inline, list, one};
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
        id: "listPlants",
        summary: "List plants",
        description: "Returns all plants that you have access to; with `limit` a page of them. Large lists are compressed \
        for clients that accept gzip (`Accept-Encoding`).",
        access: Access::Scope(Scope::Read),
        parameters: &["limit", "after", "tag", "include", "owner", "If-None-Match"],
        success: "The plants that the caller can read, ascending by id",
        returns: Returns::Body(list::<Plant<'_>>()),
        headers: &["Link", "Content-Encoding"],
        errors: &[40004, 40006, 40400],
        ..DEFAULT
    },
    Operation {
        call: |request, state| plants::create.call(request, state),
        line: ("POST", "/plants"),
        id: "createPlant",
        summary: "Create a plant",
        description: "Creates a new plant in the store, with an id of your choice. Fields of the body that are not known are \
        ignored.",
        access: Access::Scope(Scope::Write),
        parameters: &["owner", "Idempotency-Key"],
        takes: Some(one::<NewPlant>()),
        success: "The plant, as it was created; its id is in `Location`",
        returns: Returns::Body(one::<Plant<'_>>()),
        headers: &["Location"],
        errors: &[40000, 40001, 40002, 40003, 40400, 40900, 40901, 41500, 42200],
    },
    Operation {
        call: |request, state| plants::read.call(request, state),
        line: ("GET", "/plants/{id}"),
        id: "readPlant",
        summary: "Read a plant",
        description: "Returns a single plant by its id: one of yours, or of another owner who shares with you.",
        access: Access::Scope(Scope::Read),
        parameters: &["PlantId", "include", "owner", "If-None-Match"],
        success: "The plant",
        returns: Returns::Body(one::<Plant<'_>>()),
        errors: &[40005, 40400],
        ..DEFAULT
    },
    Operation {
        call: |request, state| plants::replace.call(request, state),
        line: ("PUT", "/plants/{id}"),
        id: "replacePlant",
        summary: "Replace a plant",
        description: "Replaces the name and the tag of a plant that exists: a tag that is not sent is removed. An `id` in the \
        body must be that of the path; other fields are ignored. A plant has no `ETag` of its own: `If-Match` is ignored.",
        access: Access::Scope(Scope::Write),
        parameters: &["PlantId", "owner", "Idempotency-Key"],
        takes: Some(inline(plants::replacement_schema)),
        success: "The plant, as it is now",
        returns: Returns::Body(one::<Plant<'_>>()),
        errors: &[40000, 40001, 40002, 40003, 40005, 40400, 40901, 41500, 42200],
        ..DEFAULT
    },
    Operation {
        call: |request, state| plants::delete.call(request, state),
        line: ("DELETE", "/plants/{id}"),
        id: "deletePlant",
        summary: "Delete a plant",
        description: "Deletes a single plant by its id. A plant has no `ETag` of its own: `If-Match` is ignored.",
        access: Access::Scope(Scope::Delete),
        parameters: &["PlantId", "owner", "Idempotency-Key"],
        success: "The plant is deleted",
        errors: &[40005, 40400, 40901, 42200],
        ..DEFAULT
    },
    Operation {
        call: |request, state| events::stream.call(request, state),
        line: ("GET", "/events"),
        id: "streamEvents",
        summary: "Be notified of changes",
        description: "Streams server-sent events of type `plants`, one at once and one after each change of the list. Their `id`, \
        and `etag` in their `data`, is the current `ETag` of the list.",
        access: Access::Scope(Scope::Read),
        parameters: &["owner", "Last-Event-ID"],
        success: "Events, until the server or the client ends the stream",
        returns: Returns::Events,
        headers: &["Cache-Control", "X-Accel-Buffering"],
        errors: &[40400],
        ..DEFAULT
    },
    Operation {
        call: |request, state| tokens::show_me.call(request, state),
        line: ("GET", "/me"),
        id: "showMe",
        summary: "Show who you are",
        description: "Returns your user name, and the scopes and the expiry time of the token that you sent.",
        access: Access::AnyToken,
        success: "Your user name and token",
        returns: Returns::Body(one::<tokens::Me>()),
        headers: &["Cache-Control"],
        ..DEFAULT
    },
    Operation {
        call: |request, state| tokens::list.call(request, state),
        line: ("GET", "/tokens"),
        id: "listTokens",
        summary: "List your tokens",
        description: "Returns your tokens, also revoked and expired ones, ascending by id; never their secrets.",
        access: Access::Scope(Scope::ManageTokens),
        success: "Your tokens, ascending by id",
        returns: Returns::Body(list::<tokens::Token>()),
        headers: &["Cache-Control"],
        ..DEFAULT
    },
    Operation {
        call: |request, state| tokens::create.call(request, state),
        line: ("POST", "/tokens"),
        id: "createToken",
        summary: "Create a token",
        description: "Creates a token of your own. Its secret is in the response and is never shown again. It has at most the \
        scopes of the token that you send, and does not expire later; with a token of the issuer, it expires within 90 \
        days. From 14 days before its end, a token can be renewed with `renew`; revoke it afterwards.",
        access: Access::Scope(Scope::ManageTokens),
        takes: Some(one::<TokenRequest>()),
        success: "The token with its secret, which is not shown again",
        returns: Returns::Created(one::<tokens::CreatedToken>()),
        headers: &["Cache-Control", "Location"],
        errors: &[40000, 40002, 40003, 40008, 40902, 41500],
        ..DEFAULT
    },
    Operation {
        call: |request, state| tokens::revoke.call(request, state),
        line: ("DELETE", "/tokens/{id}"),
        id: "revokeToken",
        summary: "Revoke a token",
        description: "Revokes one of your tokens permanently, on every server within 5 seconds. It may be the one that you \
        send.",
        access: Access::Scope(Scope::ManageTokens),
        parameters: &["TokenId"],
        success: "The token is revoked",
        errors: &[40005, 40402],
        ..DEFAULT
    },
    Operation {
        call: |request, state| shares::list.call(request, state),
        line: ("GET", "/shares"),
        id: "listShares",
        summary: "List shares",
        description: "Returns the users that you share your plants with, whether or not they exist, and the owners who share \
        theirs with you, with at most the 100 newest offers; each in the order of the names.",
        access: Access::Scope(Scope::ManageShares),
        success: "Shares that you have granted and received",
        returns: Returns::Body(one::<shares::Shares>()),
        headers: &["Cache-Control"],
        ..DEFAULT
    },
    Operation {
        call: |request, state| shares::grant.call(request, state),
        line: ("PUT", "/shares/{user}"),
        id: "grantShare",
        summary: "Share your plants",
        description: "Offers all your present and future plants to a user, who has access when they accept, or changes the \
        role. The token that you send needs the scopes that the role allows to use. If there is no user of this name, the \
        response is the same, and the offer is there when there is one.",
        access: Access::Scope(Scope::ManageShares),
        parameters: &["User"],
        takes: Some(one::<ShareRequest>()),
        success: "The plants are offered, or shared, with this role",
        errors: &[40000, 40001, 40002, 40008, 40903, 41500],
        ..DEFAULT
    },
    Operation {
        call: |request, state| shares::revoke.call(request, state),
        line: ("DELETE", "/shares/{user}"),
        id: "revokeShare",
        summary: "Stop sharing your plants",
        description: "Ends the access of a user to your plants, on every server within 5 seconds.",
        access: Access::Scope(Scope::ManageShares),
        parameters: &["User"],
        success: "The plants are not shared any more",
        errors: &[40403],
        ..DEFAULT
    },
    Operation {
        call: |request, state| shares::accept.call(request, state),
        line: ("PUT", "/shares/received/{owner}"),
        id: "acceptShare",
        summary: "Accept a share",
        description: "Accepts the offer of an owner: their plants are in your list from then on, on every server within 5 \
        seconds.",
        access: Access::Scope(Scope::ManageShares),
        parameters: &["SharingOwner"],
        success: "The share is accepted",
        errors: &[40403, 40903],
        ..DEFAULT
    },
    Operation {
        call: |request, state| shares::decline.call(request, state),
        line: ("DELETE", "/shares/received/{owner}"),
        id: "declineShare",
        summary: "Decline or leave a share",
        description: "Declines the offer of an owner, or ends your access to their plants, on every server within 5 seconds. \
        The owner is not notified.",
        access: Access::Scope(Scope::ManageShares),
        parameters: &["SharingOwner"],
        success: "The share is declined, or ended",
        errors: &[40403],
        ..DEFAULT
    },
    Operation {
        call: |request, state| probes::livez.call(request, state),
        line: ("GET", "/livez"),
        id: "isLive",
        summary: "Check that the process is alive",
        description: "Succeeds as long as the process can handle requests.",
        success: "The process is alive",
        returns: Returns::Body(inline(|| probes::schema("live"))),
        headers: &["Cache-Control"],
        ..DEFAULT
    },
    Operation {
        call: |request, state| probes::readyz.call(request, state),
        line: ("GET", "/readyz"),
        id: "isReady",
        summary: "Check that the service is ready for requests",
        description: "Succeeds if the store responds and the service is not shutting down.",
        success: "The store responds, and the service is not shutting down",
        returns: Returns::Body(inline(|| probes::schema("ready"))),
        headers: &["Cache-Control"],
        ..DEFAULT
    },
    Operation {
        call: |request, state| openapi_document.call(request, state),
        line: ("GET", "/openapi.json"),
        id: "getOpenapi",
        summary: "This document",
        description: "Describes the API, in OpenAPI 3.1.",
        parameters: &["If-None-Match"],
        success: "This document",
        returns: Returns::Body(inline(|| json!({"type": "object"}))),
        headers: &["Content-Encoding"],
        ..DEFAULT
    },
];

/// Labels of the HTML pages and their files. The files of a page share a label.
const PAGES: [&str; 5] = ["/docs", "/docs/{file}", "/", "/console/{file}", "/favicon.ico"];

/// Checks that a path is one of those with this label, in which `{…}` stands for one segment.
fn has_label(path: &str, label: &str) -> bool {
    let rest = label.split_once('{').and_then(|(prefix, _)| path.strip_prefix(prefix));
    path == label || rest.is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
}

/// Iterates over the labels of all routes. The label of an operation is its path in the OpenAPI document; one with several methods
/// occurs as often.
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

/// Returns the label of a path's route.
pub(crate) fn label_of(path: &str) -> &'static str {
    let path = if path == "/docs/" { "/docs" } else { path };
    route_labels().find(|label| has_label(path, label)).unwrap_or(NO_ROUTE)
}

/// Returns true for the labels of probes and static files.
pub(crate) fn is_routine(label: &str) -> bool {
    probes::PATHS.contains(&label) || PAGES.contains(&label)
}

/// Returns the OpenAPI document.
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
