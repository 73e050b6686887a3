//! The store: an enum of the two engines. The documentation of its methods is the contract that both engines implement.
//!
//! A method that changes data returns only after the change is durable. Every error except
//! [`StoreError::OutcomeUnknown`] means that nothing was changed.

use std::ops::ControlFlow;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, TryFutureExt as _};
use jiff::Timestamp;

use crate::accounts::{
    CollectionAccess, CreateTokenOutcome, GrantByNameOutcome, GrantOutcome, GrantedShare, StoredShare, StoredToken,
    StoredUser,
};
use crate::error::{OpenError, StoreError};
use crate::idempotency::{ClaimedKey, IdempotencyKey, WriteResult};
use crate::options::OpenOptions;
use crate::plants::{CreateOutcome, DeleteOutcome, ListStep, WriteContext};
use crate::postgres::{self, PlacedTable, Postgres};
use crate::range::PlantRange;
use crate::sqlite::Sqlite;
use crate::url::StoreUrl;
use crate::version::Version;
use crate::write_queue::{Job, WriteQueue};
use plantstore_model::plant::{NewPlant, PlantId};
use plantstore_model::token::{TokenAttributes, TokenHash, TokenId};
use plantstore_model::user::{Role, UserId, UserName};
use plantstore_telemetry::metrics::Exposition;

/// Evaluates an expression on the value of the engine that `$value` holds.
macro_rules! dispatch {
    ($value:expr, $engine:ident => $call:expr) => {
        match $value {
            Self::Sqlite($engine) => $call,
            Self::Postgres($engine) => $call,
        }
    };
}
pub(crate) use dispatch;

pub enum Store {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl Store {
    /// Opens a store, and migrates its schema if the options say so. Also returns true if the store is new.
    pub fn open(url: &StoreUrl, options: OpenOptions) -> BoxFuture<'_, Result<(Self, bool), OpenError>> {
        match url {
            StoreUrl::Sqlite(path) => {
                Sqlite::open(path, options).map_ok(|(engine, created)| (Self::Sqlite(engine), created)).boxed()
            }
            StoreUrl::Postgres(url) => {
                Postgres::open(url, options).map_ok(|(engine, created)| (Self::Postgres(engine), created)).boxed()
            }
        }
    }

    /// Distributes the tables of a PostgreSQL database over the workers of the extension Citus, and returns where each table is.
    /// Can be repeated.
    pub async fn distribute(url: &StoreUrl, timeout: Duration) -> Result<Vec<PlacedTable>, OpenError> {
        match url {
            StoreUrl::Sqlite(_) => {
                let reason = "only PostgreSQL with the extension Citus can distribute its tables";
                Err(OpenError::Unfit(url.clone(), reason.to_owned()))
            }
            StoreUrl::Postgres(url) => postgres::distribute(url, timeout).await,
        }
    }

    /// Stores a plant. The primary key of the table alone detects a duplicate id: of two concurrent creates with the same id,
    /// exactly one succeeds. Requests that share a commit succeed or fail independently, unless the store is unavailable or
    /// a lock that one of them needs is not released within the timeout.
    ///
    /// With an idempotency key, the same commit stores the outcome under the key, for 24 hours. A second request with the key
    /// changes nothing while the first is in flight on any node, and while its outcome is stored.
    pub async fn create(
        &self,
        context: WriteContext,
        plant: NewPlant,
        key: Option<IdempotencyKey>,
    ) -> Result<WriteResult<CreateOutcome>, StoreError> {
        let key = self.claim(context.user, key).await?;
        self.queue().execute(Some(context.user), |reply| Job::Create { context, plant, key, reply }).await
    }

    /// Returns true if the write queue has a place for a write of this user.
    pub fn has_write_capacity(&self, user: UserId) -> bool {
        self.queue().has_capacity(user)
    }

