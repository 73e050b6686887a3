//! Group commit: a bounded queue of writes that a writer drains into one transaction. After the commit the writer replies to
//! each write individually.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

use crate::error::StoreError;
use crate::idempotency::{Claim, ClaimedKey, IdempotencyKey, KnownKey, WriteResult};
use crate::plants::{CreateOutcome, DeleteOutcome, WriteContext};
use crate::reserve::{Reserve, ReservedPlace};
use plantstore_model::plant::{NewPlant, PlantId};
use plantstore_model::token::TokenId;
use plantstore_model::user::{UserId, UserName};
use plantstore_telemetry::metrics::Exposition;
use plantstore_telemetry::spans;

/// Maximum number of writes in one commit. It bounds how long the first write waits for the last.
pub(crate) const BATCH_MAX: usize = 512;

/// A queued write.
pub(crate) enum Job {
    Create {
        context: WriteContext,
        plant: NewPlant,
        key: Option<Box<ClaimedKey>>,
        reply: Reply<WriteResult<CreateOutcome>>,
    },
    Delete {
        context: WriteContext,
        id: PlantId,
        key: Option<Box<ClaimedKey>>,
        reply: Reply<WriteResult<DeleteOutcome>>,
    },
    /// Stores the rejection of an invalid request under its idempotency key.
    StoreRejection {
        user: UserId,
        key: Box<ClaimedKey>,
        reply: Reply<WriteResult<()>>,
    },
    CreateUser {
        name: UserName,
        now: Timestamp,
        reply: Reply<UserId>,
    },
    RecordTokenUse {
        token: TokenId,
        day: Timestamp,
    },
    /// Stops the writer. Queued jobs are executed, jobs submitted later are rejected.
    Stop,
}

impl Job {
    /// Returns the claim on the idempotency key.
    fn claim(&self) -> Option<Weak<Claim>> {
        match self {
            Self::Create { key, .. } | Self::Delete { key, .. } => key.as_ref().map(|key| key.claim()),
            Self::StoreRejection { key, .. } => Some(key.claim()),
            Self::CreateUser { .. } | Self::RecordTokenUse { .. } | Self::Stop => None,
        }
    }

    /// Begins the job, unless it has begun already. Returns false if the caller has abandoned it: the caller then knows that
    /// nothing was changed.
    pub(crate) fn begin(&self) -> bool {
        match self {
            Self::Create { reply, .. } => reply.begin(),
            Self::Delete { reply, .. } => reply.begin(),
            Self::StoreRejection { reply, .. } => reply.begin(),
            Self::CreateUser { reply, .. } => reply.begin(),
            Self::RecordTokenUse { .. } | Self::Stop => true,
        }
    }

    /// Returns the idempotency key of the request, if it has one, and its user.
    pub(crate) fn key(&self) -> Option<(UserId, &IdempotencyKey)> {
        match self {
            Self::Create { context, key, .. } | Self::Delete { context, key, .. } => {
                key.as_ref().map(|claimed| (context.user, &claimed.key))
            }
            Self::StoreRejection { user, key, .. } => Some((*user, &key.key)),
            Self::CreateUser { .. } | Self::RecordTokenUse { .. } | Self::Stop => None,
        }
    }

