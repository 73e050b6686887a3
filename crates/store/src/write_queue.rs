//! Group commit: a bounded queue of writes that a writer drains into one transaction. The writer replies to each write after
//! the commit, and to each on its own.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

use crate::error::StoreError;
use crate::idempotency::{Claim, ClaimedKey, IdempotencyKey, KnownKey, WriteResult};
use crate::plants::{Actor, CreateOutcome, DeleteOutcome};
use plantstore_model::plant::{NewPlant, PlantId};
use plantstore_model::token::TokenId;
use plantstore_model::user::{UserId, UserName};
use plantstore_telemetry::metrics::Page;
use plantstore_telemetry::spans;

/// Limit of writes that share one commit: bounds how long the first of them waits for the last.
pub(crate) const BATCH_MAX: usize = 512;

/// One write that waits for its commit.
pub(crate) enum Job {
    Create {
        actor: Actor,
        plant: NewPlant,
        key: Option<Box<ClaimedKey>>,
        reply: Reply<WriteResult<CreateOutcome>>,
    },
    Delete {
        actor: Actor,
        id: PlantId,
        key: Option<Box<ClaimedKey>>,
        reply: Reply<WriteResult<DeleteOutcome>>,
    },
    /// Of a request that is rejected whatever the store holds: all there is to do is to store that under its key.
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
    /// The last: what came before it is still done, what comes after it is rejected.
    Stop,
}

impl Job {
    /// Returns the claim on the request's key.
    fn claim(&self) -> Option<Weak<Claim>> {
        match self {
            Self::Create { key, .. } | Self::Delete { key, .. } => key.as_ref().map(|key| key.claim()),
            Self::StoreRejection { key, .. } => Some(key.claim()),
            Self::CreateUser { .. } | Self::RecordTokenUse { .. } | Self::Stop => None,
        }
    }

    /// Begins the job, unless it has begun already; false when its caller has stopped waiting, and so knows that nothing
    /// was done.
    pub(crate) fn begin(&self) -> bool {
        match self {
            Self::Create { reply, .. } => reply.begin(),
            Self::Delete { reply, .. } => reply.begin(),
            Self::StoreRejection { reply, .. } => reply.begin(),
            Self::CreateUser { reply, .. } => reply.begin(),
            Self::RecordTokenUse { .. } | Self::Stop => true,
        }
    }

    /// Returns the key of the request, if it has one, and its user.
    pub(crate) fn key(&self) -> Option<(UserId, &IdempotencyKey)> {
        match self {
            Self::Create { actor, key, .. } | Self::Delete { actor, key, .. } => {
                key.as_ref().map(|claimed| (actor.user, &claimed.key))
            }
            Self::StoreRejection { user, key, .. } => Some((*user, &key.key)),
            Self::CreateUser { .. } | Self::RecordTokenUse { .. } | Self::Stop => None,
        }
    }

    /// Returns what is to be stored under its key with this outcome. Nothing is stored for users who are gone, and what was
    /// known before stays as it is.
    pub(crate) fn key_outcome(&self, outcome: &Outcome) -> Option<KeyOutcome<'_>> {
        let (user, key) = self.key()?;
        let done = match outcome {
            Outcome::Create(CreateOutcome::Created) | Outcome::Delete(DeleteOutcome::Deleted) => true,
            Outcome::Create(CreateOutcome::Duplicate) | Outcome::Delete(DeleteOutcome::NoPlant) | Outcome::Rejected => {
                false
            }
            Outcome::Create(CreateOutcome::NoUser | CreateOutcome::NoOwner)
            | Outcome::Delete(DeleteOutcome::NoUser | DeleteOutcome::NoOwner)
            | Outcome::KnownKey(_)
            | Outcome::User(_)
            | Outcome::Nothing => return None,
        };
        let rejection = &key.rejection;
        let (outcome, message) =
            if done { (key.success_status, None) } else { (rejection.code, Some(&*rejection.message)) };
        Some(KeyOutcome { user, key, outcome, message })
    }
}

/// A key with the outcome that is to be stored under it; a success has no message.
pub(crate) struct KeyOutcome<'a> {
    pub(crate) user: UserId,
    pub(crate) key: &'a IdempotencyKey,
    pub(crate) outcome: i32,
    pub(crate) message: Option<&'a str>,
}

