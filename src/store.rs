//! The store: where users, tokens and plants are kept. The set of engines is closed, so the store is an enum, and the
//! comments on its methods are the contract that every engine keeps.
//!
//! Every method that changes something answers only after the change is durable. An error that is not
//! [`StoreError::OutcomeUnknown`] means that nothing was changed.

mod batch;
mod keys;
mod postgres;
mod sqlite;

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;

use crate::plant::{NewPlant, PlantId};
use crate::token::{Grant, TokenHash, TokenId};
use crate::user::{UserId, UserName};

pub use self::keys::{Kept, Key, Known, Refusal, Written};
pub use self::postgres::{PasswordFileFault, PostgresUrl, PostgresUrlFault};

/// How long after the deletion of a user their plants stay, which is longer than a server believes a token.
pub const SWEEP_DELAY: Duration = Duration::from_secs(3);

/// Characters of an unknown scheme that are repeated to the operator.
const SCHEME_SHOWN_CHARS: usize = 20;

/// Where a store is, as operators write it: `sqlite:PATH` or `postgres://…`. Shown without a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// An embedded store in one file.
    Sqlite(PathBuf),
    /// A database of PostgreSQL.
    Postgres(Box<PostgresUrl>),
}

impl FromStr for StoreUrl {
    type Err = StoreUrlFault;

    fn from_str(text: &str) -> Result<Self, StoreUrlFault> {
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(StoreUrlFault::NoScheme);
        };
        if scheme == "postgres" || scheme == "postgresql" {
            return Ok(Self::Postgres(Box::new(text.parse()?)));
        }
        if scheme != "sqlite" {
            // Only the scheme is repeated: the rest of somebody's URL may hold a password.
            return Err(StoreUrlFault::UnknownScheme(scheme.chars().take(SCHEME_SHOWN_CHARS).collect()));
        }
        match rest.strip_prefix("//").unwrap_or(rest) {
            "" => Err(StoreUrlFault::NoPath),
            ":memory:" => Err(StoreUrlFault::Memory),
            path => Ok(Self::Sqlite(path.into())),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(formatter, "sqlite:{}", path.display()),
            Self::Postgres(url) => url.fmt(formatter),
        }
    }
}

/// Why a text is no [`StoreUrl`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlFault {
    /// No scheme at all.
    #[error("a store is written as sqlite:PATH or postgres://user@host/database, for example sqlite:plantstore.db")]
    NoScheme,
    /// A scheme no engine answers to.
    #[error("unknown store scheme `{0}`: use sqlite:PATH or postgres://user@host/database")]
    UnknownScheme(String),
    /// `sqlite:` alone.
    #[error("the path is missing: use sqlite:PATH, for example sqlite:plantstore.db")]
    NoPath,
    /// `sqlite::memory:`.
    #[error("a store in memory would forget everything: use sqlite:PATH, for example sqlite:plantstore.db")]
    Memory,
    /// Something about a database's URL.
    #[error(transparent)]
    Postgres(#[from] PostgresUrlFault),
}

/// How to open a store.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Make the store when there is none; otherwise that is [`OpenError::Missing`].
    pub create: bool,
    /// Bring the schema of a database server up to date, or make it; a file is always brought up to date.
    pub migrate: bool,
    /// Writes that may wait for the writer; one more is [`StoreError::Overloaded`].
    pub write_queue: usize,
    /// Threads that read at the same time.
    pub readers: usize,
    /// How long a change of an operator waits for others that write.
    pub patience: Duration,
    /// How long a request waits for a database server.
    pub timeout: Duration,
}

/// Why a store does not open. The messages say what to do and are meant for the operator.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no store, and none was to be made.
    #[error("there is no store at {0}: start `plantstore serve` with it once, or name another with --store")]
    Missing(StoreUrl),
    /// The file cannot be made, read or written.
    #[error("cannot open {0}: {1}; name a file in a directory that exists and that this user can write to")]
    Unusable(StoreUrl, String),
    /// The file is something else.
    #[error("{0} is not a plantstore file ({1}): name another file with --store")]
    Foreign(StoreUrl, &'static str),
    /// The file was written by a newer release.
    #[error("{0} was written by a newer plantstore (schema {1}, this one knows {2}): use that release or a later one")]
    Newer(StoreUrl, i64, i64),
    /// The schema is older than this release, and it was not to be changed.
    #[error("the schema of {0} is at version {1}, this release needs {2}: run `plantstore migrate` first")]
    Outdated(StoreUrl, i64, i64),
    /// The database cannot be reached, or does not let us in.
    #[error("cannot connect to {0}: {1}")]
    Unreachable(StoreUrl, String),
    /// The database cannot be used as it is.
    #[error("cannot use {0}: {1}")]
    Unfit(StoreUrl, String),
}

