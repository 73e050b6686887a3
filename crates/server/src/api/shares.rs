//! The shares that the caller has granted and received. No response depends on which users exist.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::audit::{Attempt, AuditLog, Change};
use super::error::ApiError;
use super::extract::{JsonBody, PathUser};
use super::me::{json, no_content};
use super::overload::account_changes::ChangeKind;
use super::overload::capacity::ReadCapacity;
use super::state::Api;
use crate::auth::{Auth, Caller, ManageShares, SessionSelector};
use plantstore_model::self_service::ShareRequest;
use plantstore_model::user::{Role, UserName};
use plantstore_store::{AcceptOutcome, GrantOutcome, StoredName};

/// Shares that you have granted and received
#[derive(Serialize, ToSchema)]
pub(crate) struct Shares {
    granted: Vec<SharesGrantedItem>,
    received: Vec<SharesReceivedItem>,
}

/// A share of your plants
#[derive(Serialize, ToSchema)]
pub(crate) struct SharesGrantedItem {
    #[schema(value_type = UserName)]
    user: StoredName,
    role: Role,
    state: ShareState,
    /// The time of the offer, or of the grant by the operator
    created_at: Timestamp,
}

/// A share of another owner's plants
#[derive(Serialize, ToSchema)]
pub(crate) struct SharesReceivedItem {
    #[schema(value_type = UserName)]
    owner: StoredName,
    role: Role,
    state: ShareState,
}

/// `offered` until the share is accepted
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ShareState {
    Offered,
    Accepted,
}

impl ShareState {
    /// Returns the state in a response. An owner does not learn that an offer was declined.
    fn shown(stored: plantstore_store::ShareState) -> Self {
        match stored {
            plantstore_store::ShareState::Accepted => Self::Accepted,
            plantstore_store::ShareState::Offered | plantstore_store::ShareState::Declined => Self::Offered,
        }
    }
}

/// `GET /shares`
pub(crate) async fn list(
    State(api): State<&'static Api>,
    caller: Caller<ManageShares>,
    _: ReadCapacity,
) -> Result<Response, ApiError> {
    let _slot = api.read_limiter.acquire(caller.session.user_id()).await?;
    let user = caller.session.user_id();
    let granted = api.store.granted_shares(user).await?;
    let received = api.store.received_shares(user).await?;
    let granted = granted.into_iter().map(|share| SharesGrantedItem {
        user: share.grantee,
        role: share.role,
        state: ShareState::shown(share.state),
        created_at: share.created,
    });
    let received = received.into_iter().map(|share| SharesReceivedItem {
        owner: share.owner,
        role: share.role,
        state: ShareState::shown(share.state),
    });
    json(StatusCode::OK, &Shares { granted: granted.collect(), received: received.collect() })
}

/// `PUT /shares/{user}`
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
            GrantOutcome::Granted => {
                auth.end_sessions(&SessionSelector::User(to.clone()));
                audit.record(&session, &Change::ShareGranted(&to, role));
                Ok(no_content())
            }
            GrantOutcome::TooMany => Err(ApiError::TooManyGranted),
            GrantOutcome::NoOwner | GrantOutcome::NoGrantee => Err(ApiError::InvalidToken),
        }
    })
    .await
}

/// `DELETE /shares/{user}`
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

/// `PUT /shares/received/{owner}`
pub(crate) async fn accept(
    State(api): State<&'static Api>,
    caller: Caller<ManageShares>,
    State(auth): State<&'static Auth>,
    audit: AuditLog,
    PathUser(owner): PathUser,
) -> Result<Response, ApiError> {
    let session = caller.session;
    api.run_account_change(Arc::clone(&session.identity), ChangeKind::Grant, async move {
        let accepted = api.store.accept_share(session.user_id(), &owner).await;
        let attempt = Attempt::AcceptShare(&owner);
        match accepted.map_err(|error| audit.record_if_unknown(&session, attempt, api.change_error(error)))? {
            AcceptOutcome::Accepted => {
                auth.end_sessions(&SessionSelector::User(session.identity.user.clone()));
                audit.record(&session, &Change::ShareAccepted(&owner));
                Ok(no_content())
            }
            AcceptOutcome::NoOffer => Err(ApiError::UnknownReceivedShare),
            AcceptOutcome::TooMany => Err(ApiError::TooManyReceived),
        }
    })
    .await
}

/// `DELETE /shares/received/{owner}`
pub(crate) async fn decline(
    State(api): State<&'static Api>,
    caller: Caller<ManageShares>,
    State(auth): State<&'static Auth>,
    audit: AuditLog,
    PathUser(owner): PathUser,
) -> Result<Response, ApiError> {
    let session = caller.session;
    api.run_account_change(Arc::clone(&session.identity), ChangeKind::Revocation, async move {
        let declined = api.store.decline_share(session.user_id(), &owner, Timestamp::now()).await;
        let attempt = Attempt::DeclineShare(&owner);
        if !declined.map_err(|error| audit.record_if_unknown(&session, attempt, api.change_error(error)))? {
            return Err(ApiError::UnknownReceivedShare);
        }
        auth.end_sessions(&SessionSelector::User(session.identity.user.clone()));
        audit.record(&session, &Change::ShareDeclined(&owner));
        Ok(no_content())
    })
    .await
}
