//! Writer task: drains the write queue into transactions on its own connection.
//!
//! The statements of a transaction are pipelined. The commit, together with the outcomes for idempotency keys, is sent after
//! their responses, so that only a commit can be in doubt. Each transaction stores its commit id in the writer's row. If the
//! connection is lost during a commit, the next attempt waits for the lock of the row and reads the commit id. If it is that of the
//! lost commit, the commit has succeeded; otherwise the transaction is executed again. So exactly one of the two attempts is
//! committed, and its outcomes are known. `docs/design/group-commit.md` has the protocol.
//!
//! The writer's row is a row of `collections` with a negative id. Its version is the commit id, which the
//! statement that advances the versions of the users also advances.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::join;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, Row, Statement};

use super::batch::{
    ChangedPlants, KeyOutcomes, Opened, Opening, PlantWrites, Values, changed_plants, is_simple, take_token_uses,
};
use super::collector::BatchCollector;
use super::row::WriterRow;
use super::scope::{Part, Scope, ShardGuard};
use crate::error::StoreError;
use crate::plants::{BATCH_MAX, Job, JobOutcome, Timeouts, WriteQueue, is_worth_retrying_one_by_one, reply, reply_all};
use crate::postgres::citus::Shards;
use crate::postgres::connect::{
    Connector, DatabaseConnection, DatabaseError, DatabaseSession, NO_RESPONSE, certainly_not_committed, describe,
    is_rejection, lock_timeout, pause_for_worker,
};
use crate::postgres::connection_role::ConnectionRole;
use crate::postgres::dialect::{Dialect, execute_each};
use crate::postgres::metrics::PostgresMetrics;
use crate::postgres::statements::versions;

/// Begins a transaction with the required isolation level. Sessions of the writer are read-only by default.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
/// Additional time for a commit beyond the timeout, because an abandoned commit is in doubt.
const COMMIT_GRACE: Duration = Duration::from_millis(200);
/// Time that a caller waits longer than the writer, so that the writer reports the outcome.
const REPLY_MARGIN: Duration = Duration::from_millis(300);

/// Handle of the writer task.
pub(in crate::postgres) struct Writer {
    queue: WriteQueue,
    connection: Arc<DatabaseConnection>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts a writer to the server of these shards. Its row is in one of them.
    pub(in crate::postgres) fn start(connector: &Arc<Connector>, capacity: usize, shards: &Arc<Shards>) -> Self {
        let (queue, jobs) = WriteQueue::new(capacity, Timeouts::both(connector.timeout + REPLY_MARGIN));
        let connection = Arc::new(DatabaseConnection::new(connector, ConnectionRole::Write));
        let task = WriterTask {
            connection: Arc::clone(&connection),
            timeout: connector.timeout,
            row: WriterRow::new(shards),
            shards: Arc::clone(shards),
            took: Duration::ZERO,
            limit_waits_on_citus: limit_waits_on_citus(connector.timeout),
            metrics: Arc::clone(&connector.metrics),
        };
        let task = tokio::spawn(exit_on_panic(task.run(BatchCollector::new(jobs))));
        Self { queue, connection, task: Mutex::new(Some(task)) }
    }

    pub(in crate::postgres) fn queue(&self) -> &WriteQueue {
        &self.queue
    }

    pub(in crate::postgres) fn is_connected(&self) -> bool {
        self.connection.ready().is_some()
    }

    /// Opens the connection before it is needed.
    pub(in crate::postgres) fn connect(&self) {
        self.connection.start();
    }

    /// Checks that the writer is running and has its connection.
    pub(in crate::postgres) async fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        if self.queue.is_closed() {
            return Err(StoreError::Unavailable("the writer has stopped".to_owned()));
        }
        self.connection.session(deadline).await.map(|_| ())
    }

    /// Closes the queue and waits until all queued jobs have replies.
    pub(in crate::postgres) async fn finish(&self) {
        self.queue.stop().await;
        if let Some(task) = self.task.lock().await.take() {
            let _ = task.await;
        }
    }
}