    /// Deletes a plant of the owner. An idempotency key works as in [`Store::create`].
    pub async fn delete(
        &self,
        context: WriteContext,
        id: PlantId,
        key: Option<IdempotencyKey>,
    ) -> Result<WriteResult<DeleteOutcome>, StoreError> {
        let key = self.claim(context.user, key).await?;
        self.queue().execute(Some(context.user), |reply| Job::Delete { context, id, key, reply }).await
    }

    /// Stores the rejection of a request that failed validation under its idempotency key, unless an outcome is stored already.
    /// Stores nothing if the user was deleted meanwhile.
    pub async fn record_rejection(&self, user: UserId, key: IdempotencyKey) -> Result<WriteResult<()>, StoreError> {
        let key = dispatch!(self, engine => engine.claim(user, key).await)?;
        self.queue().execute(Some(user), |reply| Job::StoreRejection { user, key, reply }).await
    }

    /// Passes the first plants of the ranges to `each`, with the index of their range, in ascending order of id and then of
    /// index. All of them are from one consistent snapshot, except that Citus has one for each owner. Ends after `rows` plants,
    /// when `each` breaks (that plant counts), or earlier if at least one plant was passed. Shrinks the ranges to the plants that
    /// are left.
    pub async fn list(
        &self,
        ranges: &mut [PlantRange],
        rows: usize,
        each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()> + Send,
    ) -> Result<ListStep, StoreError> {
        dispatch!(self, engine => engine.list(ranges, rows, each).await)
    }

    /// Returns the current versions of these users; `None` for a user who does not exist.
    pub async fn versions(&self, users: &[UserId]) -> Result<Vec<Option<Version>>, StoreError> {
        dispatch!(self, engine => engine.versions(users).await)
    }

    /// Returns the versions of these users if they are known without a query. They are as current as those of
    /// [`Store::versions`]: they include every write that any process acknowledged before the call.
    pub fn cached_versions(&self, users: &[UserId]) -> Option<Vec<Option<Version>>> {
        match self {
            Self::Sqlite(engine) => engine.cached_versions(users),
            Self::Postgres(_) => None,
        }
    }

    /// Returns the id of the last plant of a page of `count` plants, and the index of its range; `None` if no plant follows the
    /// page.
    pub async fn page_end(&self, ranges: &[PlantRange], count: u32) -> Result<Option<(PlantId, usize)>, StoreError> {
        let [range] = *ranges else {
            return self.page_end_of_many(ranges, count).await;
        };
        let found = dispatch!(self, engine => engine.page_end(range, count).await);
        Ok(found?.map(|id| (id, 0)))
    }