/// The way back to a caller, which waits for a limited time.
pub(crate) struct Reply<T> {
    sender: oneshot::Sender<Result<T, StoreError>>,
    turn: Arc<Turn>,
}

/// The state of a write: waiting, begun or abandoned.
#[derive(Default)]
struct Turn {
    /// One of the three below; leaves the first once, for good.
    state: AtomicU8,
    /// The time when the writer began, if the caller records spans.
    begun: Option<OnceLock<Instant>>,
}

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const ABANDONED: u8 = 2;

impl Turn {
    /// Moves to another state, unless the other side came first; true if that is the state now.
    fn settle_on(&self, state: u8) -> bool {
        let moved = self.state.compare_exchange(WAITING, state, Ordering::AcqRel, Ordering::Acquire);
        moved.is_ok() || moved == Err(state)
    }

    /// Records how long a write that was queued at this moment waited for its turn and for its commit.
    fn record(&self, queued: Instant) {
        if let Some(begun) = self.begun.as_ref().and_then(OnceLock::get) {
            spans::record("wait for the writer", queued, *begun);
            spans::record("commit", *begun, Instant::now());
        }
    }
}

impl<T> Reply<T> {
    fn begin(&self) -> bool {
        let begins = self.turn.settle_on(BEGUN);
        if let Some(begun) = self.turn.begun.as_ref().filter(|_| begins) {
            let _ = begun.set(Instant::now());
        }
        begins
    }

    fn send(self, key: Option<Box<ClaimedKey>>, result: Result<T, StoreError>) {
        // First: a caller with a reply finds the key free.
        drop(key);
        // A client that has gone away does not wait for its reply.
        let _ = self.sender.send(result);
    }
}

/// Outcome of one job of a committed batch.
#[derive(Clone)]
pub(crate) enum Outcome {
    Create(CreateOutcome),
    Delete(DeleteOutcome),
    Rejected,
    User(UserId),
    /// Nothing was done, because of what its key is known for.
    KnownKey(KnownKey),
    /// There was nothing to do.
    Nothing,
}

/// Returns whether one of the jobs may be what keeps the others from being done, so that each is to be tried alone. A store that
/// cannot be used cannot be used by any of them; trying one by one would keep the last for long.
pub(crate) fn is_worth_retrying_one_by_one(result: &Result<Vec<Outcome>, StoreError>, jobs: usize) -> bool {
    jobs > 1 && matches!(result, Err(StoreError::Full(_) | StoreError::Internal(_)))
}

/// Replies to all jobs of a batch with its result.
pub(crate) fn reply_all(batch: &mut Vec<Job>, result: Result<Vec<Outcome>, StoreError>) {
    match result {
        Ok(outcomes) => batch.drain(..).zip(outcomes).for_each(|(job, outcome)| reply(job, Ok(outcome))),
        Err(error) => batch.drain(..).for_each(|job| reply(job, Err(error.clone()))),
    }
}

/// Replies to all jobs of a batch, which `commit` begins and does in one transaction, or not at all. It takes those out of the
/// batch whose callers have stopped waiting.
pub(crate) fn settle(batch: &mut Vec<Job>, mut commit: impl FnMut(&mut Vec<Job>) -> Result<Vec<Outcome>, StoreError>) {
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

pub(crate) fn reply(job: Job, outcome: Result<Outcome, StoreError>) {
    match (job, outcome) {
        (Job::Create { key, reply, .. }, Ok(Outcome::Create(creation))) => {
            reply.send(key, Ok(WriteResult::Executed(creation)));
        }
        (Job::Create { key, reply, .. }, Ok(Outcome::KnownKey(known))) => {
            reply.send(key, Ok(WriteResult::KnownKey(known)));
        }
        (Job::Create { key, reply, .. }, Err(error)) => reply.send(key, Err(error)),
        (Job::Delete { key, reply, .. }, Ok(Outcome::Delete(deletion))) => {
            reply.send(key, Ok(WriteResult::Executed(deletion)));
        }
        (Job::Delete { key, reply, .. }, Ok(Outcome::KnownKey(known))) => {
            reply.send(key, Ok(WriteResult::KnownKey(known)));
        }
        (Job::Delete { key, reply, .. }, Err(error)) => reply.send(key, Err(error)),
        (Job::StoreRejection { key, reply, .. }, Ok(Outcome::KnownKey(known))) => {
            reply.send(Some(key), Ok(WriteResult::KnownKey(known)));
        }
        (Job::StoreRejection { key, reply, .. }, Ok(_)) => reply.send(Some(key), Ok(WriteResult::Executed(()))),
        (Job::StoreRejection { key, reply, .. }, Err(error)) => reply.send(Some(key), Err(error)),
        (Job::CreateUser { reply, .. }, Ok(Outcome::User(user))) => reply.send(None, Ok(user)),
        (Job::CreateUser { reply, .. }, Err(error)) => reply.send(None, Err(error)),
        (Job::RecordTokenUse { .. }, Err(error)) => tracing::debug!(%error, "the use of a token was not noted"),
        (Job::Stop, Err(_)) | (_, Ok(_)) => {}
    }
}

/// The callers' end of the queue.
pub(crate) struct Queue {
    sender: mpsc::Sender<Job>,
    timeouts: Timeouts,
}

/// Timeouts of a caller, from the moment its write is queued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// For the write to begin.
    pub(crate) turn: Duration,
    /// For the outcome of a write that has begun; no less than that for its turn.
    pub(crate) outcome: Duration,
}

