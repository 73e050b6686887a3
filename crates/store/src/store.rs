//! The store. The documentation of its methods is the contract that both engines implement.
//!
//! A method that changes data returns only after the change is durable. Every error except
//! [`StoreError::OutcomeUnknown`] means that nothing was changed.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};

use crate::error::{OpenError, StoreError};
use crate::options::{OpenOptions, Opened};
use crate::plants::{
    ClaimedKey, IdempotencyKey, InFlightKeys, Job, ListStep, PlantRange, PlantWrite, Version, WriteContext,
    WriteOutcome, WriteQueue,
};
use crate::postgres::{self, PlacedTable, Postgres};
use crate::sqlite::Sqlite;
use crate::url::StoreUrl;
use crate::watch::{Watch, Watches};
use plantstore_model::plant::PlantId;
use plantstore_model::user::UserId;
use plantstore_telemetry::metrics::{Counter, Exposition};

/// Number of plants that a step of a list with a tag reads.
const FILTER_STEP: usize = 2_048;
/// Number of plants that [`Store::page_end`] counts before it yields to other tasks.
const PAGE_END_STEP: u32 = 4_096;
/// Number of users after which a poll of SQLite yields to other tasks.
const POLL_STEP: usize = 256;
/// Time limit of a poll of PostgreSQL, so that a server that does not respond delays the polls of others little.
const POLL_TIMEOUT: Duration = Duration::from_millis(500);

/// Evaluates an expression on the value that an enum with a variant for each engine holds.
macro_rules! dispatch {
    ($kind:ident: $value:expr, $inner:ident => $call:expr) => {
        match $value {
            $kind::Sqlite($inner) => $call,
            $kind::Postgres($inner) => $call,
        }
    };
}
pub(crate) use dispatch;

pub struct Store {
    pub(crate) database: Database,
    in_flight_keys: InFlightKeys,
    pub(crate) watches: Arc<Watches>,
    pub(crate) sweep_metrics: SweepMetrics,
}

#[expect(clippy::large_enum_variant, reason = "a process has one store")]
pub(crate) enum Database {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl Store {
    /// Opens a store, and migrates its schema if the options say so.
    pub fn open(url: &StoreUrl, options: OpenOptions) -> BoxFuture<'_, Result<Opened<Self>, OpenError>> {
        async move {
            let (database, is_new) = match url {
                StoreUrl::Sqlite(path) => {
                    let Opened { store, is_new } = Sqlite::open(path, &options)?;
                    (Database::Sqlite(store), is_new)
                }
                StoreUrl::Postgres(url) => {
                    let Opened { store, is_new } = Postgres::open(url, options).await?;
                    (Database::Postgres(store), is_new)
                }
            };
            let store = Self {
                database,
                in_flight_keys: InFlightKeys::default(),
                watches: Arc::default(),
                sweep_metrics: SweepMetrics::default(),
            };
            Ok(Opened { store, is_new })
        }
        .boxed()
    }

    /// Distributes the tables of a PostgreSQL database over the workers of the extension Citus, and returns where each table is.
    /// Can be repeated; tables that are distributed keep their shards.
    pub async fn distribute(
        url: &StoreUrl,
        shards_per_worker: u32,
        timeout: Duration,
    ) -> Result<Vec<PlacedTable>, OpenError> {
        match url {
            StoreUrl::Sqlite(_) => {
                let reason = "only PostgreSQL with the extension Citus can distribute its tables";
                Err(OpenError::Unfit(url.clone(), reason.to_owned()))
            }
            StoreUrl::Postgres(url) => postgres::distribute(url, shards_per_worker, timeout).await,
        }
    }

    /// Creates, replaces or deletes a plant of the owner. The primary key of the table alone detects a duplicate id: of two
    /// concurrent creates with the same id, exactly one succeeds. Requests that share a commit succeed or fail independently,
    /// unless the store is unavailable or a lock that one of them needs is not released within the timeout.
    ///
    /// With an idempotency key, the same commit stores the outcome under the key, for 24 hours. A second request with the key
    /// changes nothing while the first is in flight on any node, and while its outcome is stored.
    pub async fn write(
        &self,
        context: WriteContext,
        write: PlantWrite,
        key: Option<IdempotencyKey>,
    ) -> Result<WriteOutcome, StoreError> {
        let key = match key {
            Some(key) => Some(self.claim(context.user, key).await?),
            None => None,
        };
        let job = |reply| Job::Write { context, write, key, reply };
        let written = self.queue_of(context).write(context.user, job).await;
        if let Ok(WriteOutcome::Done) = written {
            self.watches.changed(context.owner);
        }
        written
    }