    /// Returns the outcome to store under the idempotency key: none for a deleted user or for a key that is stored already.
    pub(crate) fn key_outcome(&self, outcome: &JobOutcome) -> Option<KeyOutcome<'_>> {
        let (user, key) = self.key()?;
        let is_success = match outcome {
            JobOutcome::Create(CreateOutcome::Created) | JobOutcome::Delete(DeleteOutcome::Deleted) => true,
            JobOutcome::Create(CreateOutcome::Duplicate)
            | JobOutcome::Delete(DeleteOutcome::NoPlant)
            | JobOutcome::Rejected => false,
            JobOutcome::Create(CreateOutcome::NoUser | CreateOutcome::NoOwner)
            | JobOutcome::Delete(DeleteOutcome::NoUser | DeleteOutcome::NoOwner)
            | JobOutcome::KnownKey(_)
            | JobOutcome::User(_)
            | JobOutcome::Nothing => return None,
        };
        let rejection = &key.rejection;
        let (outcome, message) =
            if is_success { (key.success_status, None) } else { (rejection.code, Some(&*rejection.message)) };
        Some(KeyOutcome { user, key, outcome, message })
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
pub(crate) struct Reply<T> {
    sender: oneshot::Sender<Result<T, StoreError>>,
    state: Arc<JobState>,
    _place: Option<ReservedPlace>,
}

/// State of a job: waiting, begun or abandoned.
#[derive(Default)]
struct JobState {
    /// One of the constants below. Changes once, from `WAITING`.
    state: AtomicU8,
    /// Time when the writer began the job, if the caller records spans.
    begun: Option<OnceLock<Instant>>,
}

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const ABANDONED: u8 = 2;

impl JobState {
    /// Changes to `state`, unless the other side changed it first. Returns true if `state` is the state now.
    fn change_to(&self, state: u8) -> bool {
        let moved = self.state.compare_exchange(WAITING, state, Ordering::AcqRel, Ordering::Acquire);
        moved.is_ok() || moved == Err(state)
    }

    /// Records spans for the waiting time and the commit of a job that was queued at `queued`.
    fn record_spans(&self, queued: Instant) {
        if let Some(begun) = self.begun.as_ref().and_then(OnceLock::get) {
            spans::record("wait for the writer", queued, *begun);
            spans::record("commit", *begun, Instant::now());
        }
    }
}

impl<T> Reply<T> {
    fn begin(&self) -> bool {
        let begins = self.state.change_to(BEGUN);
        if let Some(begun) = self.state.begun.as_ref().filter(|_| begins) {
            let _ = begun.set(Instant::now());
        }
        begins
    }

    fn send(self, key: Option<Box<ClaimedKey>>, result: Result<T, StoreError>) {
        // First, so that a caller with a reply finds the key released.
        drop(key);
        // Fails if the client has disconnected.
        let _ = self.sender.send(result);
    }
}

/// Outcome of a job of a committed batch.
#[derive(Clone)]
pub(crate) enum JobOutcome {
    Create(CreateOutcome),
    Delete(DeleteOutcome),
    Rejected,
    User(UserId),
    /// Nothing was changed, because the idempotency key is stored already.
    KnownKey(KnownKey),
    Nothing,
}

/// Returns true if one of the jobs may have made the whole batch fail, so that each is retried alone. An unavailable store
/// fails all of them, and retrying one by one would only delay the last.
pub(crate) fn is_worth_retrying_one_by_one(result: &Result<Vec<JobOutcome>, StoreError>, jobs: usize) -> bool {
    jobs > 1 && matches!(result, Err(StoreError::Full(_) | StoreError::Internal(_)))
}

/// Replies to all jobs of a batch with its result.
pub(crate) fn reply_all(batch: &mut Vec<Job>, result: Result<Vec<JobOutcome>, StoreError>) {
    match result {
        Ok(outcomes) => batch.drain(..).zip(outcomes).for_each(|(job, outcome)| reply(job, Ok(outcome))),
        Err(error) => batch.drain(..).for_each(|job| reply(job, Err(error.clone()))),
    }
}

/// Executes a batch with `commit`, in one transaction, and replies to all jobs. `commit` removes abandoned jobs from the
/// batch.
pub(crate) fn execute_batch(
    batch: &mut Vec<Job>,
    mut commit: impl FnMut(&mut Vec<Job>) -> Result<Vec<JobOutcome>, StoreError>,
) {
    let result = commit(batch);
    if !is_worth_retrying_one_by_one(&result, batch.len()) {
        return reply_all(batch, result);
    }
    for job in batch.drain(..) {
        let mut alone = vec![job];
        let result = commit(&mut alone);
        reply_all(&mut alone, result);
    }
}

pub(crate) fn reply(job: Job, outcome: Result<JobOutcome, StoreError>) {
    match (job, outcome) {
        (Job::Create { key, reply, .. }, Ok(JobOutcome::Create(creation))) => {
            reply.send(key, Ok(WriteResult::Executed(creation)));
        }
        (Job::Create { key, reply, .. }, Ok(JobOutcome::KnownKey(known))) => {
            reply.send(key, Ok(WriteResult::KnownKey(known)));
        }
        (Job::Create { key, reply, .. }, Err(error)) => reply.send(key, Err(error)),
        (Job::Delete { key, reply, .. }, Ok(JobOutcome::Delete(deletion))) => {
            reply.send(key, Ok(WriteResult::Executed(deletion)));
        }
        (Job::Delete { key, reply, .. }, Ok(JobOutcome::KnownKey(known))) => {
            reply.send(key, Ok(WriteResult::KnownKey(known)));
        }
        (Job::Delete { key, reply, .. }, Err(error)) => reply.send(key, Err(error)),
        (Job::StoreRejection { key, reply, .. }, Ok(JobOutcome::KnownKey(known))) => {
            reply.send(Some(key), Ok(WriteResult::KnownKey(known)));
        }
        (Job::StoreRejection { key, reply, .. }, Ok(_)) => reply.send(Some(key), Ok(WriteResult::Executed(()))),
        (Job::StoreRejection { key, reply, .. }, Err(error)) => reply.send(Some(key), Err(error)),
        (Job::CreateUser { reply, .. }, Ok(JobOutcome::User(user))) => reply.send(None, Ok(user)),
        (Job::CreateUser { reply, .. }, Err(error)) => reply.send(None, Err(error)),
        (Job::RecordTokenUse { .. }, Err(error)) => tracing::debug!(%error, "token use not recorded"),
        (Job::Stop, Err(_)) | (_, Ok(_)) => {}
    }
}

/// The callers' side of the queue.
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

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        let (capacity, free) = (self.sender.max_capacity(), self.sender.capacity());
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

