//! The record of changes of tokens and shares in the log.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use hyper::http::request::Parts;

use super::error::ApiError;
use crate::auth::Session;
use crate::observe::Context;
use plantstore_model::token::TokenId;
use plantstore_model::user::{Role, UserName};
use plantstore_telemetry::logging::AUDIT_LOG;

/// A completed change.
pub(super) enum Change<'a> {
    TokenCreated(TokenId),
    TokenRevoked(TokenId),
    ShareGranted(&'a UserName, Role),
    ShareRevoked(&'a UserName),
    ShareAccepted(&'a UserName),
    ShareDeclined(&'a UserName),
}

/// A change whose outcome is unknown.
#[derive(Clone, Copy)]
pub(super) enum Attempt<'a> {
    /// With the label of the token.
    CreateToken(&'a str),
    RevokeToken(TokenId),
    GrantShare(&'a UserName),
    RevokeShare(&'a UserName),
    AcceptShare(&'a UserName),
    DeclineShare(&'a UserName),
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
                tracing::info!(target: AUDIT_LOG, request_id, actor, token_id, target = target.get(), "token created");
            }
            Change::TokenRevoked(target) => {
                tracing::info!(target: AUDIT_LOG, request_id, actor, token_id, target = target.get(), "token revoked");
            }
            Change::ShareGranted(target, role) => {
                let (target, role) = (target.as_str(), role.name());
                tracing::info!(target: AUDIT_LOG, request_id, actor, token_id, target, role, "share granted");
            }
            Change::ShareRevoked(target) => {
                tracing::info!(target: AUDIT_LOG, request_id, actor, token_id, target = target.as_str(), "share revoked");
            }
            Change::ShareAccepted(target) => {
                tracing::info!(target: AUDIT_LOG, request_id, actor, token_id, target = target.as_str(), "share accepted");
            }
            Change::ShareDeclined(target) => {
                tracing::info!(target: AUDIT_LOG, request_id, actor, token_id, target = target.as_str(), "share declined");
            }
        }
    }

    /// Logs a change whose outcome is unknown. Returns the error.
    pub(super) fn record_if_unknown(&self, session: &Session, attempt: Attempt<'_>, error: ApiError) -> ApiError {
        if let ApiError::ChangeUnknown(_) = error {
            let (request_id, actor) = (self.0.id(), session.identity.user.as_str());
            let token_id = session.identity.token.map(TokenId::get);
            let (attempt, target) = match attempt {
                Attempt::CreateToken(label) => ("create token", label.to_owned()),
                Attempt::RevokeToken(id) => ("revoke token", id.get().to_string()),
                Attempt::GrantShare(to) => ("grant share", to.as_str().to_owned()),
                Attempt::RevokeShare(to) => ("revoke share", to.as_str().to_owned()),
                Attempt::AcceptShare(owner) => ("accept share", owner.as_str().to_owned()),
                Attempt::DeclineShare(owner) => ("decline share", owner.as_str().to_owned()),
            };
            tracing::warn!(target: AUDIT_LOG, request_id, actor, token_id, attempt, target, "change with unknown outcome");
        }
        error
    }
}
