//! `GET /me`: the caller's own identity. Also the JSON responses that tokens and shares have in common.

use axum::body::Body;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use serde::Serialize;

use super::error::ApiError;
use super::openapi::{MeResponses, ReadParameters, SELF_SERVICE};
use crate::auth::{Caller, Credential, NoScopeRequired};
use plantstore_model::token::{Scope, Scopes};

/// The response to `GET /me`.
#[derive(Serialize)]
pub(super) struct Me<'a> {
    pub(super) user: &'a str,
    pub(super) token: CallerToken<'a>,
}

/// The token of the request: one of the service, or one of the issuer.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum CallerToken<'a> {
    Stored { id: i64, label: &'a str, scopes: Vec<&'static str>, expires_at: Option<String> },
    Issued { issuer: &'a str, scopes: Vec<&'static str>, expires_at: Option<String> },
}

/// `GET /me`
#[utoipa::path(
    get,
    path = "/me",
    operation_id = "showMe",
    tag = SELF_SERVICE,
    summary = "Show who you are",
    description = "Returns your user name, and the scopes and the expiry time of the token that you sent.",
    params(ReadParameters),
    responses(MeResponses),
    security(("bearer" = [])),
)]
pub(crate) async fn show(caller: Caller<NoScopeRequired>) -> Result<Response, ApiError> {
    let session = &caller.session;
    let (scopes, expires_at) = (scope_names(session.scopes), session.expires.map(|time| time.to_string()));
    let token = match &session.credential {
        Credential::Token { id, label } => {
            CallerToken::Stored { id: id.get(), label: label.as_str(), scopes, expires_at }
        }
        Credential::Issuer { url } => CallerToken::Issued { issuer: url, scopes, expires_at },
    };
    json(StatusCode::OK, &Me { user: session.identity.user.as_str(), token })
}

pub(super) fn scope_names(scopes: Scopes) -> Vec<&'static str> {
    scopes.iter().map(Scope::name).collect()
}

/// Returns a response about an account, which no cache may store.
pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Result<Response, ApiError> {
    let body = serde_json::to_vec(body).map_err(|error| ApiError::Internal(error.to_string()))?;
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Returns the response to a change without a result.
pub(super) fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