    /// Returns true if the writer has stopped.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
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

    /// Submits a job for a request of this user, or of a user to be created, and waits for its outcome.
    pub(crate) async fn execute<T>(
        &self,
        user: Option<UserId>,
        job: impl FnOnce(Reply<T>) -> Job,
    ) -> Result<T, StoreError> {
        let place = match user {
            Some(user) if self.sender.capacity() <= self.reserve.places() => {
                Some(self.reserve.take(user).ok_or(StoreError::Overloaded)?)
            }
            _ => None,
        };
        let (sender, mut receiver) = oneshot::channel();
        let queued = spans::begin().start();
        let state = Arc::new(JobState { state: AtomicU8::new(WAITING), begun: queued.map(|_| OnceLock::new()) });
        let job = job(Reply { sender, state: Arc::clone(&state), _place: place });
        let claim = job.claim();
        self.submit(job)?;
        let Timeouts { begin, outcome } = self.timeouts;
        let mut result = tokio::time::timeout(begin, &mut receiver).await;
        if result.is_err() {
            // An abandoned job never begins: the key is free for a retry, although the job is still queued.
            if state.change_to(ABANDONED) {
                if let Some(claim) = claim.and_then(|claim| claim.upgrade()) {
                    claim.release();
                }
                return Err(StoreError::Unavailable("the writer did not begin it in time".to_owned()));
            }
            result = tokio::time::timeout(outcome.saturating_sub(begin), receiver).await;
        }
        if let Some(queued) = queued {
            state.record_spans(queued);
        }
        match result {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::OutcomeUnknown("the writer ended without a reply")),
            Err(_) => Err(StoreError::OutcomeUnknown("the writer did not reply in time")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::{InFlightKeys, StoredError};

    const TIMEOUT: Duration = Duration::from_secs(30);
    const ADA: WriteContext = WriteContext { user: UserId::new(1), owner: UserId::new(1) };

    fn delete(id: i64) -> (Job, oneshot::Receiver<Result<WriteResult<DeleteOutcome>, StoreError>>) {
        let (sender, receiver) = oneshot::channel();
        let reply = Reply { sender, state: Arc::default(), _place: None };
        (Job::Delete { context: ADA, id: PlantId::new(id), key: None, reply }, receiver)
    }

    async fn delete_through(queue: &WriteQueue, id: i64) -> Result<WriteResult<DeleteOutcome>, StoreError> {
        queue
            .execute(Some(ADA.user), |reply| Job::Delete { context: ADA, id: PlantId::new(id), key: None, reply })
            .await
    }

    /// Executes three deletes; every batch that contains id 2 fails with `error`.
    fn execute_three(error: &StoreError) -> (usize, Vec<Result<WriteResult<DeleteOutcome>, StoreError>>) {
        let (mut batch, replies): (Vec<_>, Vec<_>) = (1..=3).map(delete).unzip();
        let mut commits = 0;
        execute_batch(&mut batch, |jobs| {
            commits += 1;
            let fails = jobs.iter().any(|job| matches!(job, Job::Delete { id, .. } if id.get() == 2));
            if fails { Err(error.clone()) } else { Ok(vec![JobOutcome::Delete(DeleteOutcome::Deleted); jobs.len()]) }
        });
        (commits, replies.into_iter().map(|mut reply| reply.try_recv().expect("a reply")).collect())
    }

    #[test]
    fn failing_job_does_not_fail_the_rest_of_its_batch() {
        let (commits, replies) = execute_three(&StoreError::Internal("odd".to_owned()));
        assert_eq!(commits, 4);
        let deleted =
            |reply: &Result<_, StoreError>| matches!(reply, Ok(WriteResult::Executed(DeleteOutcome::Deleted)));
        assert!(deleted(&replies[0]) && matches!(replies[1], Err(StoreError::Internal(_))) && deleted(&replies[2]));
    }

    #[test]
    fn jobs_are_not_retried_one_by_one_on_an_unavailable_store() {
        let (commits, replies) = execute_three(&StoreError::Unavailable("locked".to_owned()));
        assert_eq!(commits, 1);
        assert!(replies.iter().all(|reply| matches!(reply, Err(StoreError::Unavailable(_)))));
    }

    #[tokio::test]
    async fn outcome_is_unknown_if_the_writer_drops_the_job() {
        let (queue, mut jobs) = WriteQueue::new(1, Timeouts::both(TIMEOUT));
        let drop_job = async { drop(jobs.recv().await) };
        let (result, ()) = tokio::join!(delete_through(&queue, 1), drop_job);
        assert!(matches!(result, Err(StoreError::OutcomeUnknown(_))), "{result:?}");
        drop(jobs);
        let rejected = delete_through(&queue, 1).await;
        assert!(matches!(rejected, Err(StoreError::Unavailable(_))), "{rejected:?}");
    }

    #[tokio::test]
    async fn abandoned_write_leaves_its_key_free_for_a_retry() {
        let (queue, jobs) = WriteQueue::new(2, Timeouts::both(Duration::from_millis(20)));
        let keys = InFlightKeys::default();
        let key = || {
            let rejection = StoredError { code: 40400, message: String::new() };
            IdempotencyKey { hash: [1; 32], fingerprint: [2; 32], success_status: 204, rejection }
        };
        for _ in 0..2 {
            let key = Some(keys.claim(ADA.user, key()).expect("a free key"));
            let rejected = queue
                .execute(Some(ADA.user), |reply| Job::Delete { context: ADA, id: PlantId::new(1), key, reply })
                .await;
            assert!(matches!(rejected, Err(StoreError::Unavailable(_))), "{rejected:?}");
        }
        let claimed = keys.claim(ADA.user, key()).expect("a free key");
        drop(jobs);
        assert!(
            keys.claim(ADA.user, key()).is_err(),
            "the end of an abandoned job does not release the key of another"
        );
        drop(claimed);
    }

    #[tokio::test]
    async fn abandoned_write_never_begins() {
        let (queue, mut jobs) = WriteQueue::new(2, Timeouts::both(Duration::from_millis(20)));
        let rejected = delete_through(&queue, 1).await;
        assert!(matches!(rejected, Err(StoreError::Unavailable(_))), "{rejected:?}");
        assert!(!jobs.try_recv().expect("the job").begin());
        let begin = async {
            let job = jobs.recv().await.expect("the job");
            assert!(job.begin());
            std::future::pending::<()>().await;
            drop(job);
        };
        let deletion = delete_through(&queue, 2);
        let unknown = tokio::select! { result = deletion => result, () = begin => unreachable!() };
        assert!(matches!(unknown, Err(StoreError::OutcomeUnknown(_))), "{unknown:?}");
    }
}
