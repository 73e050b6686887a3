//! The caller's own tokens: list, create and revoke.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use jiff::Timestamp;
use serde::Serialize;

use super::audit::{Attempt, AuditLog, Change};
use super::error::ApiError;
use super::extract::{JsonBody, PathId};
use super::idempotency::NoKey;
use super::me::{json, no_content, scope_names};
use super::openapi::{
    CreateTokenResponses, ListTokensResponses, NewTokenSchema, ReadParameters, RevokeTokenParameters,
    RevokeTokenResponses, SELF_SERVICE,
};
use super::overload::account_changes::ChangeKind;
use super::overload::capacity::ReadCapacity;
use super::state::Api;
use crate::auth::{Auth, Caller, Credential, ManageTokens, Session, SessionSelector};
use plantstore_model::self_service::{ParentToken, TokenRequest};
use plantstore_model::token::{PlainToken, TokenAttributes, TokenCreator, TokenId};
use plantstore_store::CreateTokenOutcome;

/// A token as its user sees it.
#[derive(Serialize)]
pub(super) struct ShownToken<'a> {
    pub(super) id: i64,
    pub(super) label: &'a str,
    pub(super) scopes: Vec<&'static str>,
    pub(super) created_at: String,
    pub(super) expires_at: Option<String>,
    pub(super) last_used_at: Option<String>,
    pub(super) state: &'static str,
    /// True for the token of the request.
    pub(super) current: bool,
    /// Present in the response to its creation only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<&'a str>,
}

/// `GET /tokens`
#[utoipa::path(
    get,
    path = "/tokens",
    operation_id = "listTokens",
    tag = SELF_SERVICE,
    summary = "List your tokens",
    description = "Returns your tokens, also revoked and expired ones, ascending by id; never their secrets.",
    params(ReadParameters),
    responses(ListTokensResponses),
    security(("bearer" = ["tokens:manage"])),
)]
pub(crate) async fn list(
    State(api): State<&'static Api>,
    caller: Caller<ManageTokens>,
    _: ReadCapacity,
) -> Result<Response, ApiError> {
    let _slot = api.read_limiter.acquire(caller.session.user_id()).await?;
    let session = &caller.session;
    let (tokens, now) = (api.store.own_tokens(session.user_id()).await?, Timestamp::now());
    let shown = tokens.iter().map(|token| ShownToken {
        last_used_at: token.last_used.map(|time| time.to_string()),
        state: token.state(now),
        current: session.identity.token == Some(token.id),
        ..shown(token.id, &token.attributes)
    });
    json(StatusCode::OK, &shown.collect::<Vec<_>>())
}

/// Returns a token that was never used.
fn shown(id: TokenId, attributes: &TokenAttributes) -> ShownToken<'_> {
    ShownToken {
        id: id.get(),
        label: attributes.label.as_str(),
        scopes: scope_names(attributes.scopes),
        created_at: attributes.created.to_string(),
        expires_at: attributes.expires.map(|time| time.to_string()),
        last_used_at: None,
        state: "active",
        current: false,
        secret: None,
    }
}

/// `POST /tokens`
#[utoipa::path(
    post,
    path = "/tokens",
    operation_id = "createToken",
    tag = SELF_SERVICE,
    summary = "Create a token",
    description = "Creates a token of your own. Its secret is in the response and is never shown again. It has at most the scopes \
        of the token that you send, and does not expire later; with a token of the issuer, it expires within 90 days. \
        From 14 days before its end, a token can be renewed with `renew`; revoke it afterwards.",
    params(ReadParameters),
    request_body(content = NewTokenSchema, description = "The token; fields that are not known are an error"),
    responses(CreateTokenResponses),
    security(("bearer" = ["tokens:manage"])),
)]
pub(crate) async fn create(
    State(api): State<&'static Api>,
    caller: Caller<ManageTokens>,
    _: NoKey,
    audit: AuditLog,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let now = Timestamp::now();
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let session = caller.session;
    let attributes = TokenRequest::from_json(&body, now)?.attributes(parent_token(&session), now)?;
    let token = PlainToken::generate().map_err(|error| ApiError::Internal(error.to_string()))?;
    api.run_account_change(Arc::clone(&session.identity), ChangeKind::Grant, async move {
        let created = api.store.create_own_token(session.user_id(), &token.hash(), &attributes).await;
        let attempt = Attempt::CreateToken(attributes.label.as_str());
        match created.map_err(|error| audit.record_if_unknown(&session, attempt, api.change_error(error)))? {
            CreateTokenOutcome::Created(id) => {
                audit.record(&session, &Change::TokenCreated(id));
                created_response(&ShownToken { secret: Some(token.reveal()), ..shown(id, &attributes) })
            }
            CreateTokenOutcome::TooMany => Err(ApiError::TooManyTokens),
            CreateTokenOutcome::NotActive => Err(ApiError::InvalidToken),
        }
    })
    .await
}

fn parent_token(session: &Session) -> ParentToken {
    let creator = match session.credential {
        Credential::Token { id, .. } => TokenCreator::Token(id),
        Credential::Issuer { .. } => TokenCreator::Issuer,
    };
    ParentToken { creator, scopes: session.scopes, expires: session.expires }
}

fn created_response(token: &ShownToken<'_>) -> Result<Response, ApiError> {
    let mut response = json(StatusCode::CREATED, token)?;
    if let Ok(location) = HeaderValue::try_from(format!("/tokens/{}", token.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// `DELETE /tokens/{id}`
#[utoipa::path(
    delete,
    path = "/tokens/{id}",
    operation_id = "revokeToken",
    tag = SELF_SERVICE,
    summary = "Revoke a token",
    description = "Revokes one of your tokens permanently, on every server within 5 seconds. It may be the one that you send.",
    params(RevokeTokenParameters),
    responses(RevokeTokenResponses),
    security(("bearer" = ["tokens:manage"])),
)]
pub(crate) async fn revoke(
    State(api): State<&'static Api>,
    caller: Caller<ManageTokens>,
    State(auth): State<&'static Auth>,
    audit: AuditLog,
    PathId(id): PathId,
) -> Result<Response, ApiError> {
    let (session, token) = (caller.session, TokenId::new(id?.get()));
    api.run_account_change(Arc::clone(&session.identity), ChangeKind::Revocation, async move {
        let revoked = api.store.revoke_own_token(session.user_id(), token, Timestamp::now()).await;
        let attempt = Attempt::RevokeToken(token);
        if !revoked.map_err(|error| audit.record_if_unknown(&session, attempt, api.change_error(error)))? {
            return Err(ApiError::UnknownToken);
        }
        auth.end_sessions(&SessionSelector::Token(token));
        audit.record(&session, &Change::TokenRevoked(token));
        Ok(no_content())
    })
    .await
}
