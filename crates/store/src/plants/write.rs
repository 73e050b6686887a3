//! Group commit: a bounded queue of writes that a writer drains into one transaction. After the commit the writer replies to
//! each write individually.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

use super::keys::{ClaimedKey, IdempotencyKey, StoredError};
use crate::error::StoreError;
use crate::reserve::{Reserve, ReservedPlace};
use plantstore_model::plant::{NewPlant, PlantId};
use plantstore_model::token::TokenId;
use plantstore_model::user::{UserId, UserName};
use plantstore_telemetry::metrics::{Counter, Exposition, Histogram, SIZES, TIMES};
use plantstore_telemetry::spans;

/// Maximum number of writes in one commit. It bounds how long the first write waits for the last.
pub(crate) const BATCH_MAX: usize = 512;

/// The user who writes, and the owner of the plants, who are usually the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteContext {
    pub user: UserId,
    pub owner: UserId,
}

/// A write of one plant.
#[derive(Clone, Debug)]
pub enum PlantWrite {
    Create(NewPlant),
    /// Replaces name and tag of a plant that exists. The plant stays in lists that are being read.
    Replace(NewPlant),
    Delete(PlantId),
}

impl PlantWrite {
    pub(crate) fn id(&self) -> PlantId {
        match self {
            Self::Create(plant) | Self::Replace(plant) => plant.id,
            Self::Delete(id) => *id,
        }
    }
}

/// Outcome of a write of a plant, or of storing a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The plant was created, replaced or deleted.
    Done,
    /// Nothing was changed: the owner already has the plant to create, or does not have the plant to replace or delete.
    Rejected,
    /// The user was deleted meanwhile.
    NoUser,
    /// The owner, who is another user, was deleted meanwhile.
    NoOwner,
    /// Nothing was changed: the same request was executed before with this idempotency key, and failed with this error. The
    /// response to a success is rebuilt from the repeated request.
    Replayed(Option<StoredError>),
    /// Nothing was changed: the idempotency key was used for a different request.
    KeyReused,
}

impl WriteOutcome {
    /// Returns the outcome of a request with this key, which is stored already. A stored success has no message.
    pub(crate) fn of_stored(key: &IdempotencyKey, fingerprint: &[u8], outcome: i32, message: Option<String>) -> Self {
        if fingerprint == key.fingerprint {
            Self::Replayed(message.map(|message| StoredError { code: outcome, message }))
        } else {
            Self::KeyReused
        }
    }
}

pub(crate) enum Job {
    Write {
        context: WriteContext,
        write: PlantWrite,
        key: Option<Box<ClaimedKey>>,
        reply: Reply,
    },
    /// Stores the rejection of an invalid request under its idempotency key.
    StoreRejection {
        user: UserId,
        key: Box<ClaimedKey>,
        reply: Reply,
    },
    CreateUser {
        name: UserName,
        now: Timestamp,
        reply: Reply,
    },
    RecordTokenUse {
        token: TokenId,
        day: Timestamp,
    },
    /// Stops the writer. Queued jobs are executed, jobs submitted later are rejected.
    Stop,
}

impl Job {
    /// Returns the idempotency key of the request, if it has one, and its user.
    fn claimed_key(&self) -> Option<(UserId, &ClaimedKey)> {
        match self {
            Self::Write { context, key, .. } => key.as_deref().map(|key| (context.user, key)),
            Self::StoreRejection { user, key, .. } => Some((*user, key)),
            Self::CreateUser { .. } | Self::RecordTokenUse { .. } | Self::Stop => None,
        }
    }

    /// Returns the idempotency key of the request, if it has one, and its user.
    pub(crate) fn key(&self) -> Option<(UserId, &IdempotencyKey)> {
        self.claimed_key().map(|(user, claimed)| (user, &claimed.key))
    }

    /// Begins the job, unless it has begun already. Returns false if the caller has abandoned it: the caller then knows that
    /// nothing was changed.
    pub(crate) fn begin(&self) -> bool {
        match self {
            Self::Write { reply, .. } | Self::StoreRejection { reply, .. } | Self::CreateUser { reply, .. } => {
                reply.start.begin()
            }
            Self::RecordTokenUse { .. } | Self::Stop => true,
        }
    }

