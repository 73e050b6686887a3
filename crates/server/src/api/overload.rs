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
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::http::request::Parts;
use plantstore_model::token::TokenId;
use plantstore_model::user::UserId;
use plantstore_store::{Reserve, ReservedPlace, StoreError};
use plantstore_telemetry::metrics::{Counter, Exposition};
use plantstore_telemetry::spans;
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};

use super::error::{ApiError, STREAMS_PER_USER};
use crate::auth::{Quota, RateLimiter};
use crate::observe::{Context, Identity};
use crate::options::{ApiLimits, Rate};
use crate::transport::ClientAddress;

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
/// More changes than can be requested.
const RUNNING_MAX: u32 = 1 << 28;

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
    pub(super) fn admit(&self, parts: &Parts) -> Result<Option<ReservedPlace>, StoreError> {
        if self.runtime.global_queue_depth() <= self.ready_max {
            return Ok(None);
        }
        let user = Context::of(parts).user_id();
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
    by_user: Mutex<HashMap<UserId, UserChanges>>,
    total: Semaphore,
    running: Semaphore,
    timeout: Duration,
}

/// The changes of one user that are in progress or wait.
struct UserChanges {
    places: Arc<Semaphore>,
    by_token: HashMap<Option<TokenId>, usize>,
}

impl AccountChanges {
    /// Creates the limits. A change waits for a place until `timeout`.
    pub(super) fn new(timeout: Duration) -> Self {
        let total = Semaphore::new(CHANGES_MAX);
        Self { by_user: Mutex::default(), total, running: Semaphore::new(RUNNING_MAX as usize), timeout }
    }

    /// Waits until a change may begin; `None` if too many are in progress for too long.
    pub(super) async fn begin(&'static self, caller: &Identity, kind: ChangeKind) -> Option<ChangePlace> {
        let counted = self.count(caller)?;
        let waiting = async {
            let of_user = Arc::clone(&counted.places).acquire_owned().await.ok()?;
            let of_total = match kind {
                ChangeKind::Grant => Some(self.total.acquire().await.ok()?),
                ChangeKind::Revocation => None,
            };
            let running = self.running.try_acquire().ok()?;
            Some(ChangePlace { _running: running, _of_total: of_total, _of_user: of_user, _counted: counted })
        };
        tokio::time::timeout(self.timeout, waiting).await.ok()?
    }

    /// Counts a change with this token until the return value is dropped; `None` if there are too many.
    fn count(&'static self, caller: &Identity) -> Option<CountedChange> {
        let Identity { user_id: user, token, .. } = *caller;
        let mut by_user = self.by_user();
        let changes = by_user.entry(user).or_insert_with(UserChanges::new);
        let with_token = changes.by_token.entry(token).or_default();
        if *with_token == TOKEN_CHANGES_MAX {
            return None;
        }
        *with_token += 1;
        Some(CountedChange { all: self, user, token, places: Arc::clone(&changes.places) })
    }

    /// Waits for the changes in progress, and rejects later ones.
    pub(crate) async fn finish(&self) {
        let _all = self.running.acquire_many(RUNNING_MAX).await;
        self.running.close();
    }

    fn by_user(&self) -> MutexGuard<'_, HashMap<UserId, UserChanges>> {
        self.by_user.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UserChanges {
    fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(USER_CHANGES_MAX)), by_token: HashMap::new() }
    }

    fn end(&mut self, token: Option<TokenId>) {
        if let Some(with_token) = self.by_token.get_mut(&token) {
            *with_token -= 1;
        }
        self.by_token.retain(|_, changes| *changes > 0);
    }
}

/// The places of a change in progress.
pub(super) struct ChangePlace {
    _running: SemaphorePermit<'static>,
    _of_total: Option<SemaphorePermit<'static>>,
    _of_user: OwnedSemaphorePermit,
    _counted: CountedChange,
}

/// A change that is in progress or waits.
struct CountedChange {
    all: &'static AccountChanges,
    user: UserId,
    token: Option<TokenId>,
    places: Arc<Semaphore>,
}

impl Drop for CountedChange {
    fn drop(&mut self) {
        let mut by_user = self.all.by_user();
        if let Some(changes) = by_user.get_mut(&self.user) {
            changes.end(self.token);
            if changes.by_token.is_empty() {
                by_user.remove(&self.user);
            }
        }
    }
}

/// Limits the open event streams, per user and in total, and ends them at shutdown.
pub(crate) struct EventStreams {
    by_user: Mutex<HashMap<UserId, usize>>,
    places: Semaphore,
    max: usize,
    ending: watch::Sender<bool>,
}

impl EventStreams {
    pub(super) fn new(max: usize) -> Self {
        Self { by_user: Mutex::default(), places: Semaphore::new(max), max, ending: watch::Sender::default() }
    }

    /// Takes a place for a stream of this user.
    pub(super) fn open(&'static self, user: UserId) -> Result<StreamPlace, ApiError> {
        let place = self.places.try_acquire().map_err(|_| ApiError::Overloaded)?;
        let mut by_user = self.by_user();
        let open = by_user.entry(user).or_default();
        if *open == STREAMS_PER_USER {
            return Err(ApiError::TooManyStreams);
        }
        *open += 1;
        Ok(StreamPlace { all: self, user, ending: self.ending.subscribe(), _place: place })
    }

    /// Ends all streams.
    pub(crate) fn end(&self) {
        self.ending.send_replace(true);
    }

    fn by_user(&self) -> MutexGuard<'_, HashMap<UserId, usize>> {
        self.by_user.lock().unwrap_or_else(PoisonError::into_inner)
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
    all: &'static EventStreams,
    user: UserId,
    ending: watch::Receiver<bool>,
    _place: SemaphorePermit<'static>,
}

impl StreamPlace {
    /// Resolves when all streams end.
    pub(super) async fn ended(&mut self) {
        // Never fails, because the sender is never dropped.
        let _ = self.ending.wait_for(|ending| *ending).await;
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        if let Entry::Occupied(mut open) = self.all.by_user().entry(self.user) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
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
        Self(RateLimiter::new(Quota::new(Rate::per_second(PROMPT_PER_SECOND), PROMPT_BURST)))
    }

    /// Waits as long as the rejection of this request is to be delayed.
    pub(crate) async fn wait(&self, request: &Context) {
        let client = request.user_id().map_or_else(|| Client::Address(request.client()), Client::User);
        if self.0.take(client, Instant::now()).is_err() {
            tokio::time::sleep(DELAY).await;
        }
    }
}
