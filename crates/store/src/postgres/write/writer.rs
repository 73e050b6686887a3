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

use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::Error;

use super::batch::{Opening, take_token_uses};
use super::transaction::{BEGIN, Executed, Execution, Transaction, WriterRow, begin};
use crate::error::StoreError;
use crate::plants::{BATCH_MAX, Job, JobOutcome, Timeouts, WriteQueue, is_worth_retrying_one_by_one, reply, reply_all};
use crate::postgres::citus::Shards;
use crate::postgres::connect::{
    ConnectionRole, Connector, DatabaseConnection, DatabaseError, DatabaseSession, LOST_DURING_COMMIT, NO_RESPONSE,
    PostgresMetrics, describe, execute_each, is_about_tables, is_rejection, pause_for_worker, versions,
};

/// Additional time for a commit beyond the timeout, because an abandoned commit is in doubt.
const COMMIT_GRACE: Duration = Duration::from_millis(200);
/// Time that a caller waits longer than the writer, so that the writer reports the outcome.
const REPLY_MARGIN: Duration = Duration::from_millis(300);
/// Duration of a commit from which the writer waits for more jobs.
const SLOW_COMMIT: Duration = Duration::from_millis(2);
/// Maximum time that a job waits for others to share its commit.
const PAUSE_MAX: Duration = Duration::from_millis(5);

pub(crate) struct Writer {
    pub(crate) queue: WriteQueue,
    connection: Arc<DatabaseConnection>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts a writer to the server of these shards. Its row is in one of them.
    pub(crate) fn start(connector: &Arc<Connector>, capacity: usize, shards: &Arc<Shards>) -> Self {
        let (queue, jobs) = WriteQueue::new(capacity, Timeouts::both(connector.timeout + REPLY_MARGIN));
        let connection = Arc::new(DatabaseConnection::new(connector, ConnectionRole::Write));
        let task = WriterTask {
            connection: Arc::clone(&connection),
            timeout: connector.timeout,
            row: WriterRow::new(shards),
            shards: Arc::clone(shards),
            took: Duration::ZERO,
            metrics: Arc::clone(&connector.metrics),
        };
        let task = tokio::spawn(exit_on_panic(task.run(BatchCollector::new(jobs))));
        Self { queue, connection, task: Mutex::new(Some(task)) }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.ready().is_some()
    }

    /// Opens the connection before it is needed, and waits for it: a lane without it is reported as lost.
    pub(crate) async fn connect(&self, timeout: Duration) {
        let _ = self.connection.session(Instant::now() + timeout).await;
    }