    /// Returns the reply and releases the key, so that a caller with a reply can use it again.
    fn into_reply(self) -> Option<Reply> {
        match self {
            Self::Write { reply, .. } | Self::StoreRejection { reply, .. } | Self::CreateUser { reply, .. } => {
                Some(reply)
            }
            Self::RecordTokenUse { .. } | Self::Stop => None,
        }
    }

    /// Returns the outcome to store under the idempotency key: none for a deleted user or for a key that is stored already.
    pub(crate) fn key_outcome(&self, outcome: &JobOutcome) -> Option<KeyOutcome<'_>> {
        let (user, key) = self.key()?;
        match outcome {
            JobOutcome::Write(WriteOutcome::Done) => {
                Some(KeyOutcome { user, key, outcome: key.success_status, message: None })
            }
            JobOutcome::Write(WriteOutcome::Rejected) => {
                let StoredError { code, message } = &key.rejection;
                Some(KeyOutcome { user, key, outcome: *code, message: Some(message) })
            }
            JobOutcome::Write(_) | JobOutcome::User(_) | JobOutcome::Nothing => None,
        }
    }
}

/// A key with the outcome to store under it. A success has no message.
pub(crate) struct KeyOutcome<'a> {
    pub(crate) user: UserId,
    pub(crate) key: &'a IdempotencyKey,
    pub(crate) outcome: i32,
    pub(crate) message: Option<&'a str>,
}

/// Sends the result of a job to its caller, who waits for a limited time.
pub(crate) struct Reply {
    sender: oneshot::Sender<Result<JobOutcome, StoreError>>,
    start: Arc<JobStart>,
    _place: Option<ReservedPlace>,
}

/// The start of a job, unset while the job waits.
#[derive(Default)]
struct JobStart(OnceLock<Start>);

enum Start {
    Begun(Instant),
    /// The caller has stopped waiting. The job never begins.
    Abandoned,
}

impl JobStart {
    /// Returns true if the job begins, or has begun already.
    fn begin(&self) -> bool {
        matches!(self.0.get_or_init(|| Start::Begun(Instant::now())), Start::Begun(_))
    }

    /// Returns true if the job is abandoned; false if it has begun.
    fn abandon(&self) -> bool {
        matches!(self.0.get_or_init(|| Start::Abandoned), Start::Abandoned)
    }

    /// Records spans for the waiting time and the commit of a job that was queued at `queued`.
    fn record_spans(&self, queued: Instant) {
        if let Some(Start::Begun(begun)) = self.0.get() {
            spans::record("wait for the writer", queued, *begun);
            spans::record("commit", *begun, Instant::now());
        }
    }
}

/// Outcome of a job of a committed batch.
#[derive(Clone)]
pub(crate) enum JobOutcome {
    Write(WriteOutcome),
    User(UserId),
    Nothing,
}

/// Outcomes of the jobs of a batch, or the reason why it was not committed.
pub(crate) type BatchResult = Result<Vec<JobOutcome>, StoreError>;

impl JobOutcome {
    /// Returns the outcome of storing a rejection, which is not stored for a deleted user.
    pub(crate) fn of_rejection(has_user: bool) -> Self {
        Self::Write(if has_user { WriteOutcome::Rejected } else { WriteOutcome::NoUser })
    }
}

/// Returns true if one of the jobs may have made the whole batch fail, so that each is retried alone. An unavailable store
/// fails all of them, and retrying one by one would only delay the last.
pub(crate) fn is_worth_retrying_one_by_one(result: &BatchResult, jobs: usize) -> bool {
    jobs > 1 && matches!(result, Err(StoreError::Full(_) | StoreError::Internal(_)))
}

pub(crate) fn reply_all(batch: &mut Vec<Job>, result: BatchResult) {
    match result {
        Ok(outcomes) => batch.drain(..).zip(outcomes).for_each(|(job, outcome)| reply(job, Ok(outcome))),
        Err(error) => batch.drain(..).for_each(|job| reply(job, Err(error.clone()))),
    }
}

/// Executes a batch with `commit`, in one transaction, and returns the result to reply to the jobs that are left in it. `commit`
/// removes abandoned jobs from the batch, and jobs that were retried one by one have their reply.
pub(crate) fn execute_batch(batch: &mut Vec<Job>, mut commit: impl FnMut(&mut Vec<Job>) -> BatchResult) -> BatchResult {
    let result = commit(batch);
    if !is_worth_retrying_one_by_one(&result, batch.len()) {
        return result;
    }
    for job in batch.drain(..) {
        let mut alone = vec![job];
        let result = commit(&mut alone);
        reply_all(&mut alone, result);
    }
    Ok(Vec::new())
}

