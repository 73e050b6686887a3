//! The shares that the caller has granted and received. No response depends on which users exist.

use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::account_change::{Attempt, Change, ChangeAccess};
use super::error::ApiError;
use super::extract::{JsonBody, PathUser, ReadCapacity};
use super::overload::ChangeKind;
use super::response::{serialize, uncached_json};
use super::state::Api;
use crate::auth::{Caller, ManageShares};
use plantstore_model::self_service::ShareRequest;
use plantstore_model::user::{Role, UserName};
use plantstore_store::{AcceptOutcome, GrantOutcome, Store, StoredName};

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
    Ok(uncached_json(serialize(&Shares { granted: granted.collect(), received: received.collect() })?))
}

/// Returns a change of the share with this user.
fn attempt(kind: ChangeKind, action: &'static str, user: &UserName) -> Attempt {
    Attempt { kind, action, target: user.as_str().to_owned() }
}

/// `PUT /shares/{user}`
pub(crate) async fn grant(
    access: ChangeAccess<ManageShares>,
    PathUser(to): PathUser,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    if to == access.session.identity.user {
        return Err(ApiError::BadRequest("you have all rights to your own plants: name another user"));
    }
    let role = ShareRequest::from_json(&body)?.role(access.session.scopes)?;
    let attempt = attempt(ChangeKind::Grant, "grant share", &to);
    let change = |store: &'static Store, owner| async move {
        match store.grant_own_share(owner, &to, role, Timestamp::now()).await? {
            GrantOutcome::Granted => Ok(Change::ShareGranted(to, role).into()),
            GrantOutcome::TooMany => Err(ApiError::TooManyGranted),
            GrantOutcome::NoOwner | GrantOutcome::NoGrantee => Err(ApiError::InvalidToken),
        }
    };
    access.run(attempt, change).await
}

/// `DELETE /shares/{user}`
pub(crate) async fn revoke(access: ChangeAccess<ManageShares>, PathUser(to): PathUser) -> Result<Response, ApiError> {
    let attempt = attempt(ChangeKind::Revocation, "revoke share", &to);
    let change = |store: &'static Store, owner| async move {
        let was_shared = store.revoke_own_share(owner, &to).await?;
        if was_shared { Ok(Change::ShareRevoked(to).into()) } else { Err(ApiError::UnknownShare) }
    };
    access.run(attempt, change).await
}

/// `PUT /shares/received/{owner}`
pub(crate) async fn accept(
    access: ChangeAccess<ManageShares>,
    PathUser(owner): PathUser,
) -> Result<Response, ApiError> {
    let attempt = attempt(ChangeKind::Grant, "accept share", &owner);
    let change = |store: &'static Store, user| async move {
        match store.accept_share(user, &owner).await? {
            AcceptOutcome::Accepted => Ok(Change::ShareAccepted(owner).into()),
            AcceptOutcome::NoOffer => Err(ApiError::UnknownReceivedShare),
            AcceptOutcome::TooMany => Err(ApiError::TooManyReceived),
        }
    };
    access.run(attempt, change).await
}

/// `DELETE /shares/received/{owner}`
pub(crate) async fn decline(
    access: ChangeAccess<ManageShares>,
    PathUser(owner): PathUser,
) -> Result<Response, ApiError> {
    let attempt = attempt(ChangeKind::Revocation, "decline share", &owner);
    let change = |store: &'static Store, user| async move {
        let was_shared = store.decline_share(user, &owner, Timestamp::now()).await?;
        if was_shared { Ok(Change::ShareDeclined(owner).into()) } else { Err(ApiError::UnknownReceivedShare) }
    };
    access.run(attempt, change).await
}
