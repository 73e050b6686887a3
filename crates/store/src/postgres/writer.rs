//! The writer: a task that drains the queue into transactions, on a connection of its own.
//!
//! A transaction is sent in one go, and its commit, with what is stored under keys, when its responses are there, so that only
//! a commit can be in doubt. In the same transaction the writer marks a row of its own with the commit's number. When the
//! connection breaks under a commit, the next attempt finds that mark, or waits for the transaction that still holds the row,
//! or takes the row and repeats everything: of the two attempts exactly one happens, and the outcomes are known from the first.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::join;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

use super::connection::{Connection, Session};
use super::connector::Connector;
use super::database_error::{DatabaseError, SILENT, certainly_not_committed, describe, is_rejection};
use super::metrics::PostgresMetrics;
use super::role::ConnectionRole;
use super::writes::{KeyOutcomes, Responses, Writes};
use crate::error::StoreError;
use crate::write_queue::{BATCH_MAX, Job, Outcome, Queue, Timeouts, is_worth_retrying_one_by_one, reply, reply_all};

/// The isolation that the statements are made for, and leave to write, which a session of the writer does not have otherwise.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
/// Time that a commit may take beyond the timeout, because giving it up leaves it in doubt.
const COMMIT_GRACE: Duration = Duration::from_millis(200);
/// Time that a caller waits beyond the timeout of the writer, so that it is the writer who reports the outcome.
const MARGIN: Duration = Duration::from_millis(300);
/// Commits that take at least this long are worth waiting for company.
const SLOW_COMMIT: Duration = Duration::from_millis(2);
/// The longest that a write waits for others to share its commit.
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// The handle on the writer.
pub(super) struct Writer {
    queue: Queue,
    connection: Arc<Connection>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    pub(super) fn start(connector: &Arc<Connector>, capacity: usize, metrics: &Arc<PostgresMetrics>) -> Self {
        let (queue, jobs) = Queue::new(capacity, Timeouts::both(connector.timeout + MARGIN));
        let connection = Arc::new(Connection::new(connector, ConnectionRole::Write));
        let worker = Worker {
            connection: Arc::clone(&connection),
            timeout: connector.timeout,
            id: random(),
            last: 0,
            took: Duration::ZERO,
            metrics: Arc::clone(metrics),
        };
        let task = tokio::spawn(exit_on_panic(worker.run(BatchCollector { jobs, answered: 0, pause: Duration::ZERO })));
        Self { queue, connection, task: Mutex::new(Some(task)) }
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Checks that the writer is running and has its connection.
    pub(super) async fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        if self.queue.is_closed() {
            return Err(StoreError::Unavailable("the writer has stopped".to_owned()));
        }
        self.connection.session(deadline).await.map(|_| ())
    }

    /// Closes the queue and waits until all jobs in it have their replies.
    pub(super) async fn finish(&self) {
        self.queue.stop().await;
        if let Some(task) = self.task.lock().await.take() {
            let _ = task.await;
        }
    }
}

/// Ends the process when the writer panics: a node without a writer is of no use, and its supervisor starts another.
async fn exit_on_panic(writer: impl Future<Output = ()> + Send + 'static) {
    if tokio::spawn(writer).await.is_err_and(|error| error.is_panic()) {
        tracing::error!("the writer failed: ending the process");
        std::process::exit(1);
    }
}

fn random() -> i64 {
    // The system's randomness does not fail once the machine has started.
    getrandom::u64().expect("the system's random source").cast_signed()
}

struct Worker {
    connection: Arc<Connection>,
    timeout: Duration,
    /// The number of its row; another one after an outcome that stayed unknown.
    id: i64,
    /// The last commit that its row is known to hold.
    last: i64,
    /// The time that the database took for that commit.
    took: Duration,
    metrics: Arc<PostgresMetrics>,
}