pub(crate) fn reply(job: Job, result: Result<JobOutcome, StoreError>) {
    if let (Job::RecordTokenUse { .. }, Err(error)) = (&job, &result) {
        tracing::debug!(%error, "token use not recorded");
    }
    if let Some(reply) = job.into_reply() {
        // Fails if the client has disconnected.
        let _ = reply.sender.send(result);
    }
}

/// The callers' side of the queue.
#[derive(Clone)]
pub(crate) struct WriteQueue {
    sender: mpsc::Sender<Job>,
    /// The last places of the queue. They are shared fairly, so that no user keeps out the writes of others.
    reserve: Arc<Reserve>,
    timeouts: Timeouts,
}

/// Timeouts of a caller, from the time its job is queued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// For the job to begin.
    pub(crate) begin: Duration,
    /// For the outcome of a job that has begun; at least `begin`.
    pub(crate) outcome: Duration,
}

impl Timeouts {
    pub(crate) const fn both(timeout: Duration) -> Self {
        Self { begin: timeout, outcome: timeout }
    }
}

impl WriteQueue {
    /// Returns a queue of `capacity` jobs, and the writer's side of it.
    pub(crate) fn new(capacity: usize, timeouts: Timeouts) -> (Self, mpsc::Receiver<Job>) {
        let (sender, receiver) = mpsc::channel(capacity);
        (Self { sender, reserve: Reserve::part_of(capacity), timeouts }, receiver)
    }

    /// Queues the use of a token, or drops it if the queue is full.
    pub(crate) fn record_token_use(&self, token: TokenId, day: Timestamp) {
        let _ = self.submit(Job::RecordTokenUse { token, day });
    }

    pub(crate) fn write_metrics(queues: &[&Self], exposition: &mut Exposition) {
        let capacity: usize = queues.iter().map(|queue| queue.sender.max_capacity()).sum();
        let free: usize = queues.iter().map(|queue| queue.sender.capacity()).sum();
        exposition.gauge("plantstore_write_queue_depth", "Writes in the write queue.").sample(&[], capacity - free);
        exposition
            .gauge("plantstore_write_queue_capacity", "Maximum length of the write queue (--write-queue).")
            .sample(&[], capacity);
    }

    /// Returns true if the queue has a place for a write of this user.
    pub(crate) fn has_capacity(&self, user: UserId) -> bool {
        let free = self.sender.capacity();
        free > self.reserve.places() || (free > 0 && self.reserve.is_open_to(user))
    }

    /// Stops the writer. Waits for capacity in the queue, so that stopping is never rejected.
    pub(crate) async fn stop(&self) {
        // Fails if the writer has stopped already.
        let _ = self.sender.send(Job::Stop).await;
    }

    fn submit(&self, job: Job) -> Result<(), StoreError> {
        self.sender.try_send(job).map_err(|rejected| match rejected {
            mpsc::error::TrySendError::Full(_) => StoreError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => StoreError::Unavailable("the writer has stopped".to_owned()),
        })
    }

    pub(crate) async fn write(&self, user: UserId, job: impl FnOnce(Reply) -> Job) -> Result<WriteOutcome, StoreError> {
        let JobOutcome::Write(outcome) = self.execute(Some(user), job).await? else {
            return Err(StoreError::Internal("a write without outcome".to_owned()));
        };
        Ok(outcome)
    }

    /// Returns the user of this name, who is created if there is none.
    pub(crate) async fn create_user(&self, name: UserName, now: Timestamp) -> Result<UserId, StoreError> {
        let JobOutcome::User(user) = self.execute(None, |reply| Job::CreateUser { name, now, reply }).await? else {
            return Err(StoreError::Internal("the new user is missing".to_owned()));
        };
        Ok(user)
    }

