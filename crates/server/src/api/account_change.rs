//! Changes of the caller's own tokens and shares. Each runs to its end, also if the client disconnects, ends the cached sessions
//! that it affects, and is recorded in the log.

use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::response::Response;
use hyper::http::request::Parts;

use super::error::ApiError;
use super::overload::ChangeKind;
use super::response::no_content;
use super::state::{Api, RequestState};
use crate::auth::{Caller, RequiredScope, Session, SessionSelector};
use crate::observe::Context;
use plantstore_model::token::TokenId;
use plantstore_model::user::{Role, UserId, UserName};
use plantstore_store::{Store, StoreError};
use plantstore_telemetry::logging::AUDIT_LOG;

pub(crate) struct ChangeAccess<S> {
    pub(super) session: Arc<Session>,
    api: &'static Api,
    context: Arc<Context>,
    scope: PhantomData<S>,
}

impl<S: RequiredScope + Send> FromRequestParts<RequestState> for ChangeAccess<S> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &RequestState) -> Result<Self, ApiError> {
        let Caller { session, .. } = Caller::<S>::from_request_parts(parts, state).await?;
        let RequestState { api, context } = state.clone();
        Ok(Self { session, api, context, scope: PhantomData })
    }
}

/// A change that is about to run.
pub(super) struct Attempt {
    pub(super) kind: ChangeKind,
    /// Action and object, for the log.
    pub(super) action: &'static str,
    /// The user, the id of the token or the label of a new one.
    pub(super) target: String,
}

pub(super) enum Change {
    TokenCreated(TokenId),
    TokenRevoked(TokenId),
    ShareGranted(UserName, Role),
    ShareRevoked(UserName),
    ShareAccepted(UserName),
    ShareDeclined(UserName),
}

pub(super) struct Completed {
    pub(super) change: Change,
    pub(super) response: Response,
}

impl From<Change> for Completed {
    fn from(change: Change) -> Self {
        Self { change, response: no_content() }
    }
}

impl<S: Send + 'static> ChangeAccess<S> {
    /// Runs a change of the caller when its turn has come, and returns the response.
    pub(super) async fn run<F>(
        self,
        attempt: Attempt,
        change: impl FnOnce(&'static Store, UserId) -> F,
    ) -> Result<Response, ApiError>
    where
        F: Future<Output = Result<Completed, ApiError>> + Send + 'static,
    {
        let change = change(&self.api.store, self.session.user_id());
        let place = self.api.account_changes.begin(&self.session.identity, attempt.kind).await;
        let place = place.ok_or_else(|| self.api.write_error(StoreError::Overloaded))?;
        let running = tokio::spawn(async move {
            let _place = place;
            let Completed { change, response } = change.await.map_err(|error| self.fail(attempt, error))?;
            if let Some(affected) = self.affected_by(&change) {
                self.api.auth.sessions.end(&affected);
            }
            self.record(&change);
            Ok(response)
        });
        running.await.map_err(|error| ApiError::Internal(error.to_string()))?
    }

    /// Counts a change that the store had no capacity for, and logs one whose outcome is unknown. Returns the error.
    fn fail(&self, Attempt { action: attempt, target, .. }: Attempt, error: ApiError) -> ApiError {
        match error {
            ApiError::OutcomeUnknown(detail) => {
                let request_id = self.context.id();
                let actor = self.session.identity.user.as_str();
                let token_id = self.session.identity.token.map(TokenId::get);
                tracing::warn!(target: AUDIT_LOG, request_id, actor, token_id, attempt, target, "change with unknown outcome");
                ApiError::ChangeUnknown(detail)
            }
            ApiError::Overloaded => self.api.write_error(StoreError::Overloaded),
            error => error,
        }
    }

    /// Returns the sessions of this node that end with a change. Other nodes notice it when their sessions expire.
    fn affected_by(&self, change: &Change) -> Option<SessionSelector> {
        match change {
            Change::TokenCreated(_) => None,
            Change::TokenRevoked(token) => Some(SessionSelector::Token(*token)),
            Change::ShareGranted(to, _) | Change::ShareRevoked(to) => Some(SessionSelector::User(to.clone())),
            Change::ShareAccepted(_) | Change::ShareDeclined(_) => {
                Some(SessionSelector::User(self.session.identity.user.clone()))
            }
        }
    }

    fn record(&self, change: &Change) {
        let request_id = self.context.id();
        let actor = self.session.identity.user.as_str();
        let token_id = self.session.identity.token.map(TokenId::get);
        match change {
            Change::TokenCreated(target) => {
                tracing::info!(target: AUDIT_LOG, request_id, actor, token_id, target = target.get(), "token created");
            }
            Change::TokenRevoked(target) => {
                tracing::info!(target: AUDIT_LOG, request_id, actor, token_id, target = target.get(), "token revoked");
            }
            Change::ShareGranted(target, role) => {
                let target = target.as_str();
                let role = role.name();
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
}