impl Worker {
    async fn run(mut self, mut collector: BatchCollector) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while collector.collect(&mut batch).await {
            let size = batch.len();
            if batch.is_empty() {
                continue;
            }
            // Nothing is begun without a connection: a caller that stops waiting for one knows that nothing was done.
            match self.connection.session(Instant::now() + self.timeout).await {
                Ok(_) => {
                    let notes = take_token_uses(&mut batch);
                    batch.retain(Job::begin);
                    self.settle(&mut batch).await;
                    // Last, because no caller waits for them.
                    self.record_token_uses(notes).await;
                }
                Err(error) => reply_all(&mut batch, Err(error)),
            }
            collector.answered(size, self.took);
        }
    }

    /// Records the uses of tokens. They may be lost: nothing waits for them, neither the standby nor, for long, the writer.
    async fn record_token_uses(&self, (tokens, days): (Vec<i64>, Vec<i64>)) {
        let Some(session) = self.connection.ready().filter(|_| !tokens.is_empty()) else {
            return;
        };
        let noting = async {
            session.client.batch_execute(&format!("{BEGIN}; SET LOCAL synchronous_commit = off")).await?;
            session.client.execute(&session.statements.record_token_uses, &[&tokens, &days]).await?;
            session.client.batch_execute("COMMIT").await
        };
        match timeout(self.timeout, noting).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(error = describe(&error), "the use of tokens was not noted");
                session.discard();
            }
            Err(_) => session.discard(),
        }
    }

    async fn settle(&mut self, batch: &mut Vec<Job>) {
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

    async fn commit(&mut self, batch: &[Job]) -> Result<Vec<Outcome>, StoreError> {
        let begun = Instant::now();
        let result = self.commit_with_retries(batch).await;
        self.metrics.writes.committed(batch.len(), begun.elapsed(), &result);
        result
    }

    /// Does all jobs in one transaction, or none of them, trying again for as long as there is time.
    async fn commit_with_retries(&mut self, batch: &[Job]) -> Result<Vec<Outcome>, StoreError> {
        let deadline = Instant::now() + self.timeout;
        let commit = random();
        // The outcomes of a commit that was sent without a response.
        let mut in_doubt = None;
        loop {
            let session = match self.connection.session(deadline).await {
                Ok(session) => session,
                Err(error) => return Err(self.give_up(in_doubt.is_some(), error)),
            };
            match self.attempt(&session, commit, batch, &mut in_doubt, deadline).await {
                Attempt::Committed(outcomes) => {
                    self.last = commit;
                    return Ok(outcomes);
                }
                Attempt::InDoubt => session.discard(),
                Attempt::Rewound => {
                    // The database has forgotten a commit of ours: it was put back to an earlier state.
                    tracing::error!("the database lost a commit that it had acknowledged");
                    (self.id, self.last, in_doubt) = (random(), 0, None);
                }
                Attempt::Failed(fault) => match fault {
                    DatabaseError::Permanent(error) => return Err(self.give_up(in_doubt.is_some(), error)),
                    fault if Instant::now() >= deadline => {
                        return Err(self.give_up(in_doubt.is_some(), fault.into_error()));
                    }
                    DatabaseError::ConnectionLost(_) | DatabaseError::Retryable(_) => {}
                },
            }
        }
    }

    fn give_up(&mut self, in_doubt: bool, error: StoreError) -> StoreError {
        if !in_doubt {
            tracing::warn!(%error, "a commit was not possible: nothing was done");
            return error;
        }
        tracing::warn!(%error, "the outcome of a commit is unknown");
        // The in-doubt commit may still take the row.
        (self.id, self.last) = (random(), 0);
        StoreError::OutcomeUnknown("the connection to the database was lost during the commit")
    }

    async fn attempt(
        &mut self,
        session: &Session,
        commit: i64,
        batch: &[Job],
        in_doubt: &mut Option<Vec<Outcome>>,
        deadline: Instant,
    ) -> Attempt {
        let failed = |fault: DatabaseError| {
            // Whatever is open on the connection goes with it.
            session.discard();
            Attempt::Failed(fault)
        };
        let staged = match timeout_at(deadline, self.stage(session, commit, batch)).await {
            Ok(Ok(staged)) => staged,
            Ok(Err(error)) => match DatabaseError::classify(&error) {
                fault @ DatabaseError::ConnectionLost(_) => return failed(fault),
                fault => {
                    return self.roll_back(session, deadline).await.map_or_else(failed, |()| Attempt::Failed(fault));
                }
            },
            Err(_) => return failed(DatabaseError::ConnectionLost(SILENT.to_owned())),
        };
        let outcomes = match staged {
            Staged::Ready(outcomes) => outcomes,
            Staged::MarkMismatch => {
                return self.resolve_in_doubt(session, commit, in_doubt, deadline).await.unwrap_or_else(failed);
            }
            Staged::Inconsistent => {
                let again = || Attempt::Failed(DatabaseError::Retryable("a key changed under its lock".to_owned()));
                return self.roll_back(session, deadline).await.map_or_else(failed, |()| again());
            }
        };
        // The mark is ours: whatever was sent before has not happened, and never will.
        *in_doubt = None;
        let sent = Instant::now();
        match timeout_at(deadline + COMMIT_GRACE, finish(session, batch, &outcomes)).await {
            Ok(Ok(())) => {
                self.took = sent.elapsed();
                Attempt::Committed(outcomes)
            }
            Ok(Err(Some(fault))) => Attempt::Failed(fault),
            Ok(Err(None)) | Err(_) => {
                *in_doubt = Some(outcomes);
                Attempt::InDoubt
            }
        }
    }

    /// Sends the whole transaction but its end.
    async fn stage(&self, session: &Session, commit: i64, batch: &[Job]) -> Result<Staged, Error> {
        let (client, statements) = (&session.client, &session.statements);
        let writes = Writes::of(batch);
        let Writes { deletes, creates, general_deletes, general_creates, .. } = &writes;
        let mark: [&(dyn ToSql + Sync); 3] = [&self.id, &commit, &self.last];
        // Polled in this order, so sent in this order, without waiting for one another.
        let (begun, marked, new, held, known, deleted, general_deleted, created, general_created) = join!(
            client.batch_execute(BEGIN),
            client.execute(&statements.mark, &mark),
            query(writes.has_new_users(), client, &statements.create_users, writes.new_users()),
            query(true, client, &statements.touch, writes.users()),
            query(writes.has_keys(), client, &statements.find_keys, writes.keys()),
            query(deletes.any(), client, &statements.delete, deletes.of_deletes()),
            query(general_deletes.any(), client, &statements.delete_general, general_deletes.of_general_deletes()),
            query(creates.any(), client, &statements.create, creates.of_creates()),
            query(general_creates.any(), client, &statements.create_general, general_creates.of_general_creates()),
        );
        // In this order, too: whatever comes after an error fails because of it.
        begun?;
        if marked? == 0 {
            return Ok(Staged::MarkMismatch);
        }
        let (new, held, known, deleted, general_deleted) = (new?, held?, known?, deleted?, general_deleted?);
        let (created, general_created) = (created?, general_created?);
        let answers = Responses { new, held, known, deleted, created, general_deleted, general_created };
        Ok(answers.outcomes(batch)?.map_or(Staged::Inconsistent, Staged::Ready))
    }

    /// The mark was not what it should be: either the in-doubt commit has happened, or the database was put back.
    async fn resolve_in_doubt(
        &self,
        session: &Session,
        commit: i64,
        in_doubt: &mut Option<Vec<Outcome>>,
        deadline: Instant,
    ) -> Result<Attempt, DatabaseError> {
        self.roll_back(session, deadline).await?;
        let read_mark = async {
            session.client.batch_execute(BEGIN).await?;
            let row = session.client.query_opt(&session.statements.last_mark, &[&self.id]).await?;
            session.client.batch_execute("COMMIT").await?;
            row.map(|row| row.try_get::<_, i64>(0)).transpose()
        };
        let found =
            timeout_at(deadline, read_mark).await.map_err(|_| DatabaseError::ConnectionLost(SILENT.to_owned()))?;
        let found = found.map_err(|error| DatabaseError::classify(&error))?;
        let happened = in_doubt.take_if(|_| found == Some(commit));
        Ok(happened.map_or(Attempt::Rewound, Attempt::Committed))
    }

    async fn roll_back(&self, session: &Session, deadline: Instant) -> Result<(), DatabaseError> {
        match timeout_at(deadline, session.client.batch_execute("ROLLBACK")).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(DatabaseError::classify(&error)),
            Err(_) => Err(DatabaseError::ConnectionLost(SILENT.to_owned())),
        }
    }
}

