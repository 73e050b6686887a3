//! The statements of the writer's transactions, which are pipelined, and the tables that they use.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::join;
use jiff::Timestamp;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, Row, Statement};

use super::batch::{ChangedPlants, KeyOutcomes, Opened, Opening, PlantWrites, Values, changed_plants, is_simple};
use crate::plants::{Job, JobOutcome};
use crate::postgres::citus::{COUNT, LOCK, Shard, Shards};
use crate::postgres::connect::{
    DatabaseError, DatabaseSession, Dialect, Statements, certainly_not_committed, execute_each, is_rejection,
    lock_timeout,
};

/// Begins a transaction with the required isolation level. Sessions of the writer are read-only by default.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
/// Time without a commit after which the writer creates another row, because its row may have been removed.
const ROW_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// Number of random ids of which one is on the server, for up to hundreds of servers.
const ROW_TRIES: usize = 10_000;

/// The row by which a writer finds out if a commit has succeeded. Another one is used after an unknown outcome.
pub(super) struct WriterRow {
    pub(super) id: i64,
    /// Id of the last commit, which the row must contain; 0 before the first commit creates the row.
    pub(super) last: i64,
}

impl WriterRow {
    pub(super) fn new(shards: &Shards) -> Self {
        // The system's random source does not fail after boot.
        let random = || getrandom::u64().expect("the system's random source").cast_signed() | i64::MIN;
        // A row on another server would be right, too.
        let id = std::iter::repeat_with(random).take(ROW_TRIES).find(|id| shards.may_contain(*id));
        Self { id: id.unwrap_or_else(random), last: 0 }
    }

    /// Chooses another row if this one is on another server now, or may have been removed because it is old. A commit id is the
    /// time in microseconds.
    pub(super) fn renew_if_needed(&mut self, shards: &Shards) {
        let age = Timestamp::now().as_microsecond().abs_diff(self.last);
        let is_old = self.last > 0 && u128::from(age) > ROW_LIFETIME.as_micros();
        if is_old || !shards.may_contain(self.id) {
            *self = Self::new(shards);
        }
    }
}

pub(super) struct Transaction<'a> {
    session: &'a DatabaseSession,
    batch: &'a [Job],
    row: &'a WriterRow,
    timeout: Duration,
    parts: Vec<Part>,
    guard: Option<ShardGuard>,
}

/// The statements about the users of one shard, or about all users.
struct Part {
    statements: Arc<Statements>,
    shard: Option<Shard>,
}

impl Part {
    fn has(&self, user: i64) -> bool {
        self.shard.as_ref().is_none_or(|shard| shard.contains(user))
    }
}

/// Keeps shards on this server until the end of the transaction.
pub(super) struct ShardGuard {
    lock: Statement,
    ids: Vec<i64>,
    /// Number of users in these shards. Statements find all of them, unless a shard is on another server or a user does not exist.
    users: usize,
}

/// Result of the statements before the commit.
pub(super) enum Execution {
    Executed(Executed),
    /// The writer's row does not contain the expected commit id.
    UnexpectedCommitId,
    ShardMoved,
}

/// A transaction before its commit.
pub(super) struct Executed {
    pub(super) commit_id: i64,
    pub(super) outcomes: Vec<JobOutcome>,
}

impl<'a> Transaction<'a> {
    /// Chooses the tables of a transaction: those of shards if all its users are in shards of this server, otherwise the distributed
    /// ones.
    pub(super) async fn new(
        session: &'a DatabaseSession,
        shards: &Shards,
        row: &'a WriterRow,
        batch: &'a [Job],
        timeout: Duration,
    ) -> Result<Self, Error> {
        let whole = Part { statements: Arc::clone(session.statements()), shard: None };
        let mut transaction = Self { session, batch, row, timeout, parts: vec![whole], guard: None };
        let shards = shards.get();
        if shards.shards.is_empty() {
            return Ok(transaction);
        }
        let opening = Opening::of(batch, row.id, |_| true);
        let mut parts = Vec::new();
        let mut ids = Vec::new();
        let mut users = 0;
        for shard in &shards.shards {
            let of_shard = opening.users.iter().filter(|user| shard.contains(**user)).count();
            if of_shard > 0 {
                let Some(statements) = session.of_shard(&shards, shard).await? else { return Ok(transaction) };
                parts.push(Part { statements, shard: Some(shard.clone()) });
                ids.push(shard.id());
                users += of_shard;
            }
        }
        if users == opening.users.len() && opening.new_names.is_empty() {
            transaction.parts = parts;
            transaction.guard = Some(ShardGuard { lock: session.prepared(LOCK).await?, ids, users });
        }
        Ok(transaction)
    }

    /// Executes the transaction except for its end.
    pub(super) async fn execute(&self) -> Result<Execution, Error> {
        let (opened, changed) = if self.batch.iter().all(is_simple) {
            // The statements are polled and thus sent in this order, without waiting for each other.
            let (opened, changed) = join!(self.open(), self.change_plants(self.batch.iter()));
            // The first error is the cause of the others.
            (opened?, changed?)
        } else {
            let Some(opened) = self.open().await? else { return Ok(Execution::ShardMoved) };
            let executed = self.batch.iter().filter(|job| matches!(opened.outcome(job), Ok(None)));
            let changed = self.change_plants(executed).await?;
            (Some(opened), changed)
        };
        let Some(opened) = opened else { return Ok(Execution::ShardMoved) };
        let Some(commit_id) = opened.commit_id(self.row.id) else { return Ok(Execution::UnexpectedCommitId) };
        let outcomes = changed.outcomes(&opened, self.batch)?;
        Ok(Execution::Executed(Executed { commit_id, outcomes }))
    }

