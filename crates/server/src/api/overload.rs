//! Protection against overload, fair between users. A request passes these limits in this order:
//!
//! 1. [`ReadCapacity`](super::extract::ReadCapacity) and [`WriteCapacity`](super::extract::WriteCapacity) reject it at once, before
//!    its body is read, if the runtime is saturated ([`Saturation`]) or the write queue of the store is full.
//! 2. [`ReadLimiter`] limits the number of concurrent reads of the store. Some more requests wait in a short queue.
//! 3. [`AccountChanges`] limits the changes of tokens and shares in progress, instead of the two above.
//!
//! [`EventStreams`] limits the open event streams, which hold no place of the others.
//!
//! When one of the first two resources is short, users who have used little of it still get a place of its [`Reserve`].
//! [`RejectionDelay`] delays repeated rejections of one client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use plantstore_model::token::TokenId;
use plantstore_model::user::UserId;
use plantstore_store::{Reserve, ReservedPlace, StoreError};
use plantstore_telemetry::metrics::{Counter, Exposition};
use plantstore_telemetry::spans;
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};

use super::error::{ApiError, STREAMS_PER_USER};
use crate::auth::RateLimiter;
use crate::observe::{Context, Identity};
use crate::options::{ApiLimits, Rate};
use crate::transport::{ClientAddress, KeyedLimit, KeyedPlace, Tracked, Tracker};

/// Tasks per thread that may wait in the runtime's global queue before requests are rejected. On two cores, 1,024 brought the
/// 99th percentile of a mix of lists and creates above 250 ms (`scripts/bench overload`); fewer reject more for no gain.
const READY_TASKS_MAX: usize = 512;
/// Requests per thread that are admitted to a saturated runtime within [`RESERVE_HOLD`], all users together: a small part of
/// what a thread can handle in this time.
const RESERVED_REQUESTS: usize = 128;
/// Most requests end without waiting, so their number in flight says nothing about the time of the processors that they use.
const RESERVE_HOLD: Duration = Duration::from_millis(50);
/// Rejections of one client that are sent at once: so many, as concurrent requests may need, and then so many per second.
const PROMPT_BURST: u32 = 100;
const PROMPT_PER_SECOND: u32 = 10;
/// Delay of the others. A rejection costs about as much as a cached list, so the number of connections divided by this time must
/// be a small part of the requests per second that can be served.
const DELAY: Duration = Duration::from_secs(4);
/// Maximum number of changes of one user in progress. The others wait.
const USER_CHANGES_MAX: usize = 2;
/// Maximum number of changes with one token that are in progress or wait. So a stolen token cannot keep out its revocation, which
/// its owner requests with another token.
const TOKEN_CHANGES_MAX: usize = 16;
/// Maximum number of changes in progress, except revocations. A change takes the write lock of the embedded store, or one of few
/// connections to PostgreSQL. More of them would only wait, and delay the writes of plants.
const CHANGES_MAX: usize = 32;

/// Detects that the runtime has more tasks ready than it can run soon.
pub(super) struct Saturation {
    runtime: RuntimeMetrics,
    ready_max: usize,
    reserve: Arc<Reserve>,
}

impl Saturation {
    /// Watches the runtime that this is called in.
    pub(super) fn of_current_runtime() -> Self {
        let runtime = Handle::current().metrics();
        let workers = runtime.num_workers();
        let reserve = Reserve::new(RESERVED_REQUESTS * workers, RESERVE_HOLD);
        Self { runtime, ready_max: READY_TASKS_MAX * workers, reserve }
    }

    /// Admits a request, to a saturated runtime only with a place of the reserve.
    pub(super) fn admit(&self, request: &Context) -> Result<Option<ReservedPlace>, StoreError> {
        if self.runtime.global_queue_depth() <= self.ready_max {
            return Ok(None);
        }
        let user = request.user_id();
        user.and_then(|user| self.reserve.take(user)).map(Some).ok_or(StoreError::Overloaded)
    }
}