/// Stores the outcomes under their keys and commits. `None` as error leaves the commit in doubt.
async fn finish(session: &Session, batch: &[Job], outcomes: &[Outcome]) -> Result<(), Option<DatabaseError>> {
    let key_outcomes = KeyOutcomes::of(batch, outcomes);
    let (kept, committed) = join!(
        query(key_outcomes.any(), &session.client, &session.statements.store_keys, key_outcomes.values()),
        session.client.batch_execute("COMMIT"),
    );
    match (kept, committed) {
        // What follows a rejected statement in a transaction does not happen, whatever the response to the commit.
        (Err(error), _) if error.code() == Some(&SqlState::NOT_NULL_VIOLATION) => {
            Err(Some(DatabaseError::Retryable("a key came in between".to_owned())))
        }
        (Err(error), _) if is_rejection(&error) => Err(Some(DatabaseError::classify(&error))),
        (Ok(_), Ok(())) => Ok(()),
        (Ok(_), Err(error)) if certainly_not_committed(&error) => Err(Some(DatabaseError::classify(&error))),
        (Err(_), _) | (_, Err(_)) => Err(None),
    }
}

/// A transaction before its end.
enum Staged {
    /// All that is left is to store the outcomes under their keys and to commit.
    Ready(Vec<Outcome>),
    /// The mark says that it is not to be done.
    MarkMismatch,
    /// Its statements found different keys, though no other transaction can have changed them.
    Inconsistent,
}

