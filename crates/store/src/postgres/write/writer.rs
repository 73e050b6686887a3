//! Writer task: drains the write queue into transactions on its own connection.
//!
//! The statements of a transaction are pipelined. The commit, together with the outcomes for idempotency keys, is sent after
//! their responses, so that only a commit can be in doubt. Each transaction stores its commit id in the writer's row. If the
//! connection is lost during a commit, the next attempt waits for the lock of the row and reads the commit id. If it is that of the
//! lost commit, the commit has succeeded; otherwise the transaction is executed again. So exactly one of the two attempts is
//! committed, and its outcomes are known. `docs/design/group-commit.md` has the protocol.
//!
//! The writer's row is a row of `collections` with a negative id. The statement that locks the rows of the users also stores the
//! commit id.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::join;
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, Row, Statement};

use super::batch::{ChangedPlants, KeyOutcomes, Opened, Opening, PlantWrites, Values, changed_plants, is_simple};
use super::collector::BatchCollector;
use crate::error::StoreError;
use crate::plants::{BATCH_MAX, Job, JobOutcome, Timeouts, WriteQueue, is_worth_retrying_one_by_one, reply, reply_all};
use crate::postgres::citus::{Dialect, execute_each};
use crate::postgres::connect::{
    ConnectionRole, Connector, DatabaseConnection, DatabaseError, DatabaseSession, NO_RESPONSE,
    certainly_not_committed, describe, is_rejection, lock_timeout, pause_for_worker,
};
use crate::postgres::metrics::PostgresMetrics;

/// Begins a transaction with the required isolation level. Sessions of the writer are read-only by default.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
/// Additional time for a commit beyond the timeout, because an abandoned commit is in doubt.
const COMMIT_GRACE: Duration = Duration::from_millis(200);
/// Time without a commit after which the writer creates another row, because its row may have been removed.
const ROW_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// Time that a caller waits longer than the writer, so that the writer reports the outcome.
const REPLY_MARGIN: Duration = Duration::from_millis(300);

/// Handle of the writer task.
pub(in crate::postgres) struct Writer {
    queue: WriteQueue,
    connection: Arc<DatabaseConnection>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    pub(in crate::postgres) fn start(
        connector: &Arc<Connector>,
        capacity: usize,
        metrics: &Arc<PostgresMetrics>,
    ) -> Self {
        let (queue, jobs) = WriteQueue::new(capacity, Timeouts::both(connector.timeout + REPLY_MARGIN));
        let connection = Arc::new(DatabaseConnection::new(connector, ConnectionRole::Write));
        let task = WriterTask {
            connection: Arc::clone(&connection),
            timeout: connector.timeout,
            row: WriterRow::new(),
            took: Duration::ZERO,
            limit_waits_on_citus: limit_waits_on_citus(connector.timeout),
            lost_worker: false,
            metrics: Arc::clone(metrics),
        };
        let task = tokio::spawn(exit_on_panic(task.run(BatchCollector::new(jobs))));
        Self { queue, connection, task: Mutex::new(Some(task)) }
    }

