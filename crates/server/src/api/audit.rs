//! Changes of tokens and shares: executed to their end, and recorded in the log.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use hyper::http::request::Parts;

use super::error::ApiError;
use crate::auth::Session;
use crate::observe::Context;
use plantstore_model::token::TokenId;
use plantstore_model::user::{Role, UserName};

/// A completed change.
pub(super) enum Change<'a> {
    TokenCreated(TokenId),
    TokenRevoked(TokenId),
    ShareGranted(&'a UserName, Role),
    ShareRevoked(&'a UserName),
}

/// Writes the line of a change to the log.
pub(crate) struct AuditLog(Arc<Context>);

impl<App: Send + Sync> FromRequestParts<App> for AuditLog {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, ApiError> {
        Ok(Self(Context::of(parts)))
    }
}

impl AuditLog {
    pub(super) fn record(&self, session: &Session, change: &Change<'_>) {
        let (request_id, actor) = (self.0.id(), session.identity.user.as_str());
        let token_id = session.identity.token.map(TokenId::get);
        match change {
            Change::TokenCreated(target) => {
                tracing::info!(request_id, actor, token_id, target = target.get(), "token created");
            }
            Change::TokenRevoked(target) => {
                tracing::info!(request_id, actor, token_id, target = target.get(), "token revoked");
            }
            Change::ShareGranted(target, role) => {
                let (target, role) = (target.as_str(), role.name());
                tracing::info!(request_id, actor, token_id, target, role, "share granted");
            }
            Change::ShareRevoked(target) => {
                tracing::info!(request_id, actor, token_id, target = target.as_str(), "share revoked");
            }
        }
    }
}

/// Executes a change to its end, also if the client disconnects, so that every change is recorded.
pub(super) async fn complete<T: Send + 'static>(
    change: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::spawn(change).await.map_err(|error| ApiError::Internal(error.to_string()))?
}