/// Result of one attempt.
enum Attempt {
    /// By this attempt, or by the one before it after all.
    Committed(Vec<Outcome>),
    /// The commit was sent, and no response came.
    InDoubt,
    /// The row of the writer holds an earlier commit than it must.
    Rewound,
    Failed(DatabaseError),
}

/// Takes what has queued up. Where commits are slow (a slow disk, a standby far away), callers that got their replies
/// together are given a moment to come back together: otherwise two halves of them would take turns, and each pay for a commit.
struct BatchCollector {
    jobs: mpsc::Receiver<Job>,
    /// Jobs of the last commit.
    answered: usize,
    /// Time that queued jobs wait for them.
    pause: Duration,
}

impl BatchCollector {
    /// False when the queue is closed and empty.
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
        // Three quarters are company enough: some callers go away.
        let enough = ((batch.len() + self.answered) * 3 / 4).min(BATCH_MAX);
        while batch.len() < enough {
            let more = self.jobs.recv_many(batch, BATCH_MAX - batch.len());
            if !matches!(timeout_at(deadline, more).await, Ok(1..)) {
                break;
            }
        }
    }

    fn answered(&mut self, jobs: usize, took: Duration) {
        self.answered = jobs;
        self.pause = if took < SLOW_COMMIT || jobs < 2 { Duration::ZERO } else { (took / 2).min(PAUSE_MAX) };
    }
}

/// Takes the uses of tokens out of a batch: tokens and days.
fn take_token_uses(batch: &mut Vec<Job>) -> (Vec<i64>, Vec<i64>) {
    let notes = batch.extract_if(.., |job| matches!(job, Job::RecordTokenUse { .. }));
    notes
        .filter_map(|job| {
            if let Job::RecordTokenUse { token, day } = job { Some((token.get(), day.as_second())) } else { None }
        })
        .unzip()
}

/// Returns the rows of a statement, which is sent if it is wanted.
async fn query<const N: usize>(
    wanted: bool,
    client: &Client,
    statement: &Statement,
    values: [&(dyn ToSql + Sync); N],
) -> Result<Vec<Row>, Error> {
    if wanted { client.query(statement, &values).await } else { Ok(Vec::new()) }
}