/// Limits the number of concurrent reads of the store. Some more wait for a short time, the rest are rejected at once. A list
/// counts until its first chunk is read. Writes are limited by the store's queue instead.
pub(super) struct ReadLimiter {
    /// The slots that are not in the reserve.
    slots: Semaphore,
    slots_max: usize,
    reserve: Arc<Reserve>,
    waiting: Semaphore,
    waiting_max: usize,
    timeout: Duration,
    rejected: Counter,
}

/// A slot of a [`ReadLimiter`], released when dropped.
pub(super) enum ReadSlot<'a> {
    Common { _permit: SemaphorePermit<'a> },
    Reserved { _place: ReservedPlace },
}

impl ReadLimiter {
    pub(super) fn new(limits: &ApiLimits) -> Self {
        let reserve = Reserve::part_of(limits.max_concurrent_reads);
        Self {
            slots: Semaphore::new(limits.max_concurrent_reads - reserve.places()),
            slots_max: limits.max_concurrent_reads,
            reserve,
            waiting: Semaphore::new(limits.max_waiting),
            waiting_max: limits.max_waiting,
            timeout: limits.waiting_timeout,
            rejected: Counter::default(),
        }
    }

    /// Takes a slot. To be called when the whole request has arrived, so that no slow client holds one.
    pub(super) async fn acquire(&self, user: UserId) -> Result<ReadSlot<'_>, ApiError> {
        if let Ok(permit) = self.slots.try_acquire() {
            return Ok(ReadSlot::Common { _permit: permit });
        }
        if let Some(place) = self.reserve.take(user) {
            return Ok(ReadSlot::Reserved { _place: place });
        }
        let begun = spans::begin();
        let slot = self.wait().await;
        begun.end("wait for a read slot");
        slot.ok_or(ApiError::Overloaded).inspect_err(|_| self.rejected.count())
    }

    /// Waits for a slot, unless too many wait already.
    async fn wait(&self) -> Option<ReadSlot<'_>> {
        let _place = self.waiting.try_acquire().ok()?;
        let permit = tokio::time::timeout(self.timeout, self.slots.acquire()).await.ok()?.ok()?;
        Some(ReadSlot::Common { _permit: permit })
    }

    /// Returns the number of reads that got no slot.
    pub(super) fn rejected(&self) -> u64 {
        self.rejected.get()
    }

    pub(super) fn write_metrics(&self, exposition: &mut Exposition) {
        let common_max = self.slots_max - self.reserve.places();
        let in_use = common_max - self.slots.available_permits() + self.reserve.taken();
        let waiting = self.waiting_max - self.waiting.available_permits();
        exposition
            .gauge(
                "plantstore_reads_in_flight",
                "Requests that are reading the store; a list counts until its first chunk is read.",
            )
            .sample(&[], in_use);
        exposition
            .gauge("plantstore_reads_in_flight_limit", "Maximum of plantstore_reads_in_flight (--max-in-flight).")
            .sample(&[], self.slots_max);
        exposition.gauge("plantstore_reads_waiting", "Requests that wait to read the store.").sample(&[], waiting);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeKind {
    /// Gives access to plants.
    Grant,
    /// Ends an access. It does not count in the total, so that changes of other users never keep it out.
    Revocation,
}

/// Limits the changes of tokens and shares in progress: per token, per user and in total.
pub(crate) struct AccountChanges {
    /// Changes that are in progress or wait.
    by_token: KeyedLimit<(UserId, Option<TokenId>)>,
    /// The places of each user whose changes are in progress or wait.
    by_user: Mutex<HashMap<UserId, Weak<Semaphore>>>,
    total: Semaphore,
    running: Tracker,
    timeout: Duration,
}

/// The places of a change in progress.
pub(super) struct ChangePlace {
    _running: Tracked,
    _of_total: Option<SemaphorePermit<'static>>,
    _of_user: OwnedSemaphorePermit,
    _of_token: KeyedPlace<(UserId, Option<TokenId>)>,
}

impl AccountChanges {
    /// Creates the limits. A change waits for a place until `timeout`.
    pub(super) fn new(timeout: Duration) -> Self {
        let total = Semaphore::new(CHANGES_MAX);
        Self { by_token: KeyedLimit::new(), by_user: Mutex::default(), total, running: Tracker::default(), timeout }
    }

    /// Waits until a change may begin; `None` if too many are in progress for too long, or after [`Self::finish`].
    pub(super) async fn begin(&'static self, caller: &Identity, kind: ChangeKind) -> Option<ChangePlace> {
        let of_token = self.by_token.take((caller.user_id, caller.token), TOKEN_CHANGES_MAX)?;
        let of_user = self.places_of(caller.user_id);
        let waiting = async {
            let of_user = of_user.acquire_owned().await.ok()?;
            let of_total = match kind {
                ChangeKind::Grant => Some(self.total.acquire().await.ok()?),
                ChangeKind::Revocation => None,
            };
            let running = self.running.begin();
            (!self.running.is_awaited()).then_some(ChangePlace {
                _running: running,
                _of_total: of_total,
                _of_user: of_user,
                _of_token: of_token,
            })
        };
        tokio::time::timeout(self.timeout, waiting).await.ok()?
    }

    fn places_of(&self, user: UserId) -> Arc<Semaphore> {
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        by_user.retain(|_, places| places.strong_count() > 0);
        by_user.get(&user).and_then(Weak::upgrade).unwrap_or_else(|| {
            let places = Arc::new(Semaphore::new(USER_CHANGES_MAX));
            by_user.insert(user, Arc::downgrade(&places));
            places
        })
    }

    /// Waits for the changes in progress, and rejects later ones.
    pub(crate) async fn finish(&self) {
        self.running.idle().await;
    }
}

/// Limits the open event streams, per user and in total, and ends them at shutdown.
pub(crate) struct EventStreams {
    by_user: KeyedLimit<UserId>,
    places: Semaphore,
    max: usize,
    ending: watch::Sender<bool>,
}

impl EventStreams {
    pub(super) fn new(max: usize) -> Self {
        Self { by_user: KeyedLimit::new(), places: Semaphore::new(max), max, ending: watch::Sender::default() }
    }

    /// Takes a place for a stream of this user.
    pub(super) fn open(&'static self, user: UserId) -> Result<StreamPlace, ApiError> {
        let place = self.places.try_acquire().map_err(|_| ApiError::Overloaded)?;
        let of_user = self.by_user.take(user, STREAMS_PER_USER).ok_or(ApiError::TooManyStreams)?;
        Ok(StreamPlace { ending: self.ending.subscribe(), _of_user: of_user, _place: place })
    }

    /// Ends all streams.
    pub(crate) fn end(&self) {
        self.ending.send_replace(true);
    }

    pub(super) fn write_metrics(&self, exposition: &mut Exposition) {
        exposition
            .gauge("plantstore_event_streams", "Open event streams.")
            .sample(&[], self.max - self.places.available_permits());
        exposition
            .gauge("plantstore_event_streams_limit", "Maximum of plantstore_event_streams (--max-event-streams).")
            .sample(&[], self.max);
    }
}

/// The place of an open event stream, released when dropped.
pub(super) struct StreamPlace {
    ending: watch::Receiver<bool>,
    _of_user: KeyedPlace<UserId>,
    _place: SemaphorePermit<'static>,
}

impl StreamPlace {
    /// Resolves when all streams end.
    pub(super) async fn ended(&mut self) {
        // Never fails, because the sender is never dropped.
        let _ = self.ending.wait_for(|ending| *ending).await;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Client {
    User(UserId),
    Address(ClientAddress),
}

/// Delays repeated rejections of one client: a user, or an address without a user.
///
/// A few rejections per second are sent at once, the others later. Without this, clients that retry at once would occupy the
/// processors with rejections, and requests that could be served would starve. The connection does not matter, so that a
/// client gains nothing by opening another one, and clients behind one proxy do not delay each other.
pub(crate) struct RejectionDelay(RateLimiter<Client>);

impl RejectionDelay {
    pub(super) fn new() -> Self {
        Self(RateLimiter::new(Rate::per_second(PROMPT_PER_SECOND), PROMPT_BURST))
    }

    /// Waits as long as the rejection of this request is to be delayed.
    pub(crate) async fn wait(&self, request: &Context) {
        let client = request.user_id().map_or_else(|| Client::Address(request.client()), Client::User);
        if self.0.take(client, Instant::now()).is_err() {
            tokio::time::sleep(DELAY).await;
        }
    }
}