/// Exits the process if the writer panics. A node without a writer is useless, and its service manager restarts it.
async fn exit_on_panic(writer: impl Future<Output = ()> + Send + 'static) {
    if tokio::spawn(writer).await.is_err_and(|error| error.is_panic()) {
        tracing::error!("the writer task panicked: exiting");
        std::process::exit(1);
    }
}

/// Returns the statement that limits the waits of a transaction on workers of Citus. The settings of a session do not apply
/// there, those of a transaction do.
fn limit_waits_on_citus(timeout: Duration) -> String {
    format!("SET LOCAL lock_timeout = {}", lock_timeout(timeout))
}

struct WriterTask {
    connection: Arc<DatabaseConnection>,
    timeout: Duration,
    row: WriterRow,
    shards: Arc<Shards>,
    /// Duration of the last commit.
    took: Duration,
    limit_waits_on_citus: String,
    metrics: Arc<PostgresMetrics>,
}

impl WriterTask {
    async fn run(mut self, mut collector: BatchCollector) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while collector.collect(&mut batch).await {
            let size = batch.len();
            if batch.is_empty() {
                continue;
            }
            // Jobs do not begin without a connection, so that a caller that stops waiting knows that nothing was changed.
            match self.connection.session(Instant::now() + self.timeout).await {
                Ok(_) => {
                    let token_uses = take_token_uses(&mut batch);
                    batch.retain(Job::begin);
                    self.execute_batch(&mut batch).await;
                    // Last, because no caller waits for it.
                    self.record_token_uses(token_uses).await;
                }
                Err(error) => reply_all(&mut batch, Err(error)),
            }
            collector.committed(size, self.took);
        }
    }

    /// Records the uses of tokens. They may be lost, so the commit does not wait for the disk or the standby.
    async fn record_token_uses(&self, (tokens, days): (Vec<i64>, Vec<i64>)) {
        let Some(session) = self.connection.ready().filter(|_| !tokens.is_empty()) else {
            return;
        };
        let recording = async {
            execute_each(&session.client, &[BEGIN, "SET LOCAL synchronous_commit = off"]).await?;
            session.client.execute(&session.statements.record_token_uses, &[&tokens, &days]).await?;
            session.client.batch_execute("COMMIT").await
        };
        match timeout(self.timeout, recording).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(error = describe(&error), "token use not recorded");
                if !is_rejection(&error) || self.roll_back(&session, Instant::now() + self.timeout).await.is_err() {
                    session.discard();
                }
            }
            Err(_) => session.discard(),
        }
    }

    async fn execute_batch(&mut self, batch: &mut Vec<Job>) {
        if batch.is_empty() {
            return;
        }
        let result = self.commit(batch).await;
        if !is_worth_retrying_one_by_one(&result, batch.len()) {
            return reply_all(batch, result);
        }
        for job in batch.drain(..) {
            let alone = self.commit(std::slice::from_ref(&job)).await;
            reply(job, alone.map(|mut outcomes| outcomes.swap_remove(0)));
        }
    }

    async fn commit(&mut self, batch: &[Job]) -> Result<Vec<JobOutcome>, StoreError> {
        let begun = Instant::now();
        let result = self.commit_with_retries(batch).await;
        self.metrics.writes.committed(batch.len(), begun.elapsed(), &result);
        result
    }

    /// Executes all jobs in one transaction. Retries until the deadline.
    async fn commit_with_retries(&mut self, batch: &[Job]) -> Result<Vec<JobOutcome>, StoreError> {
        let deadline = Instant::now() + self.timeout;
        self.row.renew_if_needed(&self.shards);
        // The commit that got no response.
        let mut in_doubt = None;
        loop {
            let session = match self.connection.session(deadline).await {
                Ok(session) => session,
                Err(error) => return Err(self.give_up(in_doubt.is_some(), error)),
            };
            match self.attempt(&session, batch, &mut in_doubt, deadline).await {
                AttemptResult::Committed(executed) => {
                    self.row.last = executed.commit_id;
                    return Ok(executed.outcomes);
                }
                AttemptResult::InDoubt => session.discard(),
                AttemptResult::CommitLost => {
                    // The database was restored to an earlier state.
                    tracing::error!("the database lost a commit that it had acknowledged");
                    self.row = WriterRow::new(&self.shards);
                    in_doubt = None;
                }
                AttemptResult::Failed(fault) => match fault {
                    DatabaseError::Permanent(error) => return Err(self.give_up(in_doubt.is_some(), error)),
                    fault if Instant::now() >= deadline => {
                        return Err(self.give_up(in_doubt.is_some(), fault.into_error()));
                    }
                    DatabaseError::WorkerLost(text) => {
                        if let Err(error) = pause_for_worker(deadline, text).await {
                            return Err(self.give_up(in_doubt.is_some(), error));
                        }
                    }
                    DatabaseError::ConnectionLost(_) | DatabaseError::Retryable(_) => {}
                },
            }
        }
    }

    fn give_up(&mut self, in_doubt: bool, error: StoreError) -> StoreError {
        if !in_doubt {
            tracing::warn!(%error, "commit failed: nothing was changed");
            return error;
        }
        tracing::warn!(%error, "commit outcome unknown");
        // The in-doubt commit may still change the row.
        self.row = WriterRow::new(&self.shards);
        StoreError::OutcomeUnknown("the connection to the database was lost during the commit")
    }

    async fn attempt(
        &mut self,
        session: &DatabaseSession,
        batch: &[Job],
        in_doubt: &mut Option<Executed>,
        deadline: Instant,
    ) -> AttemptResult {
        let failed = |fault: DatabaseError| {
            // Closing the connection rolls back its transaction.
            session.discard();
            AttemptResult::Failed(fault)
        };
        let executed = match timeout_at(deadline, self.execute(session, batch)).await {
            Ok(Ok(executed)) => executed,
            Ok(Err(error)) => match self.classify(session, &error) {
                fault @ DatabaseError::ConnectionLost(_) => return failed(fault),
                fault => {
                    return self
                        .roll_back(session, deadline)
                        .await
                        .map_or_else(failed, |()| AttemptResult::Failed(fault));
                }
            },
            Err(_) => return failed(DatabaseError::ConnectionLost(NO_RESPONSE.to_owned())),
        };
        let executed = match executed {
            Execution::Executed(executed) => executed,
            Execution::UnexpectedCommitId => {
                let resolved = self.resolve_in_doubt(session, batch, in_doubt, deadline).await;
                return resolved.unwrap_or_else(failed);
            }
            Execution::ShardMoved => {
                session.avoid_shards(&self.shards.get());
                let fault = DatabaseError::Retryable("a shard is on another server now".to_owned());
                return self.roll_back(session, deadline).await.map_or_else(failed, |()| AttemptResult::Failed(fault));
            }
        };
        // The commit id is stored, so an earlier attempt was not committed and never will be.
        *in_doubt = None;
        let sent = Instant::now();
        match timeout_at(deadline + COMMIT_GRACE, commit_transaction(session, batch, &executed)).await {
            Ok(Ok(())) => {
                self.took = sent.elapsed();
                AttemptResult::Committed(executed)
            }
            Ok(Err(Some(fault))) => AttemptResult::Failed(fault),
            Ok(Err(None)) | Err(_) => {
                *in_doubt = Some(executed);
                AttemptResult::InDoubt
            }
        }
    }

    /// Handles the error of a statement. A table of a shard may not exist any more, and only the owner of the tables may lock shards:
    /// the next attempt then uses the distributed tables.
    fn classify(&self, session: &DatabaseSession, error: &Error) -> DatabaseError {
        let is_about_tables = error.code().is_some_and(|code| code.code().starts_with("42"));
        if is_about_tables && session.avoid_shards(&self.shards.get()) {
            tracing::info!(error = describe(error), "writes use distributed tables, which costs more");
            return DatabaseError::Retryable(describe(error));
        }
        DatabaseError::classify(error)
    }

    /// Executes the transaction except for its end.
    async fn execute(&self, session: &DatabaseSession, batch: &[Job]) -> Result<Execution, Error> {
        let scope = Scope::of(session, &self.shards.get(), batch, self.row.id).await?;
        let (opened, changed) = if batch.iter().all(is_simple) {
            // The statements are polled and thus sent in this order, without waiting for each other.
            let (opened, changed) =
                join!(self.open(session, &scope, batch), change_plants(session, &scope, batch.iter()));
            // The first error is the cause of the others.
            (opened?, changed?)
        } else {
            let Some(opened) = self.open(session, &scope, batch).await? else { return Ok(Execution::ShardMoved) };
            let executed = batch.iter().filter(|job| matches!(opened.outcome(job), Ok(None)));
            let changed = change_plants(session, &scope, executed).await?;
            (Some(opened), changed)
        };
        let Some(opened) = opened else { return Ok(Execution::ShardMoved) };
        let Some(commit_id) = opened.commit_id(self.row.id) else { return Ok(Execution::UnexpectedCommitId) };
        let outcomes = changed.outcomes(&opened, batch)?;
        Ok(Execution::Executed(Executed { commit_id, outcomes, parts: scope.parts }))
    }

    /// Begins the transaction, stores the commit id, locks the rows of the users and looks up the keys. `None` if a shard is on another
    /// server now.
    async fn open(&self, session: &DatabaseSession, scope: &Scope, batch: &[Job]) -> Result<Option<Opened>, Error> {
        let client = &session.client;
        let WriterRow { id, last } = self.row;
        let parts = scope.parts.iter().map(async |part| {
            let opening = Opening::of(batch, id, |user| part.has(user));
            let statements = &part.statements;
            let (created, locked, new, known) = join!(
                query(last == 0 && part.has(id), client, &statements.create_writer, [&id]),
                query(true, client, &statements.advance_versions, [opening.users(), &id, &last]),
                query(opening.has_new_users(), client, &statements.create_users, opening.new_users()),
                query(opening.has_keys(), client, &statements.find_keys, opening.keys()),
            );
            created?;
            let locked = locked?;
            Opened::read(&new?, &locked, known?)
        });
        let (begun, parts) = join!(self.begin(session, scope.guard.as_ref()), join_all(parts));
        if !begun? {
            return Ok(None);
        }
        let mut opened = Opened::default();
        for part in parts {
            opened.add(part?);
        }
        Ok(Some(opened))
    }

    /// Begins a transaction. With a guard, returns false if a shard is on another server.
    async fn begin(&self, session: &DatabaseSession, guard: Option<&ShardGuard>) -> Result<bool, Error> {
        let client = &session.client;
        match (session.dialect, guard) {
            (Dialect::Postgres, _) => client.batch_execute(BEGIN).await.map(|()| true),
            (Dialect::Citus, None) => execute_each(client, &[BEGIN, &self.limit_waits_on_citus]).await.map(|()| true),
            (Dialect::Citus, Some(ShardGuard { lock, count, ids })) => {
                let values: Values<'_, 1> = [ids];
                let (begun, locked, found) =
                    join!(client.batch_execute(BEGIN), client.execute(lock, &values), client.query_one(count, &values));
                begun?;
                locked?;
                Ok(usize::try_from(found?.try_get::<_, i64>(0)?) == Ok(ids.len()))
            }
        }
    }

    /// Handles an unexpected commit id: either the in-doubt commit has succeeded, or the database was restored.
    async fn resolve_in_doubt(
        &self,
        session: &DatabaseSession,
        batch: &[Job],
        in_doubt: &mut Option<Executed>,
        deadline: Instant,
    ) -> Result<AttemptResult, DatabaseError> {
        self.roll_back(session, deadline).await?;
        let opening = Opening::of(batch, self.row.id, |_| true);
        let read_commit_id = async {
            self.begin(session, None).await?;
            let rows = session.client.query(&session.statements.lock_users, &[opening.users()]).await?;
            session.client.batch_execute("COMMIT").await?;
            Ok(versions(&rows)?.remove(&self.row.id))
        };
        let found = timeout_at(deadline, read_commit_id).await;
        let found = found.map_err(|_| DatabaseError::ConnectionLost(NO_RESPONSE.to_owned()))?;
        let found = found.map_err(|error| DatabaseError::classify(&error))?;
        let committed = in_doubt.take_if(|executed| found == Some(executed.commit_id));
        Ok(committed.map_or(AttemptResult::CommitLost, AttemptResult::Committed))
    }

    async fn roll_back(&self, session: &DatabaseSession, deadline: Instant) -> Result<(), DatabaseError> {
        match timeout_at(deadline, session.client.batch_execute("ROLLBACK")).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(DatabaseError::classify(&error)),
            Err(_) => Err(DatabaseError::ConnectionLost(NO_RESPONSE.to_owned())),
        }
    }
}