    /// Begins the transaction, stores the commit id, locks the rows of the users and looks up the keys. `None` if a shard is on another
    /// server now.
    async fn open(&self) -> Result<Option<Opened>, Error> {
        let client = &self.session.client;
        let WriterRow { id, last } = self.row;
        let parts = self.parts.iter().map(async |part| {
            let opening = Opening::of(self.batch, *id, |user| part.has(user));
            let Opening { users, new_names, new_created_at, key_users, keys } = &opening;
            let statements = part.statements.of_writer();
            let (created, locked, new, known) = join!(
                query(*last == 0 && part.has(*id), client, &statements.create_writer, [id]),
                query(true, client, &statements.advance_versions, [users, id, last]),
                query(!new_names.is_empty(), client, &statements.create_users, [new_names, new_created_at]),
                query(!keys.is_empty(), client, &statements.find_keys, [key_users, keys]),
            );
            created?;
            let locked = locked?;
            Opened::read(&new?, &locked, known?)
        });
        let (begun, parts) = join!(begin(self.session, self.guard.as_ref(), self.timeout), join_all(parts));
        begun?;
        let mut opened = Opened::default();
        for part in parts {
            opened.add(part?);
        }
        match &self.guard {
            Some(ShardGuard { ids, users, .. }) if opened.versions.len() < *users => {
                let on_server = client.query_one(&self.session.prepared(COUNT).await?, &[ids]).await?;
                Ok((usize::try_from(on_server.try_get::<_, i64>(0)?) == Ok(ids.len())).then_some(opened))
            }
            _ => Ok(Some(opened)),
        }
    }

    async fn change_plants(&self, jobs: impl Iterator<Item = &'a Job> + Clone) -> Result<ChangedPlants, Error> {
        let client = &self.session.client;
        let parts = self.parts.iter().map(|part| {
            let PlantWrites { deletes, creates, replacements } = PlantWrites::of(jobs.clone(), |user| part.has(user));
            async move {
                let statements = part.statements.of_writer();
                let (deleted, created, replaced) = join!(
                    query(deletes.any(), client, &statements.delete, deletes.keys()),
                    query(creates.any(), client, &statements.create, creates.values()),
                    query(replacements.any(), client, &statements.replace, replacements.values()),
                );
                Ok::<_, Error>([deleted?, created?, replaced?])
            }
        });
        let mut changed = ChangedPlants::default();
        for part in join_all(parts).await {
            let [deleted, created, replaced] = part?;
            changed.deleted.extend(changed_plants(&deleted)?);
            changed.created.extend(changed_plants(&created)?);
            changed.replaced.extend(changed_plants(&replaced)?);
        }
        Ok(changed)
    }

    /// Stores the outcomes under their keys and commits. The error `None` means that the commit is in doubt.
    pub(super) async fn commit(&self, executed: &Executed) -> Result<(), Option<DatabaseError>> {
        let stored = self.parts.iter().map(async |part| {
            let key_outcomes = KeyOutcomes::of(self.batch, &executed.outcomes, |user| part.has(user));
            let statement = &part.statements.of_writer().store_keys;
            query(key_outcomes.any(), &self.session.client, statement, key_outcomes.values()).await
        });
        let warnings = self.session.warnings.load(Ordering::Acquire);
        let (stored, committed) = join!(join_all(stored), self.session.client.batch_execute("COMMIT"));
        let stored: Result<Vec<_>, Error> = stored.into_iter().collect();
        match (stored, committed) {
            // After a rejected statement the transaction is rolled back, whatever the response to COMMIT.
            (Err(error), _) if error.code() == Some(&SqlState::NOT_NULL_VIOLATION) => {
                Err(Some(DatabaseError::Retryable("a key was stored concurrently".to_owned())))
            }
            (Err(error), _) if is_rejection(&error) => Err(Some(DatabaseError::classify(&error))),
            // A warning means that a server has not committed yet: a standby, if the wait for it was cancelled, or a worker of Citus.
            (Ok(_), Ok(())) if self.session.warnings.load(Ordering::Acquire) != warnings => Err(None),
            (Ok(_), Ok(())) => Ok(()),
            (Ok(_), Err(error)) if certainly_not_committed(&error) => Err(Some(DatabaseError::classify(&error))),
            (Err(_), _) | (_, Err(_)) => Err(None),
        }
    }
}

/// Begins a transaction.
pub(super) async fn begin(
    session: &DatabaseSession,
    guard: Option<&ShardGuard>,
    timeout: Duration,
) -> Result<(), Error> {
    let client = &session.client;
    match (session.dialect, guard) {
        (Dialect::Postgres, _) => client.batch_execute(BEGIN).await,
        (Dialect::Citus, None) => {
            // The settings of a session do not apply on workers, those of a transaction do.
            let limit_waits = format!("SET LOCAL lock_timeout = {}", lock_timeout(timeout));
            execute_each(client, &[BEGIN, &limit_waits]).await
        }
        (Dialect::Citus, Some(ShardGuard { lock, ids, .. })) => {
            let values: Values<'_, 1> = [ids];
            let (begun, locked) = join!(client.batch_execute(BEGIN), client.execute(lock, &values));
            begun?;
            locked.map(|_| ())
        }
    }
}

/// Returns the rows of a statement, or none if it is not `wanted`.
async fn query<const N: usize>(
    wanted: bool,
    client: &Client,
    statement: &Statement,
    values: Values<'_, N>,
) -> Result<Vec<Row>, Error> {
    if wanted { client.query(statement, &values).await } else { Ok(Vec::new()) }
}
