//! The store: where users, tokens and plants are kept. The set of engines is closed, so the store is an enum, and the
//! comments on its methods are the contract that every engine keeps.
//!
//! Every method that changes something answers only after the change is durable. An error that is not
//! [`StoreError::OutcomeUnknown`] means that nothing was changed.

pub mod archive;
mod batch;
pub mod cache;
mod error;
mod keys;
mod merge;
mod metrics;
pub mod new_file;
mod postgres;
mod records;
mod span;
mod sqlite;
mod transfer;
mod url;

use std::ops::ControlFlow;
use std::time::Duration;

use jiff::Timestamp;

use plantstore_model::plant::{NewPlant, PlantId};
use plantstore_model::token::{Grant, TokenHash, TokenId};
use plantstore_model::user::{Role, UserId, UserName};
use plantstore_telemetry::metrics::Page;

pub use self::error::{OpenError, StoreError};
pub use self::keys::{Kept, Key, Known, Refusal, Written};
pub use self::postgres::{PasswordFileFault, PostgresUrl, PostgresUrlFault};
pub use self::records::{Collection, Granting, StoredName, StoredShare, StoredToken, StoredUser};
pub use self::span::{Span, end_with};
pub use self::transfer::{
    BadRow, Counts, FillError, Filling, Imported, Importer, KeyRecord, Met, Numbers, Piece, PlantRecord, Planting,
    Selection, ShareRecord, Snapshot, TokenRecord, UserRecord,
};
pub use self::url::{StoreUrl, StoreUrlFault};

/// How long after the deletion of a user their plants stay, which is longer than a server believes a token.
pub const SWEEP_DELAY: Duration = Duration::from_secs(3);

/// Owners who may share their plants with one user: bounds what a list of all of them reads at a time.
pub const SHARES_MAX: u32 = 100;

/// How to open a store.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Make the store when there is none; otherwise that is [`OpenError::Missing`].
    pub create: bool,
    /// Bring the schema of a database server up to date; a file is always brought up to date.
    pub migrate: bool,
    /// Writes that may wait for the writer; one more is [`StoreError::Overloaded`].
    pub write_queue: usize,
    /// Threads that read at the same time.
    pub readers: usize,
    /// How long a change of an operator waits for others that write.
    pub patience: Duration,
    /// Timeout of a request for a database server, or for the write lock of a file.
    pub timeout: Duration,
    /// Retry for some seconds when a database server does not accept connections yet; otherwise that is an error at once.
    pub await_server: bool,
}

/// Who writes, and among whose plants: their own, nearly always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Whoever sent the request.
    pub user: UserId,
    /// Whose plants they change.
    pub owner: UserId,
}

/// What became of a create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// The plant is stored.
    Created,
    /// The owner has a plant of this id already; it is untouched.
    Duplicate,
    /// The user was deleted meanwhile.
    NoUser,
    /// Another owner was deleted meanwhile.
    NoOwner,
}

/// What became of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The plant is gone.
    Deleted,
    /// The owner has no plant of this id.
    NoPlant,
    /// The user was deleted meanwhile.
    NoUser,
    /// Another owner was deleted meanwhile.
    NoOwner,
}

/// A user's version: moves with every change of what a list of their plants shows, and is never used a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(i64);

impl Version {
    /// The version with this value.
    pub const fn new(value: i64) -> Self {
        Self(value)
    }

    /// The value as the store keeps it.
    pub const fn get(self) -> i64 {
        self.0
    }
}

/// What one look at a list found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Whether the spans hold more.
    pub more: bool,
    /// The version of each owner, from the same moment as the plants; `None` for one who was deleted.
    pub versions: Vec<Option<Version>>,
}

/// A store, open.
pub enum Store {
    /// The embedded engine.
    Sqlite(sqlite::Sqlite),
    /// The scale-out engine.
    Postgres(postgres::Postgres),
}

impl Store {
    /// Opens a store, bringing its schema up to date; also says whether it is new.
    pub async fn open(url: &StoreUrl, options: OpenOptions) -> Result<(Self, bool), OpenError> {
        match url {
            StoreUrl::Sqlite(path) => {
                sqlite::Sqlite::open(path, options).await.map(|(engine, created)| (Self::Sqlite(engine), created))
            }
            StoreUrl::Postgres(url) => {
                postgres::Postgres::open(url, options).await.map(|(engine, created)| (Self::Postgres(engine), created))
            }
        }
    }