    /// Counts the plants one by one, because long pages of several owners are rare.
    async fn page_end_of_many(
        &self,
        ranges: &[PlantRange],
        count: u32,
    ) -> Result<Option<(PlantId, usize)>, StoreError> {
        let mut ranges = ranges.to_vec();
        let mut remaining = count as usize;
        let mut last = None;
        while remaining > 0 {
            let before = remaining;
            let count = |range, id, _: &str, _: Option<&str>| {
                (last, remaining) = (Some((id, range)), remaining - 1);
                if remaining == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            if !self.list(&mut ranges, before, count).await?.more {
                return Ok(None);
            }
            tokio::task::yield_now().await;
        }
        Ok(last)
    }

    pub async fn find_token(&self, hash: &TokenHash) -> Result<Option<StoredToken>, StoreError> {
        dispatch!(self, engine => engine.find_token(hash).await)
    }

    /// Records in the background that the token was used on `day`. The record may be lost.
    pub fn record_token_use(&self, token: TokenId, day: Timestamp) {
        self.queue().record_token_use(token, day);
    }

    /// Creates a token, and its user if there is none of that name; [`StoreError::NewUserName`] if the name is not allowed for
    /// new users.
    pub async fn create_token(
        &self,
        user: &UserName,
        hash: &TokenHash,
        attributes: &TokenAttributes,
    ) -> Result<TokenId, StoreError> {
        if let Err(fault) = user.check_new()
            && self.find_user(user).await?.is_none()
        {
            return Err(StoreError::NewUserName(fault));
        }
        dispatch!(self, engine => engine.create_token(user, hash, attributes).await)
    }

    /// Returns the id of the user of this name. Creates a user without tokens and plants if there is none. Concurrent calls on
    /// several nodes create one user, and a call can always be repeated. [`StoreError::NewUserName`] if there is no such user
    /// and the name is not allowed for new users.
    pub async fn ensure_user(&self, name: &UserName) -> Result<UserId, StoreError> {
        if let Some(user) = self.find_user(name).await? {
            return Ok(user);
        }
        name.check_new().map_err(StoreError::NewUserName)?;
        let (name, now) = (name.clone(), Timestamp::now());
        self.queue().execute(None, |reply| Job::CreateUser { name, now, reply }).await
    }

    async fn find_user(&self, name: &UserName) -> Result<Option<UserId>, StoreError> {
        dispatch!(self, engine => engine.find_user(name).await)
    }

    /// Returns all tokens, or those of one user, in ascending order of id.
    pub async fn tokens(&self, user: Option<&UserName>) -> Result<Vec<StoredToken>, StoreError> {
        dispatch!(self, engine => engine.tokens(user).await)
    }

    /// Revokes a token permanently; false if there is none of this id. A revoked token keeps its time of revocation.
    pub async fn revoke_token(&self, token: TokenId, now: Timestamp) -> Result<bool, StoreError> {
        dispatch!(self, engine => engine.revoke_token(token, now).await)
    }

    /// Creates a token that its user requests with another one. The limit on active tokens holds for concurrent requests on all
    /// nodes, and no token is created with one that is revoked or expired. Removes the oldest tokens that are not active
    /// beyond a limit.
    pub async fn create_own_token(
        &self,
        user: UserId,
        hash: &TokenHash,
        attributes: &TokenAttributes,
    ) -> Result<CreateTokenOutcome, StoreError> {
        dispatch!(self, engine => engine.create_own_token(user, hash, attributes).await)
    }

    /// Returns the tokens of a user in ascending order of id.
    pub async fn own_tokens(&self, user: UserId) -> Result<Vec<StoredToken>, StoreError> {
        dispatch!(self, engine => engine.own_tokens(user).await)
    }

    /// Revokes a token of this user permanently; false if the user has none of this id, or it is revoked already.
    pub async fn revoke_own_token(&self, user: UserId, token: TokenId, now: Timestamp) -> Result<bool, StoreError> {
        dispatch!(self, engine => engine.revoke_own_token(user, token, now).await)
    }

    /// Returns all users, or the one of this name, in the order of their names.
    pub async fn users(&self, name: Option<&UserName>) -> Result<Vec<StoredUser>, StoreError> {
        dispatch!(self, engine => engine.users(name).await)
    }

    /// Returns true if the store never had a user. With PostgreSQL, users who were deleted and swept do not count.
    pub async fn is_unused(&self) -> Result<bool, StoreError> {
        dispatch!(self, engine => engine.is_unused().await)
    }

    /// Deletes a user with their tokens and shares in one transaction; false if there is none of this name. Their plants are
    /// inaccessible from then on, and [`Store::sweep_deleted_users`] removes them.
    pub async fn delete_user(&self, name: &UserName) -> Result<bool, StoreError> {
        dispatch!(self, engine => engine.delete_user(name).await)
    }

    /// Removes some rows of deleted users (plants and keys; on PostgreSQL also rows of writers that ended) and returns their number; 0 if none are left. Never locks the store for
    /// long. Call it [`SWEEP_DELAY`](crate::SWEEP_DELAY) after the deletion: until then a server may still accept a cached token
    /// of the user, and would return an incomplete list.
    pub async fn sweep_deleted_users(&self) -> Result<u64, StoreError> {
        dispatch!(self, engine => engine.sweep_deleted_users().await)
    }

    /// Removes some expired keys and returns their number; 0 if none are left. Never locks the store for long.
    pub async fn sweep_expired_keys(&self) -> Result<u64, StoreError> {
        dispatch!(self, engine => engine.sweep_expired_keys().await)
    }

    /// Returns the collections that others share with this user, in the order of the owners' names.
    pub async fn shared_with(&self, user: UserId) -> Result<Vec<CollectionAccess>, StoreError> {
        dispatch!(self, engine => engine.shared_with(user).await)
    }

    /// Shares the plants of one user with another. If they are shared already, the role changes. The grantee gets a new version,
    /// because their list changes.
    pub async fn grant_share(
        &self,
        owner: &UserName,
        to: &UserName,
        role: Role,
        now: Timestamp,
    ) -> Result<GrantOutcome, StoreError> {
        dispatch!(self, engine => engine.grant_share(owner, to, role, now).await)
    }

    /// Returns all shares, or those of one owner, or those with one user, in the order of the names.
    pub async fn shares(
        &self,
        owner: Option<&UserName>,
        to: Option<&UserName>,
    ) -> Result<Vec<StoredShare>, StoreError> {
        dispatch!(self, engine => engine.shares(owner, to).await)
    }

    /// Shares the plants of the owner with the user of this name, at once or when there is such a user. If they are shared
    /// already, the role changes. The outcome does not depend on whether there is such a user, and the limits hold for
    /// concurrent requests on all nodes.
    pub async fn grant_own_share(
        &self,
        owner: UserId,
        to: &UserName,
        role: Role,
        now: Timestamp,
    ) -> Result<GrantByNameOutcome, StoreError> {
        dispatch!(self, engine => engine.grant_own_share(owner, to, role, now).await)
    }

    /// Returns the shares of an owner in the order of the grantees' names.
    pub async fn granted_shares(&self, owner: UserId) -> Result<Vec<GrantedShare>, StoreError> {
        dispatch!(self, engine => engine.granted_shares(owner).await)
    }

    /// Removes a share of this owner; false if there is none.
    pub async fn revoke_own_share(&self, owner: UserId, to: &UserName) -> Result<bool, StoreError> {
        dispatch!(self, engine => engine.revoke_own_share(owner, to).await)
    }

    /// Removes a share; false if there is none. The grantee gets a new version, because their list changes.
    pub async fn revoke_share(&self, owner: &UserName, to: &UserName) -> Result<bool, StoreError> {
        dispatch!(self, engine => engine.revoke_share(owner, to).await)
    }

    /// Checks that the store responds.
    pub async fn ping(&self) -> Result<(), StoreError> {
        dispatch!(self, engine => engine.ping().await)
    }

    /// Writes the metrics, without waiting for the store.
    pub fn write_metrics(&self, exposition: &mut Exposition) {
        let engine = match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
        };
        exposition.info(
            "plantstore_store_info",
            "Storage engine; the value is always 1.",
            &[("engine", engine.into())],
        );
        self.queue().write_metrics(exposition);
        dispatch!(self, engine => engine.write_metrics(exposition));
    }

    /// Finishes the accepted writes; later ones are [`StoreError::Unavailable`]. SQLite's file is closed; connections to
    /// PostgreSQL end with the process.
    pub async fn close(&self) {
        dispatch!(self, engine => engine.close().await);
    }

    fn queue(&self) -> &WriteQueue {
        dispatch!(self, engine => engine.queue())
    }

    async fn claim(&self, user: UserId, key: Option<IdempotencyKey>) -> Result<Option<Box<ClaimedKey>>, StoreError> {
        let Some(key) = key else { return Ok(None) };
        dispatch!(self, engine => engine.claim(user, key).await).map(Some)
    }
}
