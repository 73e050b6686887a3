//! Writer thread: drains the write queue into one transaction, and replies after the commit is on disk.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use tokio::runtime::Handle;
use tokio::sync::{MutexGuard, mpsc, oneshot};

use super::connection::{DISK_ADVICE, change_error, connect_writer, exit_process, start_thread};
use super::file::{Checkpointer, DatabaseFile, WalMetrics};
use crate::options::OpenOptions;
use crate::plants::{
    BATCH_MAX, BatchResult, IdempotencyKey, Job, JobOutcome, KEY_LIFETIME_SECONDS, KeyOutcome, PlantWrite, Timeouts,
    WriteContext, WriteMetrics, WriteOutcome, WriteQueue, execute_batch, reply_all,
};
use plantstore_model::plant::{NewPlant, Tag};
use plantstore_model::user::{UserId, UserName};

/// Timeout of a commit that has begun, in case the disk hangs.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of owners whose versions the writer remembers.
const VERSIONS_MAX: usize = 100_000;
/// Time that a caller waits longer than the writer waits for the write lock, so that the writer reports the error.
const REPLY_MARGIN: Duration = Duration::from_millis(300);

const CREATE: &str = "INSERT OR IGNORE INTO plants (user_id, plant_id, name, tag, version) VALUES (?1, ?2, ?3, ?4, ?5)";
const SET_VERSION: &str = "UPDATE users SET version = ?2 WHERE user_id = ?1";
// These statements find the owner themselves, and change nothing without one.
const REPLACE: &str = "
    UPDATE plants SET name = ?3, tag = ?4
    WHERE user_id = (SELECT user_id FROM users WHERE user_id = ?1) AND plant_id = ?2";
const DELETE: &str = "
    DELETE FROM plants WHERE user_id = (SELECT user_id FROM users WHERE user_id = ?1) AND plant_id = ?2";

/// Fair lock: waiting tasks get it in their order.
type CommitLock = tokio::sync::Mutex<()>;

/// Handle of the writer thread.
pub(super) struct Writer {
    pub(super) queue: WriteQueue,
    /// Held during each commit. Changes outside the queue get it between two commits.
    commit_lock: Arc<CommitLock>,
    /// Held by the one change that has, or waits for, the commit lock: the writer never waits for more than one.
    change_lock: CommitLock,
    pub(super) metrics: Arc<WriteMetrics>,
    /// Resolves when the thread has ended.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Writer {
    pub(super) fn start(
        path: &Path,
        file: &Arc<DatabaseFile>,
        options: &OpenOptions,
        wal_metrics: &Arc<WalMetrics>,
    ) -> rusqlite::Result<Self> {
        let connection = connect_writer(path)?;
        connection.busy_timeout(options.timeout)?;
        let checkpointer = Checkpointer::start(path, file, &connection, wal_metrics)?;
        let timeouts = Timeouts { begin: options.timeout + REPLY_MARGIN, outcome: COMMIT_TIMEOUT };
        let (queue, jobs) = WriteQueue::new(options.write_queue, timeouts);
        let (end, ended) = oneshot::channel();
        let commit_lock = Arc::<CommitLock>::default();
        let metrics = Arc::<WriteMetrics>::default();
        let thread = WriterThread {
            connection,
            file: Arc::clone(file),
            commit_lock: Arc::clone(&commit_lock),
            checkpointer,
            metrics: Arc::clone(&metrics),
            runtime: Handle::current(),
        };
        start_thread("writer", move || {
            thread.run(jobs);
            let _ = end.send(());
        });
        Ok(Self { queue, commit_lock, change_lock: CommitLock::default(), metrics, ended: Mutex::new(Some(ended)) })
    }

    /// Locks the store for a change outside the queue, in turn with other changes and with the writer.
    pub(super) async fn lock_for_change(&self) -> [MutexGuard<'_, ()>; 2] {
        let turn = self.change_lock.lock().await;
        [self.commit_lock.lock().await, turn]
    }

    /// Closes the queue and waits until all queued jobs are executed. Their replies are sent by tasks of the runtime.
    pub(super) async fn finish(&self) {
        self.queue.stop().await;
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = ended {
            let _ = ended.await;
        }
    }
}

struct WriterThread {
    connection: Connection,
    file: Arc<DatabaseFile>,
    commit_lock: Arc<CommitLock>,
    checkpointer: Checkpointer,
    metrics: Arc<WriteMetrics>,
    runtime: Handle,
}

impl WriterThread {
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut changes = None;
        let mut batch = Vec::new();
        // All jobs that were queued during the last commit share this one. No job waits for a timer.
        while jobs.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
            if batch.iter().any(|job| matches!(job, Job::Stop)) {
                jobs.close();
            }
            let result = execute_batch(&mut batch, |jobs| {
                let _locked = self.commit_lock.try_lock().unwrap_or_else(|_| self.commit_lock.blocking_lock());
                let begun = Instant::now();
                let result = commit(&self.connection, &mut changes, &self.file, jobs);
                self.metrics.committed(jobs.len(), begun.elapsed(), &result);
                result
            });
            // In a task, which wakes the callers on a thread of the runtime: from here, each reply would wake a thread.
            let mut jobs = std::mem::take(&mut batch);
            self.runtime.spawn(async move { reply_all(&mut jobs, result) });
            self.checkpointer.after_commit(&self.connection);
        }
    }
}

