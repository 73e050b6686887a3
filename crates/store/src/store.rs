//! The store: an enum over the closed set of engines. The comments on its methods are the contract that every engine keeps.
//!
//! Every method that changes something returns only after the change is durable. An error that is not
//! [`StoreError::OutcomeUnknown`] means that nothing was changed.

use std::ops::ControlFlow;

use jiff::Timestamp;

use crate::accounts::{Collection, GrantOutcome, StoredShare, StoredToken, StoredUser};
use crate::error::{OpenError, StoreError};
use crate::idempotency::{ClaimedKey, IdempotencyKey, WriteResult};
use crate::options::OpenOptions;
use crate::plants::{Actor, CreateOutcome, DeleteOutcome, ListStep};
use crate::postgres::Postgres;
use crate::range::PlantRange;
use crate::sqlite::Sqlite;
use crate::url::StoreUrl;
use crate::version::Version;
use crate::write_queue::{Job, Queue};
use plantstore_model::plant::{NewPlant, PlantId};
use plantstore_model::token::{Grant, TokenHash, TokenId};
use plantstore_model::user::{Role, UserId, UserName};
use plantstore_telemetry::metrics::Page;

/// Evaluates an expression with the value of whichever engine `$value` is of.
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
    /// Opens a store and brings its schema up to date. Also returns whether it is new.
    pub async fn open(url: &StoreUrl, options: OpenOptions) -> Result<(Self, bool), OpenError> {
        match url {
            StoreUrl::Sqlite(path) => {
                Sqlite::open(path, options).await.map(|(engine, created)| (Self::Sqlite(engine), created))
            }
            StoreUrl::Postgres(url) => {
                Postgres::open(url, options).await.map(|(engine, created)| (Self::Postgres(engine), created))
            }
        }
    }

    /// Stores a plant. Whether the id is taken is decided by the key of the table alone; of two creates of one id
    /// exactly one wins. A request that shares its commit with others succeeds or fails alone, save when the store cannot
    /// be used, or others hold what one of them needs for longer than a request waits.
    ///
    /// With an idempotency key, the outcome is stored under it for 24 hours by the same commit that stores the plant. As long as
    /// it is stored, and while a request with the key is in flight on any node, nothing is done a second time.
    pub async fn create(
        &self,
        actor: Actor,
        plant: NewPlant,
        key: Option<IdempotencyKey>,
    ) -> Result<WriteResult<CreateOutcome>, StoreError> {
        let key = self.claim(actor.user, key).await?;
        self.queue().execute(|reply| Job::Create { actor, plant, key, reply }).await
    }

    /// Returns whether the write queue has a free place.
    pub fn has_write_capacity(&self) -> bool {
        self.queue().has_capacity()
    }

    /// Deletes a plant of the owner. A key means what it does for [`Store::create`].
    pub async fn delete(
        &self,
        actor: Actor,
        id: PlantId,
        key: Option<IdempotencyKey>,
    ) -> Result<WriteResult<DeleteOutcome>, StoreError> {
        let key = self.claim(actor.user, key).await?;
        self.queue().execute(|reply| Job::Delete { actor, id, key, reply }).await
    }

    /// Stores the rejection of a request that never came to a write under its key, unless that is known already. For a user
    /// who was deleted meanwhile nothing is stored.
    pub async fn record_rejection(&self, user: UserId, key: IdempotencyKey) -> Result<WriteResult<()>, StoreError> {
        let key = dispatch!(self, engine => engine.claim(user, key).await)?;
        self.queue().execute(|reply| Job::StoreRejection { user, key, reply }).await
    }

    /// Hands the first plants of the ranges to `each`, with the place of their range, in ascending order of id and then of
    /// that place, all from one moment: until `rows` were handed over or `each` breaks (the plant it broke on counts as
    /// handed over), or, after some, earlier. Takes them out of the ranges, which then hold what is left.
    pub async fn list(
        &self,
        ranges: &mut [PlantRange],
        rows: usize,
        each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()> + Send,
    ) -> Result<ListStep, StoreError> {
        dispatch!(self, engine => engine.list(ranges, rows, each).await)
    }

    /// Returns the versions of these users at this moment; `None` for one who does not exist.
    pub async fn versions(&self, users: &[UserId]) -> Result<Vec<Option<Version>>, StoreError> {
        dispatch!(self, engine => engine.versions(users).await)
    }

    /// Returns the versions of these users, if that costs next to nothing. They are as current as those of
    /// [`Store::versions`]: all that was acknowledged before the call, by any process, is in them.
    pub fn cached_versions(&self, users: &[UserId]) -> Option<Vec<Option<Version>>> {
        match self {
            Self::Sqlite(engine) => engine.cached_versions(users),
            Self::Postgres(_) => None,
        }
    }

    /// Returns whether [`Store::cached_versions`] ever returns versions, so that lists can be cached by them.
    pub fn caches_versions(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// Returns the plant at place `count` (from 1) of the ranges, and the place of its range, if others follow it; `None` when
    /// the ranges hold no more than `count`.
    pub async fn boundary(&self, ranges: &[PlantRange], count: u32) -> Result<Option<(PlantId, usize)>, StoreError> {
        let [range] = *ranges else {
            return self.boundary_of_many(ranges, count).await;
        };
        let found = dispatch!(self, engine => engine.boundary(range, count).await);
        Ok(found?.map(|id| (id, 0)))
    }

    /// Counts plant by plant: long pages of several owners are rare.
    async fn boundary_of_many(
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

    /// Records in the background that the token was used on `day`. This may be lost.
    pub fn record_token_use(&self, token: TokenId, day: Timestamp) {
        self.queue().record_token_use(token, day);
    }

    /// Makes a token, and its user if there is none of that name; [`StoreError::NewUserName`] when a new user cannot have it.
    pub async fn create_token(&self, user: &UserName, hash: &TokenHash, grant: &Grant) -> Result<TokenId, StoreError> {
        if let Err(fault) = user.check_new()
            && self.find_user(user).await?.is_none()
        {
            return Err(StoreError::NewUserName(fault));
        }
        dispatch!(self, engine => engine.create_token(user, hash, grant).await)
    }

    /// Returns the id of the user of this name, who is made if there is none: with no tokens and no plants, and once, however
    /// many nodes are asked concurrently. Another call is harmless, whatever the outcome of the first.
    /// [`StoreError::NewUserName`] when there is none and a new user cannot have the name.
    pub async fn ensure_user(&self, name: &UserName) -> Result<UserId, StoreError> {
        if let Some(user) = self.find_user(name).await? {
            return Ok(user);
        }
        name.check_new().map_err(StoreError::NewUserName)?;
        let (name, now) = (name.clone(), Timestamp::now());
        self.queue().execute(|reply| Job::CreateUser { name, now, reply }).await
    }

    async fn find_user(&self, name: &UserName) -> Result<Option<UserId>, StoreError> {
        dispatch!(self, engine => engine.find_user(name).await)
    }

    /// Returns all tokens, or those of one user, in ascending order of id.
    pub async fn tokens(&self, user: Option<&UserName>) -> Result<Vec<StoredToken>, StoreError> {
        dispatch!(self, engine => engine.tokens(user).await)
    }

    /// Revokes a token for good; false when there is none of this id. One that is revoked already stays so.
    pub async fn revoke_token(&self, token: TokenId, now: Timestamp) -> Result<bool, StoreError> {
        dispatch!(self, engine => engine.revoke_token(token, now).await)
    }

    /// Returns all users, or the one of this name, in the order of their names.
    pub async fn users(&self, name: Option<&UserName>) -> Result<Vec<StoredUser>, StoreError> {
        dispatch!(self, engine => engine.users(name).await)
    }

    /// Returns true as long as no user was ever made in the store; a database server forgets users who were deleted and swept.
    pub async fn is_unused(&self) -> Result<bool, StoreError> {
        dispatch!(self, engine => engine.is_unused().await)
    }

    /// Deletes a user: in one step their name, their tokens and all access to their plants; false when there is none
    /// of this name. The plants themselves go with [`Store::sweep`].
    pub async fn delete_user(&self, name: &UserName) -> Result<bool, StoreError> {
        dispatch!(self, engine => engine.delete_user(name).await)
    }

    /// Removes some plants and keys of deleted users and returns how many; 0 when none are left. Never locks the store for
    /// long. To be called [`SWEEP_DELAY`](crate::SWEEP_DELAY) after the deletion: until then a server may still accept a token of
    /// theirs, and would list what is left as if it were all.
    pub async fn sweep(&self) -> Result<u64, StoreError> {
        dispatch!(self, engine => engine.sweep().await)
    }

    /// Removes some expired keys and returns how many; 0 when none are left. Never locks the store for long.
    pub async fn sweep_keys(&self) -> Result<u64, StoreError> {
        dispatch!(self, engine => engine.sweep_keys().await)
    }

    /// Returns the collections that others share with this user, in the order of the owners' names.
    pub async fn shared_with(&self, user: UserId) -> Result<Vec<Collection>, StoreError> {
        dispatch!(self, engine => engine.shared_with(user).await)
    }

    /// Shares the plants of one user with another; if they are shared already, the role changes. The other's version
    /// moves, because their list does.
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

    /// Ends a share; false when there is none. The other's version moves, because their list does.
    pub async fn revoke_share(&self, owner: &UserName, to: &UserName) -> Result<bool, StoreError> {
        dispatch!(self, engine => engine.revoke_share(owner, to).await)
    }

    /// Checks that the store responds.
    pub async fn ping(&self) -> Result<(), StoreError> {
        dispatch!(self, engine => engine.ping().await)
    }

    /// Writes the metrics, without waiting for the store.
    pub fn write_metrics(&self, page: &mut Page) {
        let engine = match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
        };
        page.info("plantstore_store_info", "What the plants are kept in.", &[("engine", engine.into())]);
        self.queue().write_metrics(page);
        dispatch!(self, engine => engine.write_metrics(page));
    }

    /// Finishes the writes that were accepted; later ones are [`StoreError::Unavailable`]. A file is closed, connections to a
    /// database server end with the process.
    pub async fn close(&self) {
        dispatch!(self, engine => engine.close().await);
    }

    fn queue(&self) -> &Queue {
        dispatch!(self, engine => engine.queue())
    }

    async fn claim(&self, user: UserId, key: Option<IdempotencyKey>) -> Result<Option<Box<ClaimedKey>>, StoreError> {
        let Some(key) = key else { return Ok(None) };
        dispatch!(self, engine => engine.claim(user, key).await).map(Some)
    }
}