    /// Stores a plant. Whether the id is taken is decided by the key of the table alone; of two creates of one id
    /// exactly one wins. A request that shares its commit with others succeeds or fails alone, save when the store cannot
    /// be used, or others hold what one of them needs for longer than a request waits.
    ///
    /// With an idempotency key, the answer is kept under it for 24 hours by the very commit that stores the plant. While it
    /// is kept, and while a request with the key is at work on any node, nothing is done a second time.
    pub async fn create(
        &self,
        actor: Actor,
        plant: NewPlant,
        key: Option<Key>,
    ) -> Result<Written<Creation>, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.create(actor, plant, key).await,
            Self::Postgres(engine) => engine.create(actor, plant, key).await,
        }
    }

    /// Whether the queue of writes has a free place.
    pub fn has_write_capacity(&self) -> bool {
        match self {
            Self::Sqlite(engine) => engine.has_write_capacity(),
            Self::Postgres(engine) => engine.has_write_capacity(),
        }
    }

    /// Deletes a plant of the owner. A key means what it does for [`Store::create`].
    pub async fn delete(&self, actor: Actor, id: PlantId, key: Option<Key>) -> Result<Written<Deletion>, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.delete(actor, id, key).await,
            Self::Postgres(engine) => engine.delete(actor, id, key).await,
        }
    }

    /// Keeps the refusal of a request that never came to a write, unless its key is known already. For a user who was
    /// deleted meanwhile nothing is kept.
    pub async fn refuse(&self, user: UserId, key: Key) -> Result<Written<()>, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.refuse(user, key).await,
            Self::Postgres(engine) => engine.refuse(user, key).await,
        }
    }

    /// Hands the first plants of the spans to `each`, with the place of their span, in ascending order of id and then of
    /// that place, all from one moment: until `rows` were handed over or `each` breaks (the plant it broke on counts as
    /// handed over), or, after some, earlier. Takes them out of the spans, which then hold what is left.
    pub async fn list(
        &self,
        spans: &mut [Span],
        rows: usize,
        each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()> + Send,
    ) -> Result<Listed, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.list(spans, rows, each).await,
            Self::Postgres(engine) => engine.list(spans, rows, each).await,
        }
    }

    /// The versions of these users at this moment; `None` for one who does not exist.
    pub async fn versions(&self, users: &[UserId]) -> Result<Vec<Option<Version>>, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.versions(users).await,
            Self::Postgres(engine) => engine.versions(users).await,
        }
    }

    /// The versions of these users, if telling them costs next to nothing. They are as true as those of
    /// [`Store::versions`]: whatever was acknowledged before the call, by whichever process, is in them.
    pub fn versions_at_hand(&self, users: &[UserId]) -> Option<Vec<Option<Version>>> {
        match self {
            Self::Sqlite(engine) => engine.versions_at_hand(users),
            Self::Postgres(_) => None,
        }
    }

    /// Whether [`Store::versions_at_hand`] ever tells anything, so that remembering lists by their version is worth it.
    pub fn sees_every_write(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// The plant that stands at place `count` (from 1) of the spans, and the place of its span, if others follow it;
    /// `None` when the spans hold no more than `count`.
    pub async fn boundary(&self, spans: &[Span], count: u32) -> Result<Option<(PlantId, usize)>, StoreError> {
        let [span] = *spans else {
            return self.boundary_of_many(spans, count).await;
        };
        let found = match self {
            Self::Sqlite(engine) => engine.boundary(span, count).await,
            Self::Postgres(engine) => engine.boundary(span, count).await,
        };
        Ok(found?.map(|id| (id, 0)))
    }

    /// Counts plant by plant: long pages of several owners are rare.
    async fn boundary_of_many(&self, spans: &[Span], count: u32) -> Result<Option<(PlantId, usize)>, StoreError> {
        let mut spans = spans.to_vec();
        let mut remaining = count as usize;
        let mut last = None;
        while remaining > 0 {
            let before = remaining;
            let count = |span, id, _: &str, _: Option<&str>| {
                (last, remaining) = (Some((id, span)), remaining - 1);
                if remaining == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            if !self.list(&mut spans, before, count).await?.more {
                return Ok(None);
            }
            tokio::task::yield_now().await;
        }
        Ok(last)
    }

    /// The token with this hash.
    pub async fn find_token(&self, hash: &TokenHash) -> Result<Option<StoredToken>, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.find_token(hash).await,
            Self::Postgres(engine) => engine.find_token(hash).await,
        }
    }

    /// Notes, some time soon, that the token was used on `day`. Costs the caller nothing and may be lost.
    pub fn note_use(&self, token: TokenId, day: Timestamp) {
        match self {
            Self::Sqlite(engine) => engine.note_use(token, day),
            Self::Postgres(engine) => engine.note_use(token, day),
        }
    }

    /// Makes a token, and its user if there is none of that name; [`StoreError::NewUserName`] when a new user cannot have it.
    pub async fn create_token(&self, user: &UserName, hash: &TokenHash, grant: &Grant) -> Result<TokenId, StoreError> {
        if let Err(fault) = user.check_new()
            && self.find_user(user).await?.is_none()
        {
            return Err(StoreError::NewUserName(fault));
        }
        match self {
            Self::Sqlite(engine) => engine.create_token(user, hash, grant).await,
            Self::Postgres(engine) => engine.create_token(user, hash, grant).await,
        }
    }

    /// The number of the user of this name, who is made if there is none: with no tokens and no plants, and once, however
    /// many nodes are asked at the same time. Asking again is harmless, whatever became of the first time.
    /// [`StoreError::NewUserName`] when there is none and a new user cannot have the name.
    pub async fn ensure_user(&self, name: &UserName) -> Result<UserId, StoreError> {
        if let Some(user) = self.find_user(name).await? {
            return Ok(user);
        }
        name.check_new().map_err(StoreError::NewUserName)?;
        match self {
            Self::Sqlite(engine) => engine.make_user(name).await,
            Self::Postgres(engine) => engine.make_user(name).await,
        }
    }

    async fn find_user(&self, name: &UserName) -> Result<Option<UserId>, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.find_user(name).await,
            Self::Postgres(engine) => engine.find_user(name).await,
        }
    }

    /// All tokens, or those of one user, in ascending order of id.
    pub async fn tokens(&self, user: Option<&UserName>) -> Result<Vec<StoredToken>, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.tokens(user).await,
            Self::Postgres(engine) => engine.tokens(user).await,
        }
    }

    /// Revokes a token for good; false when there is none of this id. One that is revoked already stays so.
    pub async fn revoke_token(&self, token: TokenId, now: Timestamp) -> Result<bool, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.revoke_token(token, now).await,
            Self::Postgres(engine) => engine.revoke_token(token, now).await,
        }
    }

    /// All users, or the one of this name, in the order of their names.
    pub async fn users(&self, name: Option<&UserName>) -> Result<Vec<StoredUser>, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.users(name).await,
            Self::Postgres(engine) => engine.users(name).await,
        }
    }

    /// Returns true as long as no user was ever made in the store; a database server forgets users who were deleted and swept.
    pub async fn is_unused(&self) -> Result<bool, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.is_unused().await,
            Self::Postgres(engine) => engine.is_unused().await,
        }
    }

    /// Deletes a user: in one step their name, their tokens and all access to their plants; false when there is none
    /// of this name. The plants themselves go with [`Store::sweep`].
    pub async fn delete_user(&self, name: &UserName) -> Result<bool, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.delete_user(name).await,
            Self::Postgres(engine) => engine.delete_user(name).await,
        }
    }

    /// Removes some plants and keys of deleted users and says how many; 0 when none are left. Never holds the store for
    /// long. To be called [`SWEEP_DELAY`] after the deletion: until then a server may still believe a token of theirs, and
    /// would list what is left as if it were all.
    pub async fn sweep(&self) -> Result<u64, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.sweep().await,
            Self::Postgres(engine) => engine.sweep().await,
        }
    }

    /// Removes some keys whose time is over and says how many; 0 when none are left. Never holds the store for long.
    pub async fn sweep_keys(&self) -> Result<u64, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.sweep_keys().await,
            Self::Postgres(engine) => engine.sweep_keys().await,
        }
    }

    /// The collections that others share with this user, in the order of the owners' names.
    pub async fn shared_with(&self, user: UserId) -> Result<Vec<Collection>, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.shared_with(user).await,
            Self::Postgres(engine) => engine.shared_with(user).await,
        }
    }

    /// Shares the plants of one user with another; if they are shared already, the role changes. The other's version
    /// moves, because their list does.
    pub async fn grant_share(
        &self,
        owner: &UserName,
        to: &UserName,
        role: Role,
        now: Timestamp,
    ) -> Result<Granting, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.grant_share(owner, to, role, now).await,
            Self::Postgres(engine) => engine.grant_share(owner, to, role, now).await,
        }
    }

    /// All shares, or those of one owner, or those with one user, in the order of the names.
    pub async fn shares(
        &self,
        owner: Option<&UserName>,
        to: Option<&UserName>,
    ) -> Result<Vec<StoredShare>, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.shares(owner, to).await,
            Self::Postgres(engine) => engine.shares(owner, to).await,
        }
    }

    /// Ends a share; false when there is none. The other's version moves, because their list does.
    pub async fn revoke_share(&self, owner: &UserName, to: &UserName) -> Result<bool, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.revoke_share(owner, to).await,
            Self::Postgres(engine) => engine.revoke_share(owner, to).await,
        }
    }

    /// Whether the store answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(engine) => engine.ping().await,
            Self::Postgres(engine) => engine.ping().await,
        }
    }

    /// Writes what the store counts, without waiting for it.
    pub fn write_metrics(&self, page: &mut Page) {
        let engine = match self {
            Self::Sqlite(_) => "sqlite",
            Self::Postgres(_) => "postgres",
        };
        page.info("plantstore_store_info", "What the plants are kept in.", &[("engine", engine.into())]);
        match self {
            Self::Sqlite(engine) => engine.write_metrics(page),
            Self::Postgres(engine) => engine.write_metrics(page),
        }
    }

    /// Finishes the writes that were accepted; later ones are [`StoreError::Unavailable`]. A file is closed, connections to a
    /// database server end with the process.
    pub async fn close(&self) {
        match self {
            Self::Sqlite(engine) => engine.close().await,
            Self::Postgres(engine) => engine.close().await,
        }
    }
}

/// The version after this one. Versions follow the clock where it goes forward, so that none is ever used a second time,
/// not even after a store was put back to an earlier state.
fn later(version: i64) -> i64 {
    version.saturating_add(1).max(Timestamp::now().as_microsecond())
}

/// A time beyond what can be told, in either direction, is the furthest that can.
fn timestamp(seconds: i64) -> Timestamp {
    let furthest = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_second(seconds).unwrap_or(furthest)
}