    /// Submits a job for a request of this user, or of a user to be created, and waits for its outcome.
    async fn execute(&self, user: Option<UserId>, job: impl FnOnce(Reply) -> Job) -> Result<JobOutcome, StoreError> {
        let place = match user {
            Some(user) if self.sender.capacity() <= self.reserve.places() => {
                Some(self.reserve.take(user).ok_or(StoreError::Overloaded)?)
            }
            _ => None,
        };
        let (sender, mut receiver) = oneshot::channel();
        let queued = spans::begin().start();
        let start = Arc::<JobStart>::default();
        let job = job(Reply { sender, start: Arc::clone(&start), _place: place });
        let claim = job.claimed_key().map(|(_, key)| key.claim.clone());
        self.submit(job)?;
        let Timeouts { begin, outcome } = self.timeouts;
        let mut result = tokio::time::timeout(begin, &mut receiver).await;
        if result.is_err() {
            // An abandoned job never begins: the key is free for a retry, although the job is still queued.
            if start.abandon() {
                if let Some(claim) = claim {
                    claim.release();
                }
                return Err(StoreError::Unavailable("the writer did not begin it in time".to_owned()));
            }
            result = tokio::time::timeout(outcome.saturating_sub(begin), receiver).await;
        }
        if let Some(queued) = queued {
            start.record_spans(queued);
        }
        match result {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::OutcomeUnknown("the writer ended without a reply")),
            Err(_) => Err(StoreError::OutcomeUnknown("the writer did not reply in time")),
        }
    }
}

/// Metrics of commits.
pub(crate) struct WriteMetrics {
    batches: Histogram,
    commits: Histogram,
    committed: Counter,
    failed: Counter,
    unknown: Counter,
}

impl Default for WriteMetrics {
    fn default() -> Self {
        Self {
            batches: Histogram::new(&SIZES),
            commits: Histogram::new(&TIMES),
            committed: Counter::default(),
            failed: Counter::default(),
            unknown: Counter::default(),
        }
    }
}

impl WriteMetrics {
    pub(crate) fn committed<T>(&self, writes: usize, took: Duration, result: &Result<T, StoreError>) {
        self.batches.observe(writes as u64);
        self.commits.time(took);
        match result {
            Ok(_) => self.committed.count(),
            Err(StoreError::OutcomeUnknown(_)) => self.unknown.count(),
            Err(_) => self.failed.count(),
        }
    }

    pub(crate) fn write(&self, exposition: &mut Exposition) {
        exposition.histogram("plantstore_write_batch_size", "Writes per commit.").distribution(&[], &self.batches);
        let help = "Time to commit a batch of writes, including waits for a lock or a connection and retries.";
        exposition.histogram("plantstore_commit_duration_seconds", help).distribution(&[], &self.commits);
        exposition
            .counter("plantstore_commits_total", "Commits, by outcome.")
            .sample(&[("outcome", "ok".into())], self.committed.get())
            .sample(&[("outcome", "failed".into())], self.failed.get())
            .sample(&[("outcome", "unknown".into())], self.unknown.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plants::InFlightKeys;

    const ADA: UserId = UserId::new(1);

    fn delete(id: i64, key: Option<Box<ClaimedKey>>) -> impl FnOnce(Reply) -> Job {
        let context = WriteContext { user: ADA, owner: ADA };
        move |reply| Job::Write { context, write: PlantWrite::Delete(PlantId::new(id)), key, reply }
    }

    #[tokio::test]
    async fn abandoned_write_never_begins_and_leaves_its_key_free_for_a_retry() {
        let (queue, mut jobs) = WriteQueue::new(2, Timeouts::both(Duration::from_millis(20)));
        let keys = InFlightKeys::default();
        let claim = || {
            let rejection = StoredError { code: 40400, message: String::new() };
            keys.claim(ADA, IdempotencyKey { hash: [1; 32], fingerprint: [2; 32], success_status: 204, rejection })
        };
        let key = claim().ok();
        assert!(matches!(queue.write(ADA, delete(1, key)).await, Err(StoreError::Unavailable(_))));
        let claimed = claim().expect("a free key");
        let abandoned = jobs.try_recv().expect("the job");
        assert!(!abandoned.begin());
        drop(abandoned);
        assert!(claim().is_err(), "the end of an abandoned job does not release the key of another");
        let begin = async {
            let job = jobs.recv().await.expect("the job");
            assert!(job.begin());
            std::future::pending::<()>().await;
            drop(job);
        };
        let write = queue.write(ADA, delete(2, Some(claimed)));
        let unknown = tokio::select! { result = write => result, () = begin => unreachable!() };
        assert!(matches!(unknown, Err(StoreError::OutcomeUnknown(_))), "{unknown:?}");
    }
}
