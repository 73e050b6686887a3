//! The writer: a task that drains the queue into transactions, on a connection of its own.
//!
//! A transaction is sent in one go, and its commit, with what is kept under keys, when its answers are there, so that only a
//! commit can be in doubt. In the same transaction the writer marks a row of its own with the commit's number. When the
//! connection dies under a commit, the next attempt finds that mark, or waits for whoever still holds the row, or takes the
//! row and does it all anew: of the two attempts exactly one happens, and the outcomes are known from the first.

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
use super::writes::{Answers, Keepings, Writes};
use crate::batch::{Answer, BATCH_MAX, Job, Outcome, Queue, Timeouts, answer, answer_all, one_may_spoil_it};
use crate::error::StoreError;

/// The isolation that the statements are made for, and leave to write, which a session of the writer does not have otherwise.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
/// How much longer than anything else a commit may take, because giving it up leaves a doubt.
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
        let task = tokio::spawn(watch_over(worker.run(Gathering { jobs, answered: 0, pause: Duration::ZERO })));
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

    /// Closes the queue and waits until all that was in it is answered.
    pub(super) async fn finish(&self) {
        self.queue.stop().await;
        if let Some(task) = self.task.lock().await.take() {
            let _ = task.await;
        }
    }
}

/// A node whose writer failed is of no use: the process ends, and whoever supervises it starts another.
async fn watch_over(writer: impl Future<Output = ()> + Send + 'static) {
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
    /// How long the database took to answer that commit.
    took: Duration,
    metrics: Arc<PostgresMetrics>,
}

