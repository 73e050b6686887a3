//! The caller's own shares: list, grant and revoke. No response depends on which users exist.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use jiff::Timestamp;
use serde::Serialize;

use super::audit::{Attempt, AuditLog, Change};
use super::error::ApiError;
use super::extract::{JsonBody, PathUser};
use super::me::{json, no_content};
use super::openapi::{
    GrantShareResponses, ListSharesResponses, NewShareSchema, ReadParameters, RevokeShareResponses, SELF_SERVICE,
    ShareParameters,
};
use super::overload::account_changes::ChangeKind;
use super::overload::capacity::ReadCapacity;
use super::state::Api;
use crate::auth::{Auth, Caller, ManageShares, SessionSelector};
use plantstore_model::self_service::ShareRequest;
use plantstore_store::GrantByNameOutcome;

/// The response to `GET /shares`.
#[derive(Serialize)]
pub(super) struct ShownShares<'a> {
    pub(super) granted: Vec<GrantedShareBody<'a>>,
    pub(super) received: Vec<ReceivedShare<'a>>,
}

/// A share of the caller's plants.
#[derive(Serialize)]
pub(super) struct GrantedShareBody<'a> {
    pub(super) user: &'a str,
    pub(super) role: &'static str,
    pub(super) created_at: String,
}

/// A share with the caller.
#[derive(Serialize)]
pub(super) struct ReceivedShare<'a> {
    pub(super) owner: &'a str,
    pub(super) role: &'static str,
}

/// `GET /shares`
#[utoipa::path(
    get,
    path = "/shares",
    operation_id = "listShares",
    tag = SELF_SERVICE,
    summary = "List shares",
    description = "Returns the users who have access to your plants, whether or not they exist, and the owners who share theirs \
        with you; each in the order of the names.",
    params(ReadParameters),
    responses(ListSharesResponses),
    security(("bearer" = ["shares:manage"])),
)]
pub(crate) async fn list(
    State(api): State<&'static Api>,
    caller: Caller<ManageShares>,
    _: ReadCapacity,
) -> Result<Response, ApiError> {
    let _slot = api.read_limiter.acquire(caller.session.user_id()).await?;
    let user = caller.session.user_id();
    let granted = api.store.granted_shares(user).await?;
    let received = api.store.shared_with(user).await?;
    let granted = granted.iter().map(|share| GrantedShareBody {
        user: share.grantee.as_str(),
        role: share.role.name(),
        created_at: share.created.to_string(),
    });
    let received = received.iter().map(|share| ReceivedShare { owner: share.owner.as_str(), role: share.role.name() });
    json(StatusCode::OK, &ShownShares { granted: granted.collect(), received: received.collect() })
}

/// `PUT /shares/{user}`
#[utoipa::path(
    put,
    path = "/shares/{user}",
    operation_id = "grantShare",
    tag = SELF_SERVICE,
    summary = "Share your plants",
    description = "Shares all your present and future plants with a user, or changes the role. If there is no user of this name, \
        the response is the same, and the share takes effect when there is one.",
    params(ShareParameters),
    request_body(content = NewShareSchema, description = "The role; fields that are not known are an error"),
    responses(GrantShareResponses),
    security(("bearer" = ["shares:manage"])),
)]
pub(crate) async fn grant(
    State(api): State<&'static Api>,
    caller: Caller<ManageShares>,
    State(auth): State<&'static Auth>,
    audit: AuditLog,
    PathUser(to): PathUser,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let session = caller.session;
    if to == session.identity.user {
        return Err(ApiError::BadRequest("you have all rights to your own plants: name another user"));
    }
    let role = ShareRequest::from_json(&body)?.role(session.scopes)?;
    api.run_account_change(Arc::clone(&session.identity), ChangeKind::Grant, async move {
        let granted = api.store.grant_own_share(session.user_id(), &to, role, Timestamp::now()).await;
        let attempt = Attempt::GrantShare(&to);
        match granted.map_err(|error| audit.record_if_unknown(&session, attempt, api.change_error(error)))? {
            GrantByNameOutcome::Granted => {
                auth.end_sessions(&SessionSelector::User(to.clone()));
                audit.record(&session, &Change::ShareGranted(&to, role));
                Ok(no_content())
            }
            GrantByNameOutcome::TooManyGranted => Err(ApiError::TooManyGranted),
            GrantByNameOutcome::TooManyReceived => Err(ApiError::TooManyReceived),
            GrantByNameOutcome::NoOwner => Err(ApiError::InvalidToken),
        }
    })
    .await
}

/// `DELETE /shares/{user}`
#[utoipa::path(
    delete,
    path = "/shares/{user}",
    operation_id = "revokeShare",
    tag = SELF_SERVICE,
    summary = "Stop sharing your plants",
    description = "Ends the access of a user to your plants, on every server within 5 seconds.",
    params(ShareParameters),
    responses(RevokeShareResponses),
    security(("bearer" = ["shares:manage"])),
)]
pub(crate) async fn revoke(
    State(api): State<&'static Api>,
    caller: Caller<ManageShares>,
    State(auth): State<&'static Auth>,
    audit: AuditLog,
    PathUser(to): PathUser,
) -> Result<Response, ApiError> {
    let session = caller.session;
    api.run_account_change(Arc::clone(&session.identity), ChangeKind::Revocation, async move {
        let revoked = api.store.revoke_own_share(session.user_id(), &to).await;
        let attempt = Attempt::RevokeShare(&to);
        if !revoked.map_err(|error| audit.record_if_unknown(&session, attempt, api.change_error(error)))? {
            return Err(ApiError::UnknownShare);
        }
        auth.end_sessions(&SessionSelector::User(to.clone()));
        audit.record(&session, &Change::ShareRevoked(&to));
        Ok(no_content())
    })
    .await
}
