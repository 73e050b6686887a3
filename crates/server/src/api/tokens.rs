//! The caller's own tokens: list, create and revoke.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::audit::{Attempt, AuditLog, Change};
use super::error::ApiError;
use super::extract::{JsonBody, PathId};
use super::idempotency::NoKey;
use super::me::{json, no_content};
use super::overload::account_changes::ChangeKind;
use super::overload::capacity::ReadCapacity;
use super::state::Api;
use crate::auth::{Auth, Caller, Credential, ManageTokens, Session, SessionSelector};
use plantstore_model::self_service::{ParentToken, TokenRequest};
use plantstore_model::token::{
    PlainToken, Scope, Scopes, TokenAttributes, TokenCreator, TokenId, TokenLabel, TokenState,
};
use plantstore_store::CreateTokenOutcome;

/// A token, without its secret
#[derive(Serialize, ToSchema)]
pub(crate) struct Token {
    id: TokenId,
    label: TokenLabel,
    #[schema(value_type = Vec<Scope>)]
    scopes: Scopes,
    created_at: Timestamp,
    /// Null for a token that never expires
    #[schema(required)]
    expires_at: Option<Timestamp>,
    /// The day of its last use; null for a token that was never used
    #[schema(required)]
    last_used_at: Option<Timestamp>,
    state: TokenState,
    /// True for the token that you sent
    current: bool,
}

/// A new token
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedToken {
    #[serde(flatten)]
    token: Token,
    /// The access token itself, shown only here
    secret: String,
}

/// `GET /tokens`
pub(crate) async fn list(
    State(api): State<&'static Api>,
    caller: Caller<ManageTokens>,
    _: ReadCapacity,
) -> Result<Response, ApiError> {
    let _slot = api.read_limiter.acquire(caller.session.user_id()).await?;
    let session = &caller.session;
    let (tokens, now) = (api.store.own_tokens(session.user_id()).await?, Timestamp::now());
    let tokens = tokens.into_iter().map(|token| Token {
        last_used_at: token.last_used,
        state: token.state(now),
        current: session.identity.token == Some(token.id),
        ..Token::unused(token.id, token.attributes)
    });
    json(StatusCode::OK, &tokens.collect::<Vec<_>>())
}

impl Token {
    fn unused(id: TokenId, attributes: TokenAttributes) -> Self {
        let TokenAttributes { label, scopes, created, expires, creator: _ } = attributes;
        Self {
            id,
            label,
            scopes,
            created_at: created,
            expires_at: expires,
            last_used_at: None,
            state: TokenState::Active,
            current: false,
        }
    }
}

/// `POST /tokens`
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
                let secret = token.reveal().to_owned();
                created_response(&CreatedToken { token: Token::unused(id, attributes), secret })
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

fn created_response(created: &CreatedToken) -> Result<Response, ApiError> {
    let mut response = json(StatusCode::CREATED, created)?;
    if let Ok(location) = HeaderValue::try_from(format!("/tokens/{}", created.token.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// `DELETE /tokens/{id}`
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