    pub(in crate::postgres) fn queue(&self) -> &WriteQueue {
        &self.queue
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

/// The writer's row in the database. Another one is used after an unknown outcome.
struct WriterRow {
    id: i64,
    /// Id of the last commit, which the row must contain; 0 before the first commit creates the row.
    last: i64,
}

impl WriterRow {
    fn new() -> Self {
        // The system's random source does not fail after boot.
        let random = getrandom::u64().expect("the system's random source").cast_signed();
        Self { id: random | i64::MIN, last: 0 }
    }

    /// Returns the id of the next commit: the time in microseconds, so that rows without recent commits can be removed.
    fn next_commit(&mut self) -> i64 {
        let now = Timestamp::now().as_microsecond();
        if self.last > 0 && u128::from(now.abs_diff(self.last)) > ROW_LIFETIME.as_micros() {
            *self = Self::new();
        }
        now.max(self.last + 1)
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
    /// Duration of the last commit.
    took: Duration,
    limit_waits_on_citus: String,
    /// True if the last commit failed because Citus could not reach a worker.
    lost_worker: bool,
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
        // If Citus could not reach a worker, it may still execute the writes of users on other servers.
        let lost_worker = std::mem::take(&mut self.lost_worker) && matches!(result, Err(StoreError::Unavailable(_)));
        if !(is_worth_retrying_one_by_one(&result, batch.len()) || (lost_worker && batch.len() > 1)) {
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
        let commit = self.row.next_commit();
        // The outcomes of a commit that got no response.
        let mut in_doubt = None;
        // The first attempt may have used a connection to another server that was lost long before.
        let mut retries_of_lost_worker = usize::from(batch.len() == 1);
        loop {
            let session = match self.connection.session(deadline).await {
                Ok(session) => session,
                Err(error) => return Err(self.give_up(in_doubt.is_some(), error)),
            };
            match self.attempt(&session, commit, batch, &mut in_doubt, deadline).await {
                AttemptResult::Committed(outcomes) => {
                    self.row.last = commit;
                    return Ok(outcomes);
                }
                AttemptResult::InDoubt => session.discard(),
                AttemptResult::CommitLost => {
                    // The database was restored to an earlier state.
                    tracing::error!("the database lost a commit that it had acknowledged");
                    self.row = WriterRow::new();
                    in_doubt = None;
                }
                AttemptResult::Failed(fault) => match fault {
                    DatabaseError::Permanent(error) => return Err(self.give_up(in_doubt.is_some(), error)),
                    fault if Instant::now() >= deadline => {
                        return Err(self.give_up(in_doubt.is_some(), fault.into_error()));
                    }
                    DatabaseError::WorkerLost(text) if in_doubt.is_none() => {
                        let Some(remaining) = retries_of_lost_worker.checked_sub(1) else {
                            self.lost_worker = true;
                            return Err(self.give_up(false, StoreError::Unavailable(text)));
                        };
                        retries_of_lost_worker = remaining;
                    }
                    DatabaseError::WorkerLost(text) => {
                        if let Err(error) = pause_for_worker(deadline, text).await {
                            return Err(self.give_up(true, error));
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
        self.row = WriterRow::new();
        StoreError::OutcomeUnknown("the connection to the database was lost during the commit")
    }

    async fn attempt(
        &mut self,
        session: &DatabaseSession,
        commit: i64,
        batch: &[Job],
        in_doubt: &mut Option<Vec<JobOutcome>>,
        deadline: Instant,
    ) -> AttemptResult {
        let failed = |fault: DatabaseError| {
            // Closing the connection rolls back its transaction.
            session.discard();
            AttemptResult::Failed(fault)
        };
        let executed = match timeout_at(deadline, self.execute(session, commit, batch)).await {
            Ok(Ok(executed)) => executed,
            Ok(Err(error)) => match DatabaseError::classify(&error) {
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
        let Some(outcomes) = executed else {
            let resolved = self.resolve_in_doubt(session, commit, batch, in_doubt, deadline).await;
            return resolved.unwrap_or_else(failed);
        };
        // The commit id is stored, so an earlier attempt was not committed and never will be.
        *in_doubt = None;
        let sent = Instant::now();
        match timeout_at(deadline + COMMIT_GRACE, commit_transaction(session, batch, &outcomes)).await {
            Ok(Ok(())) => {
                self.took = sent.elapsed();
                AttemptResult::Committed(outcomes)
            }
            Ok(Err(Some(fault))) => AttemptResult::Failed(fault),
            Ok(Err(None)) | Err(_) => {
                *in_doubt = Some(outcomes);
                AttemptResult::InDoubt
            }
        }
    }

    /// Executes the transaction except for its end. `None` if the writer's row does not contain the expected commit id.
    async fn execute(
        &self,
        session: &DatabaseSession,
        commit: i64,
        batch: &[Job],
    ) -> Result<Option<Vec<JobOutcome>>, Error> {
        let opening = Opening::of(batch, self.row.id);
        let (opened, changed) = if batch.iter().all(is_simple) {
            let writes = PlantWrites::of(batch);
            // The statements are polled and thus sent in this order, without waiting for each other.
            let (opened, changed) = join!(self.open(session, commit, &opening), change_plants(session, &writes));
            // The first error is the cause of the others.
            (opened?, changed?)
        } else {
            let opened = self.open(session, commit, &opening).await?;
            let executed = batch.iter().filter(|job| matches!(opened.outcome(job), Ok(None)));
            let changed = change_plants(session, &PlantWrites::of(executed)).await?;
            (opened, changed)
        };
        if opened.has(self.row.id) { changed.outcomes(&opened, batch).map(Some) } else { Ok(None) }
    }

    /// Begins the transaction, stores the commit id, locks the rows of the users and looks up the keys.
    async fn open(&self, session: &DatabaseSession, commit: i64, opening: &Opening<'_>) -> Result<Opened, Error> {
        let DatabaseSession { client, statements, .. } = session;
        let WriterRow { id, last } = self.row;
        let (begun, created, locked, new, known) = join!(
            self.begin(session),
            query(last == 0, client, &statements.create_writer, [&id]),
            query(true, client, &statements.advance_versions, [opening.users(), &id, &commit, &last]),
            query(opening.has_new_users(), client, &statements.create_users, opening.new_users()),
            query(opening.has_keys(), client, &statements.find_keys, opening.keys()),
        );
        begun?;
        created?;
        let locked = locked?;
        Opened::read(&new?, &locked, known?)
    }

    async fn begin(&self, session: &DatabaseSession) -> Result<(), Error> {
        match session.dialect {
            Dialect::Postgres => session.client.batch_execute(BEGIN).await,
            Dialect::Citus => execute_each(&session.client, &[BEGIN, &self.limit_waits_on_citus]).await,
        }
    }

    /// Handles an unexpected commit id: either the in-doubt commit has succeeded, or the database was restored.
    async fn resolve_in_doubt(
        &self,
        session: &DatabaseSession,
        commit: i64,
        batch: &[Job],
        in_doubt: &mut Option<Vec<JobOutcome>>,
        deadline: Instant,
    ) -> Result<AttemptResult, DatabaseError> {
        self.roll_back(session, deadline).await?;
        let opening = Opening::of(batch, self.row.id);
        let read_commit_id = async {
            self.begin(session).await?;
            let rows = session.client.query(&session.statements.lock_users, &[opening.users()]).await?;
            session.client.batch_execute("COMMIT").await?;
            let ids = rows.iter().map(|row| Ok((row.try_get::<_, i64>(0)?, row.try_get::<_, i64>(1)?)));
            Ok(ids.collect::<Result<HashMap<_, _>, Error>>()?.remove(&self.row.id))
        };
        let found = timeout_at(deadline, read_commit_id).await;
        let found = found.map_err(|_| DatabaseError::ConnectionLost(NO_RESPONSE.to_owned()))?;
        let found = found.map_err(|error| DatabaseError::classify(&error))?;
        let committed = in_doubt.take_if(|_| found == Some(commit));
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

async fn change_plants(session: &DatabaseSession, writes: &PlantWrites<'_>) -> Result<ChangedPlants, Error> {
    let DatabaseSession { client, statements, .. } = session;
    let (deleted, created) = join!(
        query(writes.deletes.any(), client, &statements.delete, writes.deletes.values()),
        query(writes.creates.any(), client, &statements.create, writes.of_creates()),
    );
    Ok(ChangedPlants { deleted: changed_plants(&deleted?)?, created: changed_plants(&created?)? })
}

/// Stores the outcomes under their keys and commits. The error `None` means that the commit is in doubt.
async fn commit_transaction(
    session: &DatabaseSession,
    batch: &[Job],
    outcomes: &[JobOutcome],
) -> Result<(), Option<DatabaseError>> {
    let key_outcomes = KeyOutcomes::of(batch, outcomes);
    let warnings = session.warnings.count();
    let (stored, committed) = join!(
        query(key_outcomes.any(), &session.client, &session.statements.store_keys, key_outcomes.values()),
        session.client.batch_execute("COMMIT"),
    );
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

/// Result of one attempt.
enum AttemptResult {
    /// Committed by this attempt or by the previous one.
    Committed(Vec<JobOutcome>),
    /// The commit got no response.
    InDoubt,
    /// The row of the writer does not contain the id of the last acknowledged commit.
    CommitLost,
    Failed(DatabaseError),
}

/// Removes the uses of tokens from a batch, and returns tokens and days.
fn take_token_uses(batch: &mut Vec<Job>) -> (Vec<i64>, Vec<i64>) {
    let uses = batch.extract_if(.., |job| matches!(job, Job::RecordTokenUse { .. }));
    uses.filter_map(|job| {
        if let Job::RecordTokenUse { token, day } = job { Some((token.get(), day.as_second())) } else { None }
    })
    .unzip()
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