impl Timeouts {
    pub(crate) const fn both(timeout: Duration) -> Self {
        Self { turn: timeout, outcome: timeout }
    }
}

impl Queue {
    /// A queue of `capacity` writes, and the writer's end of it.
    pub(crate) fn new(capacity: usize, timeouts: Timeouts) -> (Self, mpsc::Receiver<Job>) {
        let (sender, receiver) = mpsc::channel(capacity);
        (Self { sender, timeouts }, receiver)
    }

    /// Best effort: dropped when the queue is full.
    pub(crate) fn record_token_use(&self, token: TokenId, day: Timestamp) {
        let _ = self.submit(Job::RecordTokenUse { token, day });
    }

    pub(crate) fn write_metrics(&self, page: &mut Page) {
        let (most, free) = (self.sender.max_capacity(), self.sender.capacity());
        page.gauge("plantstore_write_queue_depth", "Writes that wait for the writer.").sample(&[], most - free);
        page.gauge("plantstore_write_queue_capacity", "Writes that may wait (--write-queue).").sample(&[], most);
    }

    /// Returns whether a write that is submitted now finds a free place.
    pub(crate) fn has_capacity(&self) -> bool {
        self.sender.capacity() > 0
    }

    /// Returns whether the writer has stopped.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Waits for a place in the queue: stopping is never rejected.
    pub(crate) async fn stop(&self) {
        // Fails when the writer has stopped already.
        let _ = self.sender.send(Job::Stop).await;
    }

    fn submit(&self, job: Job) -> Result<(), StoreError> {
        self.sender.try_send(job).map_err(|rejected| match rejected {
            mpsc::error::TrySendError::Full(_) => StoreError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => StoreError::Unavailable("the writer has stopped".to_owned()),
        })
    }

