//! `GET /me`: the caller's own identity. Also the JSON responses that tokens and shares have in common.

use axum::body::Body;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::error::ApiError;
use crate::auth::{Caller, Credential, NoScopeRequired};
use plantstore_model::token::{Scope, Scopes, TokenId, TokenLabel};
use plantstore_model::user::UserName;

/// Your user name and token
#[derive(Serialize, ToSchema)]
pub(crate) struct Me {
    user: UserName,
    token: MeToken,
}

/// The token that you sent: one of this service, or one of the issuer
#[derive(Serialize, ToSchema)]
pub(crate) struct MeToken {
    /// Absent for a token of the issuer
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    id: Option<TokenId>,
    /// Absent for a token of the issuer
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    label: Option<TokenLabel>,
    /// The issuer of the token; absent for a token of this service
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    issuer: Option<String>,
    #[schema(value_type = Vec<Scope>)]
    scopes: Scopes,
    /// Expiry time; null for a token that never expires
    #[schema(required)]
    expires_at: Option<Timestamp>,
}

/// `GET /me`
pub(crate) async fn show(caller: Caller<NoScopeRequired>) -> Result<Response, ApiError> {
    let session = &caller.session;
    let mut token =
        MeToken { id: None, label: None, issuer: None, scopes: session.scopes, expires_at: session.expires };
    match &session.credential {
        Credential::Token { id, label } => {
            token.id = Some(*id);
            token.label = Some(label.clone());
        }
        Credential::Issuer { url } => token.issuer = Some(url.clone()),
    }
    json(StatusCode::OK, &Me { user: session.identity.user.clone(), token })
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