/// Why an operation failed, in the terms that matter to the caller. The texts are for the log, never for a client.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The queue of writes is full. Nothing was done.
    #[error("the write queue is full")]
    Overloaded,
    /// There is no room on the disk. Nothing was done; it works again once there is room.
    #[error("storage is full: {0}")]
    Full(String),
    /// The store cannot be used at the moment. Nothing was done.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// A request with the same key is at work. Nothing was done.
    #[error("a request with the same key is in flight")]
    InFlight,
    /// The change may or may not have happened.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(&'static str),
    /// The store answered what it never should.
    #[error("store failed: {0}")]
    Internal(String),
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

/// A token as the store knows it, revoked and expired ones included.
#[derive(Clone, Debug)]
pub struct StoredToken {
    /// The number operators name it by.
    pub id: TokenId,
    /// Whom it acts for.
    pub user: UserName,
    /// The store's number of that user.
    pub user_id: UserId,
    /// Label, scopes and times.
    pub grant: Grant,
    /// When it was revoked, if it was.
    pub revoked: Option<Timestamp>,
    /// The day it was last used, if it was.
    pub last_used: Option<Timestamp>,
}

/// A user and what they have.
#[derive(Clone, Debug)]
pub struct StoredUser {
    /// Their name.
    pub name: UserName,
    /// When they were first given a token.
    pub created: Timestamp,
    /// Tokens that are not revoked.
    pub tokens: u64,
    /// Plants.
    pub plants: u64,
}

/// A user's version: moves with every change of what their list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(i64);

/// A stretch of one user's plants in the order of their ids.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    user: UserId,
    from: i64,
    through: i64,
    as_of: i64,
}

impl Span {
    /// All plants of the user whose id is greater than `after`.
    pub fn after(user: UserId, after: Option<PlantId>) -> Self {
        let whole = Self { user, from: i64::MIN, through: i64::MAX, as_of: i64::MAX };
        after.map_or(whole, |after| whole.past(after))
    }

    /// The same span without the plants up to `id`.
    #[must_use]
    pub fn past(self, id: PlantId) -> Self {
        match id.get().checked_add(1) {
            Some(from) => Self { from, ..self },
            // Nothing lies past the largest id: a span that is empty.
            None => Self { from: i64::MAX, through: i64::MIN, ..self },
        }
    }

    /// The same span without the plants after `id`.
    #[must_use]
    pub fn through(self, id: PlantId) -> Self {
        Self { through: id.get(), ..self }
    }

    /// The same span without the plants created after `version`.
    #[must_use]
    pub fn as_of(self, version: Version) -> Self {
        Self { as_of: version.0, ..self }
    }
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

    /// Hands the first plants of the span to `each` in ascending order of id, all from one moment: until `rows` were
    /// handed over or `each` breaks (the plant it broke on counts as handed over), or, after some, earlier. True when the
    /// span holds more.
    pub async fn list(
        &self,
        span: Span,
        rows: usize,
        each: impl FnMut(PlantId, &str, Option<&str>) -> ControlFlow<()> + Send,
    ) -> Result<bool, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.list(span, rows, each).await,
            Self::Postgres(engine) => engine.list(span, rows, each).await,
        }
    }

    /// The user's version at this moment; `None` when there is no such user.
    pub async fn version(&self, user: UserId) -> Result<Option<Version>, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.version(user).await,
            Self::Postgres(engine) => engine.version(user).await,
        }
    }

    /// The plant that stands at place `count` (from 1) of the span, if others follow it; `None` when the span holds no
    /// more than `count`.
    pub async fn boundary(&self, span: Span, count: u32) -> Result<Option<PlantId>, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.boundary(span, count).await,
            Self::Postgres(engine) => engine.boundary(span, count).await,
        }
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

    /// Makes a token, and its user if there is none of that name.
    pub async fn create_token(&self, user: &UserName, hash: &TokenHash, grant: &Grant) -> Result<TokenId, StoreError> {
        match self {
            Self::Sqlite(engine) => engine.create_token(user, hash, grant).await,
            Self::Postgres(engine) => engine.create_token(user, hash, grant).await,
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

    /// Whether the store answers.
    pub async fn ping(&self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(engine) => engine.ping().await,
            Self::Postgres(engine) => engine.ping().await,
        }
    }

    /// Finishes the writes that were accepted; later ones are [`StoreError::Unavailable`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_urls() {
        let path = |text: &str| match text.parse()? {
            StoreUrl::Sqlite(path) => Ok(path),
            StoreUrl::Postgres(url) => panic!("{url}"),
        };
        assert_eq!(path("sqlite:plantstore.db"), Ok("plantstore.db".into()));
        assert_eq!(path("sqlite:/var/lib/p.db"), Ok("/var/lib/p.db".into()));
        assert_eq!(path("sqlite:///var/lib/p.db"), Ok("/var/lib/p.db".into()));
        assert_eq!(path("plantstore.db"), Err(StoreUrlFault::NoScheme));
        assert_eq!(path("mysql://u:secret@h/d"), Err(StoreUrlFault::UnknownScheme("mysql".into())));
        assert_eq!(path("sqlite:"), Err(StoreUrlFault::NoPath));
        assert_eq!(path("sqlite::memory:"), Err(StoreUrlFault::Memory));
    }
}