    /// Returns true if the write queue has a place for a write of this user.
    pub fn has_write_capacity(&self, user: UserId) -> bool {
        self.queue_of(WriteContext { user, owner: user }).has_capacity(user)
    }

    /// Stores the rejection of a request that failed validation under its idempotency key, unless an outcome is stored already.
    /// Stores nothing if the user was deleted meanwhile.
    pub async fn record_rejection(&self, user: UserId, key: IdempotencyKey) -> Result<WriteOutcome, StoreError> {
        let key = self.claim(user, key).await?;
        let queue = self.queue_of(WriteContext { user, owner: user });
        queue.write(user, |reply| Job::StoreRejection { user, key, reply }).await
    }

    /// Passes the first plants of the ranges to `each`, with the index of their range, in ascending order of id and then of
    /// index; with a `tag`, only plants that have it. All of them are from one consistent snapshot, except that Citus has one for
    /// each owner. Ends after `rows` plants, when `each` breaks (that plant counts), or earlier if at least one plant was read.
    /// Shrinks the ranges to the plants that are not read.
    pub async fn list(
        &self,
        ranges: &mut [PlantRange],
        tag: Option<&str>,
        rows: usize,
        mut each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()> + Send,
    ) -> Result<ListStep, StoreError> {
        // A filter reads a bounded number of plants, however few of them have the tag.
        let read = if tag.is_some() && rows > 0 { FILTER_STEP } else { rows };
        let mut passed = 0;
        let filtered = |index, id, name: &str, of_plant: Option<&str>| {
            if tag.is_some() && tag != of_plant {
                return ControlFlow::Continue(());
            }
            passed += 1;
            each(index, id, name, of_plant)?;
            if passed < rows { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        dispatch!(Database: &self.database, engine => engine.list(ranges, read, filtered).await)
    }

    /// Returns the current versions of these users; `None` for a user who does not exist.
    pub async fn versions(&self, users: &[UserId]) -> Result<Vec<Option<Version>>, StoreError> {
        dispatch!(Database: &self.database, engine => engine.versions(users).await)
    }

    /// Returns the versions of these users if they are known without a query. They are as current as those of
    /// [`Store::versions`]: they include every write that any process acknowledged before the call.
    pub fn cached_versions(&self, users: impl Iterator<Item = UserId>) -> Option<Vec<Option<Version>>> {
        match &self.database {
            Database::Sqlite(engine) => engine.cached_versions(users),
            Database::Postgres(_) => None,
        }
    }

    /// Returns the current versions of these users, without a query if they are known; `None` for a user who does not exist.
    pub async fn current_versions(&self, users: &[UserId]) -> Result<Vec<Option<Version>>, StoreError> {
        match self.cached_versions(users.iter().copied()) {
            Some(versions) => Ok(versions),
            None => self.versions(users).await,
        }
    }

    /// Returns a watch of users, which watches none yet.
    pub fn watch(&self) -> Watch {
        self.watches.watch()
    }

    /// Polls the versions of watched users, and never returns. Must run once in a process that watches users.
    pub async fn poll_watched(&self) {
        loop {
            let users = self.watches.next_poll().await;
            match &self.database {
                Database::Sqlite(_) => {
                    for users in users.chunks(POLL_STEP) {
                        // After an error, the next poll reads them.
                        if let Ok(versions) = self.current_versions(users).await {
                            self.watches.polled(users.iter().copied().zip(versions));
                        }
                        tokio::task::yield_now().await;
                    }
                }
                Database::Postgres(engine) => {
                    self.watches.polled(engine.versions_of_lanes(&users, POLL_TIMEOUT).await);
                }
            }
        }
    }

    /// Returns the id of the last plant of a page of `count` plants, and the index of its range; `None` if no plant follows the
    /// page. With a `tag`, only plants that have it count.
    pub async fn page_end(
        &self,
        ranges: &[PlantRange],
        tag: Option<&str>,
        count: u32,
    ) -> Result<Option<(PlantId, usize)>, StoreError> {
        if let (&[range], None) = (ranges, tag) {
            let end = self.page_end_of_one(range, count).await?;
            return Ok(end.map(|id| (id, 0)));
        }
        // The plants are counted one by one, because long pages of several owners or with a tag are rare.
        let mut ranges = ranges.to_vec();
        let mut remaining = count as usize;
        let mut last = None;
        while remaining > 0 {
            let before = remaining;
            let count = |range, id, _: &str, _: Option<&str>| {
                last = Some((id, range));
                remaining -= 1;
                ControlFlow::Continue(())
            };
            if !self.list(&mut ranges, tag, before, count).await?.more {
                return Ok(None);
            }
            tokio::task::yield_now().await;
        }
        let follows = match tag {
            Some(tag) => self.has_tagged(ranges, tag).await?,
            None => true,
        };
        Ok(last.filter(|_| follows))
    }

    async fn page_end_of_one(&self, mut range: PlantRange, count: u32) -> Result<Option<PlantId>, StoreError> {
        let mut remaining = count;
        while remaining > 0 {
            let step = remaining.min(PAGE_END_STEP);
            let Some(last) = dispatch!(Database: &self.database, engine => engine.page_end(range, step).await)? else {
                return Ok(None);
            };
            remaining -= step;
            if remaining == 0 {
                return Ok(Some(last));
            }
            range = range.past(last);
            tokio::task::yield_now().await;
        }
        Ok(None)
    }

    /// Returns true if a plant in the ranges has the tag.
    pub async fn has_tagged(&self, mut ranges: Vec<PlantRange>, tag: &str) -> Result<bool, StoreError> {
        let mut found = false;
        let mut more = true;
        while more && !found {
            let find = |_, _, _: &str, _: Option<&str>| {
                found = true;
                ControlFlow::Break(())
            };
            more = self.list(&mut ranges, Some(tag), 1, find).await?.more;
            tokio::task::yield_now().await;
        }
        Ok(found)
    }

    /// Checks that the store responds.
    pub async fn ping(&self) -> Result<(), StoreError> {
        dispatch!(Database: &self.database, engine => engine.ping().await)
    }

    /// Returns the servers whose users cannot be served, while others can.
    pub fn lost_servers(&self) -> Vec<String> {
        match &self.database {
            Database::Sqlite(_) => Vec::new(),
            Database::Postgres(engine) => engine.lost_servers(),
        }
    }

    /// Writes the metrics, without waiting for the store.
    pub fn write_metrics(&self, exposition: &mut Exposition) {
        let engine = match &self.database {
            Database::Sqlite(_) => "sqlite",
            Database::Postgres(_) => "postgres",
        };
        exposition.info(
            "plantstore_store_info",
            "Storage engine; the value is always 1.",
            &[("engine", engine.into())],
        );
        dispatch!(Database: &self.database, engine => engine.write_metrics(exposition));
        self.sweep_metrics.write(exposition);
    }

    /// Finishes the accepted writes; later ones are [`StoreError::Unavailable`]. SQLite's file is closed; connections to
    /// PostgreSQL end with the process.
    pub async fn close(&self) {
        dispatch!(Database: &self.database, engine => engine.close().await);
    }

    /// Returns the queue for users and tokens.
    pub(crate) fn queue(&self) -> &WriteQueue {
        dispatch!(Database: &self.database, engine => engine.queue())
    }

    /// Returns the queue for writes to the plants of these users.
    fn queue_of(&self, context: WriteContext) -> Cow<'_, WriteQueue> {
        match &self.database {
            Database::Sqlite(engine) => Cow::Borrowed(engine.queue()),
            Database::Postgres(engine) => Cow::Owned(engine.queue_of(context)),
        }
    }

    /// Claims an idempotency key for a request, in this process and then among all nodes.
    async fn claim(&self, user: UserId, key: IdempotencyKey) -> Result<Box<ClaimedKey>, StoreError> {
        let claimed = self.in_flight_keys.claim(user, key)?;
        if let Database::Postgres(engine) = &self.database {
            engine.lock_key(user, &claimed).await?;
        }
        Ok(claimed)
    }
}

#[derive(Default)]
pub(crate) struct SweepMetrics {
    pub(crate) deleted_users: Counter,
    pub(crate) expired_keys: Counter,
}

impl SweepMetrics {
    pub(crate) fn write(&self, exposition: &mut Exposition) {
        exposition
            .counter("plantstore_swept_rows_total", "Rows removed in the background, by reason.")
            .sample(&[("reason", "deleted_user".into())], self.deleted_users.get())
            .sample(&[("reason", "expired_key".into())], self.expired_keys.get());
    }
}