    /// Submits a job and waits for its outcome.
    pub(crate) async fn execute<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, StoreError> {
        let (sender, mut receiver) = oneshot::channel();
        let queued = spans::begin().start();
        let turn = Arc::new(Turn { state: AtomicU8::new(WAITING), begun: queued.map(|_| OnceLock::new()) });
        let job = job(Reply { sender, turn: Arc::clone(&turn) });
        let claim = job.claim();
        self.submit(job)?;
        let Timeouts { turn: for_turn, outcome } = self.timeouts;
        let mut result = tokio::time::timeout(for_turn, &mut receiver).await;
        if result.is_err() {
            // A write that has not begun never will: the key is free for a retry, although the writer still has the job.
            if turn.settle_on(ABANDONED) {
                if let Some(claim) = claim.and_then(|claim| claim.upgrade()) {
                    claim.release();
                }
                return Err(StoreError::Unavailable("the writer did not come to it in time".to_owned()));
            }
            result = tokio::time::timeout(outcome.saturating_sub(for_turn), receiver).await;
        }
        if let Some(queued) = queued {
            turn.record(queued);
        }
        match result {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::OutcomeUnknown("the writer ended without an answer")),
            Err(_) => Err(StoreError::OutcomeUnknown("the writer did not answer in time")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::{InFlightKeys, StoredError};

    const TIMEOUT: Duration = Duration::from_secs(30);
    const ADA: Actor = Actor { user: UserId::new(1), owner: UserId::new(1) };

    fn delete(id: i64) -> (Job, oneshot::Receiver<Result<WriteResult<DeleteOutcome>, StoreError>>) {
        let (sender, receiver) = oneshot::channel();
        let reply = Reply { sender, turn: Arc::default() };
        (Job::Delete { actor: ADA, id: PlantId::new(id), key: None, reply }, receiver)
    }

    async fn delete_through(queue: &Queue, id: i64) -> Result<WriteResult<DeleteOutcome>, StoreError> {
        queue.execute(|reply| Job::Delete { actor: ADA, id: PlantId::new(id), key: None, reply }).await
    }

    /// Settles three deletes of which any batch with id 2 fails as `error` says.
    fn settle_three(error: &StoreError) -> (usize, Vec<Result<WriteResult<DeleteOutcome>, StoreError>>) {
        let (mut batch, answers): (Vec<_>, Vec<_>) = (1..=3).map(delete).unzip();
        let mut commits = 0;
        settle(&mut batch, |jobs| {
            commits += 1;
            let spoilt = jobs.iter().any(|job| matches!(job, Job::Delete { id, .. } if id.get() == 2));
            if spoilt { Err(error.clone()) } else { Ok(vec![Outcome::Delete(DeleteOutcome::Deleted); jobs.len()]) }
        });
        (commits, answers.into_iter().map(|mut answer| answer.try_recv().expect("an answer")).collect())
    }

    #[test]
    fn one_that_cannot_be_done_does_not_spoil_its_neighbours() {
        let (commits, answers) = settle_three(&StoreError::Internal("odd".to_owned()));
        assert_eq!(commits, 4);
        let deleted =
            |answer: &Result<_, StoreError>| matches!(answer, Ok(WriteResult::Executed(DeleteOutcome::Deleted)));
        assert!(deleted(&answers[0]) && matches!(answers[1], Err(StoreError::Internal(_))) && deleted(&answers[2]));
    }

    #[test]
    fn a_store_that_cannot_be_used_is_not_tried_once_for_each() {
        let (commits, answers) = settle_three(&StoreError::Unavailable("locked".to_owned()));
        assert_eq!(commits, 1);
        assert!(answers.iter().all(|answer| matches!(answer, Err(StoreError::Unavailable(_)))));
    }

    #[tokio::test]
    async fn a_write_whose_writer_vanishes_has_an_unknown_outcome() {
        let (queue, mut jobs) = Queue::new(1, Timeouts::both(TIMEOUT));
        let vanish = async { drop(jobs.recv().await) };
        let (answer, ()) = tokio::join!(delete_through(&queue, 1), vanish);
        assert!(matches!(answer, Err(StoreError::OutcomeUnknown(_))), "{answer:?}");
        drop(jobs);
        let rejected = delete_through(&queue, 1).await;
        assert!(matches!(rejected, Err(StoreError::Unavailable(_))), "{rejected:?}");
    }

    #[tokio::test]
    async fn abandoned_write_leaves_its_key_free_for_a_retry() {
        let (queue, jobs) = Queue::new(2, Timeouts::both(Duration::from_millis(20)));
        let keys = InFlightKeys::default();
        let key = || {
            let rejection = StoredError { code: 40400, message: String::new() };
            IdempotencyKey { hash: [1; 32], fingerprint: [2; 32], success_status: 204, rejection }
        };
        for _ in 0..2 {
            let key = Some(keys.claim(ADA.user, key()).expect("a free key"));
            let rejected = queue.execute(|reply| Job::Delete { actor: ADA, id: PlantId::new(1), key, reply }).await;
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
    async fn a_write_that_was_never_begun_is_never_done() {
        let (queue, mut jobs) = Queue::new(2, Timeouts::both(Duration::from_millis(20)));
        let rejected = delete_through(&queue, 1).await;
        assert!(matches!(rejected, Err(StoreError::Unavailable(_))), "{rejected:?}");
        assert!(!jobs.try_recv().expect("the job").begin());
        let begin = async {
            let job = jobs.recv().await.expect("the job");
            assert!(job.begin());
            std::future::pending::<()>().await;
            drop(job);
        };
        let asking = delete_through(&queue, 2);
        let unknown = tokio::select! { answer = asking => answer, () = begin => unreachable!() };
        assert!(matches!(unknown, Err(StoreError::OutcomeUnknown(_))), "{unknown:?}");
    }
}
