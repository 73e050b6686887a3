//! The caller's own identity and tokens: show, list, create and revoke.

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{HeaderValue, LOCATION};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::account_change::{Attempt, Change, ChangeAccess, Completed};
use super::error::ApiError;
use super::extract::{JsonBody, PathId, ReadCapacity};
use super::idempotency::NoKey;
use super::overload::ChangeKind;
use super::response::{serialize, uncached_json};
use super::state::Api;
use crate::auth::{Caller, Credential, ManageTokens, NoScopeRequired};
use plantstore_model::self_service::{ParentToken, TokenRequest};
use plantstore_model::token::{
    PlainToken, Scope, Scopes, TokenAttributes, TokenCreator, TokenId, TokenLabel, TokenState,
};
use plantstore_model::user::UserName;
use plantstore_store::{CreateTokenOutcome, Store};

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
pub(crate) async fn show_me(caller: Caller<NoScopeRequired>) -> Result<Response, ApiError> {
    let session = &caller.session;
    let mut token =
        MeToken { id: None, label: None, issuer: None, scopes: session.scopes, expires_at: session.expires };
    match &session.credential {
        Credential::Token { id, label, .. } => {
            token.id = Some(*id);
            token.label = Some(label.clone());
        }
        Credential::Issuer { url, .. } => token.issuer = Some(url.clone()),
    }
    Ok(uncached_json(serialize(&Me { user: session.identity.user.clone(), token })?))
}

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
    let tokens = api.store.own_tokens(session.user_id()).await?;
    let now = Timestamp::now();
    let tokens = tokens.into_iter().map(|token| Token {
        last_used_at: token.last_used,
        state: token.state(now),
        current: session.identity.token == Some(token.id),
        ..Token::unused(token.id, token.attributes)
    });
    Ok(uncached_json(serialize(&tokens.collect::<Vec<_>>())?))
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
    access: ChangeAccess<ManageTokens>,
    _: NoKey,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let now = Timestamp::now();
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let session = &access.session;
    let creator = match session.credential {
        Credential::Token { id, .. } => TokenCreator::Token(id),
        Credential::Issuer { .. } => TokenCreator::Issuer,
    };
    let parent = ParentToken { creator, scopes: session.scopes, expires: session.expires };
    let attributes = TokenRequest::from_json(&body, now)?.attributes(parent, now)?;
    let token = PlainToken::generate().map_err(|error| ApiError::Internal(error.to_string()))?;
    let target = attributes.label.as_str().to_owned();
    let change = |store: &'static Store, user| async move {
        match store.create_own_token(user, &token.hash(), &attributes).await? {
            CreateTokenOutcome::Created(id) => {
                let created = CreatedToken { token: Token::unused(id, attributes), secret: token.reveal().to_owned() };
                let mut response = uncached_json(serialize(&created)?);
                *response.status_mut() = StatusCode::CREATED;
                if let Ok(location) = HeaderValue::try_from(format!("/tokens/{id}")) {
                    response.headers_mut().insert(LOCATION, location);
                }
                Ok(Completed { change: Change::TokenCreated(id), response })
            }
            CreateTokenOutcome::TooMany => Err(ApiError::TooManyTokens),
            CreateTokenOutcome::NotActive => Err(ApiError::InvalidToken),
        }
    };
    access.run(Attempt { kind: ChangeKind::Grant, action: "create token", target }, change).await
}

/// `DELETE /tokens/{id}`
pub(crate) async fn revoke(access: ChangeAccess<ManageTokens>, PathId(id): PathId) -> Result<Response, ApiError> {
    let token = TokenId::new(id?.get());
    let attempt = Attempt { kind: ChangeKind::Revocation, action: "revoke token", target: token.get().to_string() };
    let change = |store: &'static Store, user| async move {
        let was_active = store.revoke_own_token(user, token, Timestamp::now()).await?;
        if was_active { Ok(Change::TokenRevoked(token).into()) } else { Err(ApiError::UnknownToken) }
    };
    access.run(attempt, change).await
}