async fn change_plants<'a>(
    session: &DatabaseSession,
    scope: &Scope,
    jobs: impl Iterator<Item = &'a Job> + Clone,
) -> Result<ChangedPlants, Error> {
    let client = &session.client;
    let parts = scope.parts.iter().map(|part| {
        let PlantWrites { deletes, creates, replacements } = PlantWrites::of(jobs.clone(), |user| part.has(user));
        async move {
            let statements = &part.statements;
            let (deleted, created, replaced) = join!(
                query(deletes.any(), client, &statements.delete, deletes.keys()),
                query(creates.any(), client, &statements.create, creates.plants()),
                query(replacements.any(), client, &statements.replace, replacements.plants()),
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
async fn commit_transaction(
    session: &DatabaseSession,
    batch: &[Job],
    executed: &Executed,
) -> Result<(), Option<DatabaseError>> {
    let stored = executed.parts.iter().map(async |part| {
        let key_outcomes = KeyOutcomes::of(batch, &executed.outcomes, |user| part.has(user));
        let statement = &part.statements.store_keys;
        query(key_outcomes.any(), &session.client, statement, key_outcomes.values()).await
    });
    let warnings = session.warnings.count();
    let (stored, committed) = join!(join_all(stored), session.client.batch_execute("COMMIT"));
    let stored: Result<Vec<_>, Error> = stored.into_iter().collect();
    match (stored, committed) {
        // After a rejected statement the transaction is rolled back, whatever the response to COMMIT.
        (Err(error), _) if error.code() == Some(&SqlState::NOT_NULL_VIOLATION) => {
            Err(Some(DatabaseError::Retryable("a key was stored concurrently".to_owned())))
        }
        (Err(error), _) if is_rejection(&error) => Err(Some(DatabaseError::classify(&error))),
        // A warning means that a server has not committed yet: a standby, if the wait for it was cancelled, or a worker of Citus.
        (Ok(_), Ok(())) if session.warnings.count() != warnings => Err(None),
        (Ok(_), Ok(())) => Ok(()),
        (Ok(_), Err(error)) if certainly_not_committed(&error) => Err(Some(DatabaseError::classify(&error))),
        (Err(_), _) | (_, Err(_)) => Err(None),
    }
}

/// A transaction before its commit.
struct Executed {
    commit_id: i64,
    outcomes: Vec<JobOutcome>,
    parts: Vec<Part>,
}

/// Result of the statements before the commit.
enum Execution {
    Executed(Executed),
    /// The writer's row does not contain the expected commit id.
    UnexpectedCommitId,
    ShardMoved,
}

/// Result of one attempt.
enum AttemptResult {
    /// Committed by this attempt or by the previous one.
    Committed(Executed),
    /// The commit got no response.
    InDoubt,
    /// The row of the writer does not contain the id of the last acknowledged commit.
    CommitLost,
    Failed(DatabaseError),
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