impl Worker {
    async fn run(mut self, mut gathering: Gathering) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while gathering.gather(&mut batch).await {
            let size = batch.len();
            if batch.is_empty() {
                continue;
            }
            // Nothing is begun without a connection: whoever stops waiting until there is one knows that nothing was done.
            match self.connection.session(Instant::now() + self.timeout).await {
                Ok(_) => {
                    let notes = take_notes(&mut batch);
                    batch.retain(Job::begin);
                    self.settle(&mut batch).await;
                    // Last, because nobody waits for them.
                    self.note_uses(notes).await;
                }
                Err(error) => answer_all(&mut batch, Err(error)),
            }
            gathering.answered(size, self.took);
        }
    }

    /// Notes the uses of tokens. They may be lost: nothing waits for them, neither the standby nor, for long, the writer.
    async fn note_uses(&self, (tokens, days): (Vec<i64>, Vec<i64>)) {
        let Some(session) = self.connection.ready().filter(|_| !tokens.is_empty()) else {
            return;
        };
        let noting = async {
            session.client.batch_execute(&format!("{BEGIN}; SET LOCAL synchronous_commit = off")).await?;
            session.client.execute(&session.statements.note_uses, &[&tokens, &days]).await?;
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
        if !one_may_spoil_it(&result, batch.len()) {
            return answer_all(batch, result);
        }
        for job in batch.drain(..) {
            let alone = self.commit(std::slice::from_ref(&job)).await;
            answer(job, alone.map(|mut outcomes| outcomes.swap_remove(0)));
        }
    }

    async fn commit(&mut self, batch: &[Job]) -> Answer<Vec<Outcome>> {
        let begun = Instant::now();
        let result = self.try_to_commit(batch).await;
        self.metrics.writes.committed(batch.len(), begun.elapsed(), &result);
        result
    }

    /// Does all jobs in one transaction, or none of them, trying again for as long as there is time.
    async fn try_to_commit(&mut self, batch: &[Job]) -> Answer<Vec<Outcome>> {
        let deadline = Instant::now() + self.timeout;
        let commit = random();
        // The outcomes of a commit that was sent and not answered.
        let mut doubt = None;
        loop {
            let session = match self.connection.session(deadline).await {
                Ok(session) => session,
                Err(error) => return Err(self.give_up(doubt.is_some(), error)),
            };
            match self.attempt(&session, commit, batch, &mut doubt, deadline).await {
                Attempt::Committed(outcomes) => {
                    self.last = commit;
                    return Ok(outcomes);
                }
                Attempt::Doubtful => session.discard(),
                Attempt::Rewound => {
                    // The database has forgotten a commit of ours: it was put back to an earlier state.
                    tracing::error!("the database lost a commit that it had acknowledged");
                    (self.id, self.last, doubt) = (random(), 0, None);
                }
                Attempt::NotDone(fault) => match fault {
                    DatabaseError::Permanent(error) => return Err(self.give_up(doubt.is_some(), error)),
                    fault if Instant::now() >= deadline => {
                        return Err(self.give_up(doubt.is_some(), fault.into_error()));
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
        // The doubtful commit may still take the row.
        (self.id, self.last) = (random(), 0);
        StoreError::OutcomeUnknown("the connection to the database was lost during the commit")
    }

    async fn attempt(
        &mut self,
        session: &Session,
        commit: i64,
        batch: &[Job],
        doubt: &mut Option<Vec<Outcome>>,
        deadline: Instant,
    ) -> Attempt {
        let not_done = |fault: DatabaseError| {
            // Whatever is open on the connection goes with it.
            session.discard();
            Attempt::NotDone(fault)
        };
        let staged = match timeout_at(deadline, self.stage(session, commit, batch)).await {
            Ok(Ok(staged)) => staged,
            Ok(Err(error)) => match DatabaseError::classify(&error) {
                fault @ DatabaseError::ConnectionLost(_) => return not_done(fault),
                fault => {
                    return self.roll_back(session, deadline).await.map_or_else(not_done, |()| Attempt::NotDone(fault));
                }
            },
            Err(_) => return not_done(DatabaseError::ConnectionLost(SILENT.to_owned())),
        };
        let outcomes = match staged {
            Staged::Ready(outcomes) => outcomes,
            Staged::Marked => return self.look_back(session, commit, doubt, deadline).await.unwrap_or_else(not_done),
            Staged::AtOdds => {
                let again = || Attempt::NotDone(DatabaseError::Retryable("a key changed under its lock".to_owned()));
                return self.roll_back(session, deadline).await.map_or_else(not_done, |()| again());
            }
        };
        // The mark is ours: whatever was sent before has not happened, and never will.
        *doubt = None;
        let sent = Instant::now();
        match timeout_at(deadline + COMMIT_GRACE, finish(session, batch, &outcomes)).await {
            Ok(Ok(())) => {
                self.took = sent.elapsed();
                Attempt::Committed(outcomes)
            }
            Ok(Err(Some(fault))) => Attempt::NotDone(fault),
            Ok(Err(None)) | Err(_) => {
                *doubt = Some(outcomes);
                Attempt::Doubtful
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
            query(writes.has_new_users(), client, &statements.make_users, writes.new_users()),
            query(true, client, &statements.touch, writes.users()),
            query(writes.has_keys(), client, &statements.recall, writes.keys()),
            query(deletes.any(), client, &statements.delete, deletes.of_deletes()),
            query(general_deletes.any(), client, &statements.delete_general, general_deletes.of_general_deletes()),
            query(creates.any(), client, &statements.create, creates.of_creates()),
            query(general_creates.any(), client, &statements.create_general, general_creates.of_general_creates()),
        );
        // In this order, too: whatever comes after an error fails because of it.
        begun?;
        if marked? == 0 {
            return Ok(Staged::Marked);
        }
        let (new, held, known, deleted, general_deleted) = (new?, held?, known?, deleted?, general_deleted?);
        let (created, general_created) = (created?, general_created?);
        let answers = Answers { new, held, known, deleted, created, general_deleted, general_created };
        Ok(answers.outcomes(batch)?.map_or(Staged::AtOdds, Staged::Ready))
    }

    /// The mark was not what it should be: either the doubtful commit has happened, or the database was put back.
    async fn look_back(
        &self,
        session: &Session,
        commit: i64,
        doubt: &mut Option<Vec<Outcome>>,
        deadline: Instant,
    ) -> Result<Attempt, DatabaseError> {
        self.roll_back(session, deadline).await?;
        let look = async {
            session.client.batch_execute(BEGIN).await?;
            let row = session.client.query_opt(&session.statements.last_mark, &[&self.id]).await?;
            session.client.batch_execute("COMMIT").await?;
            row.map(|row| row.try_get::<_, i64>(0)).transpose()
        };
        let found = timeout_at(deadline, look).await.map_err(|_| DatabaseError::ConnectionLost(SILENT.to_owned()))?;
        let found = found.map_err(|error| DatabaseError::classify(&error))?;
        let happened = doubt.take_if(|_| found == Some(commit));
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

/// Keeps the answers under their keys and commits. An error without a fault leaves a doubt.
async fn finish(session: &Session, batch: &[Job], outcomes: &[Outcome]) -> Result<(), Option<DatabaseError>> {
    let keepings = Keepings::of(batch, outcomes);
    let (kept, committed) = join!(
        query(keepings.any(), &session.client, &session.statements.keep, keepings.values()),
        session.client.batch_execute("COMMIT"),
    );
    match (kept, committed) {
        // What follows a refused statement in a transaction does not happen, whatever is said of the commit.
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
    /// All that is left is to keep the answers and to commit.
    Ready(Vec<Outcome>),
    /// The mark says that it is not to be done.
    Marked,
    /// Its statements found different keys, though nobody else can have changed them.
    AtOdds,
}

/// What one attempt came to.
enum Attempt {
    /// By this attempt, or by the one before it after all.
    Committed(Vec<Outcome>),
    /// The commit was sent, and no answer came.
    Doubtful,
    /// The row of the writer holds an earlier commit than it must.
    Rewound,
    NotDone(DatabaseError),
}

/// Takes what has queued up. Where commits are slow (a slow disk, a standby far away), callers who were answered together
/// are given a moment to come back together: otherwise two halves of them would take turns, and each pay for a commit.
struct Gathering {
    jobs: mpsc::Receiver<Job>,
    /// How many were answered by the last commit.
    answered: usize,
    /// How long those that have queued up wait for them.
    pause: Duration,
}

impl Gathering {
    /// False when the queue is closed and empty.
    async fn gather(&mut self, batch: &mut Vec<Job>) -> bool {
        if self.jobs.recv_many(batch, BATCH_MAX).await == 0 {
            return false;
        }
        if !self.pause.is_zero() {
            self.wait_for_company(batch).await;
        }
        if batch.extract_if(.., |job| matches!(job, Job::Stop)).count() > 0 {
            self.jobs.close();
        }
        true
    }

    async fn wait_for_company(&mut self, batch: &mut Vec<Job>) {
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

/// Takes the notes of uses out of a batch: tokens, and when.
fn take_notes(batch: &mut Vec<Job>) -> (Vec<i64>, Vec<i64>) {
    let notes = batch.extract_if(.., |job| matches!(job, Job::NoteUse { .. }));
    notes
        .filter_map(
            |job| if let Job::NoteUse { token, day } = job { Some((token.get(), day.as_second())) } else { None },
        )
        .unzip()
}

/// The rows of a statement, which is sent if it is wanted.
async fn query<const N: usize>(
    wanted: bool,
    client: &Client,
    statement: &Statement,
    values: [&(dyn ToSql + Sync); N],
) -> Result<Vec<Row>, Error> {
    if wanted { client.query(statement, &values).await } else { Ok(Vec::new()) }
}