    /// Checks that the writer has its connection.
    pub(crate) async fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        self.connection.session(deadline).await.map(|_| ())
    }

    /// Closes the queue and waits until all queued jobs have replies.
    pub(crate) async fn finish(&self) {
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

struct WriterTask {
    connection: Arc<DatabaseConnection>,
    timeout: Duration,
    row: WriterRow,
    shards: Arc<Shards>,
    took: Duration,
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
            session.client.execute(&session.statements().of_writer().record_token_uses, &[&tokens, &days]).await?;
            session.client.batch_execute("COMMIT").await
        };
        match timeout(self.timeout, recording).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(error = describe(&error), "token use not recorded");
                if !is_rejection(&error) || roll_back(&session, Instant::now() + self.timeout).await.is_err() {
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
        StoreError::OutcomeUnknown(LOST_DURING_COMMIT)
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
        let executing = async {
            let transaction = Transaction::new(session, &self.shards, &self.row, batch, self.timeout).await?;
            let execution = transaction.execute().await?;
            Ok((transaction, execution))
        };
        let (transaction, execution) = match timeout_at(deadline, executing).await {
            Ok(Ok(executed)) => executed,
            Ok(Err(error)) => match self.classify(session, &error) {
                fault @ DatabaseError::ConnectionLost(_) => return failed(fault),
                fault => {
                    let rolled_back = roll_back(session, deadline).await;
                    return rolled_back.map_or_else(failed, |()| AttemptResult::Failed(fault));
                }
            },
            Err(_) => return failed(DatabaseError::ConnectionLost(NO_RESPONSE.to_owned())),
        };
        let executed = match execution {
            Execution::Executed(executed) => executed,
            Execution::UnexpectedCommitId => {
                let resolved = self.resolve_in_doubt(session, batch, in_doubt, deadline).await;
                return resolved.unwrap_or_else(failed);
            }
            Execution::ShardMoved => {
                session.avoid_shards(&self.shards.get());
                let fault = DatabaseError::Retryable("a shard is on another server now".to_owned());
                return roll_back(session, deadline).await.map_or_else(failed, |()| AttemptResult::Failed(fault));
            }
        };
        // The commit id is stored, so an earlier attempt was not committed and never will be.
        *in_doubt = None;
        let sent = Instant::now();
        match timeout_at(deadline + COMMIT_GRACE, transaction.commit(&executed)).await {
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
        if is_about_tables(error) && session.avoid_shards(&self.shards.get()) {
            tracing::info!(error = describe(error), "writes use distributed tables, which costs more");
            return DatabaseError::Retryable(describe(error));
        }
        DatabaseError::classify(error)
    }

    /// Handles an unexpected commit id: either the in-doubt commit has succeeded, or the database was restored.
    async fn resolve_in_doubt(
        &self,
        session: &DatabaseSession,
        batch: &[Job],
        in_doubt: &mut Option<Executed>,
        deadline: Instant,
    ) -> Result<AttemptResult, DatabaseError> {
        roll_back(session, deadline).await?;
        let opening = Opening::of(batch, self.row.id, |_| true);
        let read_commit_id = async {
            begin(session, None, self.timeout).await?;
            let rows = session.client.query(&session.statements().of_writer().lock_users, &[&opening.users]).await?;
            session.client.batch_execute("COMMIT").await?;
            Ok(versions(&rows)?.remove(&self.row.id))
        };
        let found = timeout_at(deadline, read_commit_id).await;
        let found = found.map_err(|_| DatabaseError::ConnectionLost(NO_RESPONSE.to_owned()))?;
        let found = found.map_err(|error| DatabaseError::classify(&error))?;
        let committed = in_doubt.take_if(|executed| found == Some(executed.commit_id));
        Ok(committed.map_or(AttemptResult::CommitLost, AttemptResult::Committed))
    }
}

async fn roll_back(session: &DatabaseSession, deadline: Instant) -> Result<(), DatabaseError> {
    match timeout_at(deadline, session.client.batch_execute("ROLLBACK")).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(DatabaseError::classify(&error)),
        Err(_) => Err(DatabaseError::ConnectionLost(NO_RESPONSE.to_owned())),
    }
}

enum AttemptResult {
    /// Committed by this attempt or by the previous one.
    Committed(Executed),
    InDoubt,
    /// The row of the writer does not contain the id of the last acknowledged commit.
    CommitLost,
    Failed(DatabaseError),
}

/// Collects queued jobs into a batch. If commits are slow, it waits a moment for the callers of the last batch, who often send
/// their next write at once: otherwise two halves of them would alternate, each with its own commit.
struct BatchCollector {
    jobs: mpsc::Receiver<Job>,
    last_size: usize,
    /// Time to wait for more jobs.
    pause: Duration,
}

impl BatchCollector {
    fn new(jobs: mpsc::Receiver<Job>) -> Self {
        Self { jobs, last_size: 0, pause: Duration::ZERO }
    }

    /// Returns false if the queue is closed and empty.
    async fn collect(&mut self, batch: &mut Vec<Job>) -> bool {
        if self.jobs.recv_many(batch, BATCH_MAX).await == 0 {
            return false;
        }
        if !self.pause.is_zero() {
            self.wait_for_more(batch).await;
        }
        if batch.extract_if(.., |job| matches!(job, Job::Stop)).count() > 0 {
            self.jobs.close();
        }
        true
    }

    async fn wait_for_more(&mut self, batch: &mut Vec<Job>) {
        let deadline = Instant::now() + self.pause;
        // Three quarters are enough, because some callers do not send another write.
        let enough = ((batch.len() + self.last_size) * 3 / 4).min(BATCH_MAX);
        while batch.len() < enough {
            let more = self.jobs.recv_many(batch, BATCH_MAX - batch.len());
            if !matches!(timeout_at(deadline, more).await, Ok(1..)) {
                break;
            }
        }
    }

    fn committed(&mut self, jobs: usize, took: Duration) {
        self.last_size = jobs;
        self.pause = if took < SLOW_COMMIT || jobs < 2 { Duration::ZERO } else { (took / 2).min(PAUSE_MAX) };
    }
}