/// Executes all jobs in one transaction, or none.
fn commit<'c>(
    connection: &'c Connection,
    changes: &mut Option<Changes<'c>>,
    file: &DatabaseFile,
    batch: &mut Vec<Job>,
) -> BatchResult {
    let result = execute(connection, changes, file, batch);
    if result.is_err() {
        *changes = None;
    }
    if !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK");
    }
    let outcomes = result.map_err(|error| {
        let error = change_error(error);
        if !connection.is_autocommit() {
            exit_process("a failed transaction could not be rolled back", &error.to_string(), DISK_ADVICE);
        }
        tracing::warn!(%error, writes = batch.len(), "transaction rolled back");
        error
    })??;
    file.verify_or_exit(connection)?;
    Ok(outcomes)
}

/// Executes and commits all jobs. They begin when the write lock is held, so that a job that was abandoned before has no effect.
/// An error may leave the transaction open. The statements are prepared for the first batch.
fn execute<'c>(
    connection: &'c Connection,
    changes: &mut Option<Changes<'c>>,
    file: &DatabaseFile,
    batch: &mut Vec<Job>,
) -> rusqlite::Result<BatchResult> {
    let changes = match changes {
        Some(changes) => changes,
        None => changes.insert(Changes::prepare(connection)?),
    };
    changes.begin.execute([])?;
    if let Err(error) = file.check_not_lost() {
        return Ok(Err(error));
    }
    batch.retain(Job::begin);
    changes.start()?;
    let mut outcomes = Vec::with_capacity(batch.len());
    let now = Timestamp::now().as_second();
    for job in batch.iter() {
        let known = match job.key() {
            // For a deleted user the outcome is `NoUser`, whatever is stored.
            Some((user, key)) if changes.has_user(user)? => lookup(connection, user, key, now)?,
            _ => None,
        };
        let outcome = match known {
            Some(known) => JobOutcome::Write(known),
            None => changes.perform(job)?,
        };
        if let Some(key_outcome) = job.key_outcome(&outcome) {
            store_key_outcome(connection, &key_outcome, now)?;
        }
        outcomes.push(outcome);
    }
    changes.finish()?;
    changes.commit.execute([])?;
    Ok(Ok(outcomes))
}

/// Returns the result stored under a key. An expired one is removed.
fn lookup(
    connection: &Connection,
    user: UserId,
    key: &IdempotencyKey,
    now: i64,
) -> rusqlite::Result<Option<WriteOutcome>> {
    let found = connection
        .prepare_cached(
            "SELECT expires_at, fingerprint, outcome, message FROM idempotency_keys WHERE user_id = ?1 AND key = ?2",
        )?
        .query_row(params![user.get(), key.hash], |row| {
            let known = WriteOutcome::of_stored(key, row.get_ref(1)?.as_blob()?, row.get(2)?, row.get(3)?);
            Ok((row.get::<_, i64>(0)?, known))
        })
        .optional()?;
    match found {
        Some((expires_at, _)) if expires_at <= now => {
            connection
                .prepare_cached("DELETE FROM idempotency_keys WHERE user_id = ?1 AND key = ?2")?
                .execute(params![user.get(), key.hash])?;
            Ok(None)
        }
        found => Ok(found.map(|(_, known)| known)),
    }
}

fn store_key_outcome(connection: &Connection, key_outcome: &KeyOutcome<'_>, now: i64) -> rusqlite::Result<()> {
    let KeyOutcome { user, key, outcome, message } = key_outcome;
    connection
        .prepare_cached(
            "INSERT INTO idempotency_keys (user_id, key, fingerprint, outcome, message, expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![user.get(), key.hash, key.fingerprint, outcome, message, now + KEY_LIFETIME_SECONDS])?;
    Ok(())
}

/// Returns the user of this name, who is created if there is none.
pub(crate) fn create_user(connection: &Connection, name: &UserName, now: Timestamp) -> rusqlite::Result<UserId> {
    connection
        .prepare_cached("INSERT INTO users (name, created_at) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING")?
        .execute(params![name.as_str(), now.as_second()])?;
    connection
        .prepare_cached("SELECT user_id FROM users WHERE name = ?1")?
        .query_row([name.as_str()], |row| row.get(0).map(UserId::new))
}

/// The changes of a transaction. Each owner whose list changes gets one new version: the current time in microseconds, so that
/// none is reused after a store was restored to an earlier state, or the version plus one if the clock is behind.
pub(crate) struct Changes<'c> {
    connection: &'c Connection,
    begin: CachedStatement<'c>,
    commit: CachedStatement<'c>,
    insert: CachedStatement<'c>,
    set_version: CachedStatement<'c>,
    now: i64,
    changed_owners: Vec<UserId>,
    /// Versions of owners. They are valid while no other connection has committed a change.
    versions: HashMap<UserId, i64>,
    /// SQLite's number of the last commit of another connection.
    other_commit: i64,
}

impl<'c> Changes<'c> {
    pub(crate) fn prepare(connection: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            begin: connection.prepare_cached("BEGIN IMMEDIATE")?,
            commit: connection.prepare_cached("COMMIT")?,
            insert: connection.prepare_cached(CREATE)?,
            set_version: connection.prepare_cached(SET_VERSION)?,
            now: Timestamp::now().as_microsecond(),
            changed_owners: Vec::new(),
            versions: HashMap::new(),
            other_commit: 0,
        })
    }

    /// Starts the changes of another transaction, which has begun.
    fn start(&mut self) -> rusqlite::Result<()> {
        self.now = Timestamp::now().as_microsecond();
        self.changed_owners.clear();
        let other_commit = self.connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if other_commit != self.other_commit || self.versions.len() > VERSIONS_MAX {
            self.versions.clear();
            self.other_commit = other_commit;
        }
        Ok(())
    }

    fn perform(&mut self, job: &Job) -> rusqlite::Result<JobOutcome> {
        Ok(match job {
            Job::Write { context, write, .. } => match write {
                PlantWrite::Create(plant) => self.create(*context, plant)?,
                // The version stays that of the creation, by which lists that are being read find the plant.
                PlantWrite::Replace(NewPlant { id, name, tag }) => self.change(*context, |changes| {
                    let tag = tag.as_ref().map(Tag::as_str);
                    let values = params![context.owner.get(), id.get(), name.as_str(), tag];
                    changes.connection.prepare_cached(REPLACE)?.execute(values)
                })?,
                PlantWrite::Delete(id) => self.change(*context, |changes| {
                    changes.connection.prepare_cached(DELETE)?.execute([context.owner.get(), id.get()])
                })?,
            },
            Job::StoreRejection { user, .. } => JobOutcome::of_rejection(self.has_user(*user)?),
            Job::CreateUser { name, now, .. } => JobOutcome::User(create_user(self.connection, name, *now)?),
            Job::RecordTokenUse { token, day } => {
                self.connection
                    .prepare_cached(
                        "UPDATE tokens SET last_used_at = ?2
                         WHERE token_id = ?1 AND (last_used_at IS NULL OR last_used_at < ?2)",
                    )?
                    .execute([token.get(), day.as_second()])?;
                JobOutcome::Nothing
            }
            Job::Stop => JobOutcome::Nothing,
        })
    }

    pub(crate) fn create(&mut self, context: WriteContext, plant: &NewPlant) -> rusqlite::Result<JobOutcome> {
        self.change(context, |changes| {
            let stored = stored_version(&mut changes.versions, changes.connection, context.owner)?;
            let Some(version) = stored.map(|version| changes.now.max(*version + 1)) else { return Ok(0) };
            let tag = plant.tag.as_ref().map(Tag::as_str);
            changes.insert.execute((context.owner.get(), plant.id.get(), plant.name.as_str(), tag, version))
        })
    }

    /// Changes a plant of the owner with `execute`, which returns the number of changed rows: none if there is no such owner.
    fn change(
        &mut self,
        context: WriteContext,
        execute: impl FnOnce(&mut Self) -> rusqlite::Result<usize>,
    ) -> rusqlite::Result<JobOutcome> {
        if context.user != context.owner && !self.has_user(context.user)? {
            return Ok(JobOutcome::Write(WriteOutcome::NoUser));
        }
        let outcome = match execute(self)? {
            0 if self.has_user(context.owner)? => WriteOutcome::Rejected,
            0 if context.user == context.owner => WriteOutcome::NoUser,
            0 => WriteOutcome::NoOwner,
            _ => WriteOutcome::Done,
        };
        if outcome == WriteOutcome::Done {
            self.changed_owners.push(context.owner);
        }
        Ok(JobOutcome::Write(outcome))
    }

    fn has_user(&self, user: UserId) -> rusqlite::Result<bool> {
        self.connection.prepare_cached("SELECT 1 FROM users WHERE user_id = ?1")?.exists([user.get()])
    }

    /// Stores the new versions, which are those that the created plants have.
    pub(crate) fn finish(&mut self) -> rusqlite::Result<()> {
        self.changed_owners.sort_unstable();
        self.changed_owners.dedup();
        for &owner in &self.changed_owners {
            if let Some(version) = stored_version(&mut self.versions, self.connection, owner)? {
                *version = self.now.max(*version + 1);
                self.set_version.execute([owner.get(), *version])?;
            }
        }
        Ok(())
    }
}

/// Returns the stored version of a user, which is read if it is not known; none if there is no such user.
fn stored_version<'v>(
    versions: &'v mut HashMap<UserId, i64>,
    connection: &Connection,
    user: UserId,
) -> rusqlite::Result<Option<&'v mut i64>> {
    Ok(match versions.entry(user) {
        Entry::Occupied(known) => Some(known.into_mut()),
        Entry::Vacant(unknown) => connection
            .prepare_cached("SELECT version FROM users WHERE user_id = ?1")?
            .query_row([user.get()], |row| row.get(0))
            .optional()?
            .map(|version| unknown.insert(version)),
    })
}
