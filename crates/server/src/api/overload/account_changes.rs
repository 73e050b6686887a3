//! Limits on the changes of tokens and shares in progress: per token, per user and in total. Each change runs to its end, even if
//! its client disconnects.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plantstore_model::token::TokenId;
use plantstore_model::user::UserId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::observe::Identity;

/// Maximum number of changes of one user in progress. The others wait.
const USER_MAX: usize = 2;
/// Maximum number of changes with one token that are in progress or wait. So a stolen token cannot keep out its revocation, which
/// its owner requests with another token.
const TOKEN_MAX: usize = 16;
/// Maximum number of changes in progress, except revocations. A change takes the write lock of the embedded store, or one of few
/// connections to PostgreSQL. More of them would only wait, and delay the writes of plants.
const TOTAL_MAX: usize = 32;
/// More changes than can be requested.
const RUNNING_MAX: u32 = 1 << 28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum ChangeKind {
    /// Gives access to plants.
    Grant,
    /// Ends an access. It does not count in the total, so that changes of other users never keep it out.
    Revocation,
}

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
    pub(in crate::api) fn new(timeout: Duration) -> Self {
        let running = Semaphore::new(RUNNING_MAX as usize);
        Self { by_user: Mutex::default(), total: Semaphore::new(TOTAL_MAX), running, timeout }
    }

    /// Waits until a change may begin; `None` if too many are in progress for too long.
    pub(in crate::api) async fn begin(&'static self, caller: &Identity, kind: ChangeKind) -> Option<ChangePlace> {
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
        let (user, token) = (caller.user_id, caller.token);
        let mut by_user = self.by_user();
        let changes = by_user.entry(user).or_insert_with(UserChanges::new);
        let with_token = changes.by_token.entry(token).or_default();
        if *with_token == TOKEN_MAX {
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
        Self { places: Arc::new(Semaphore::new(USER_MAX)), by_token: HashMap::new() }
    }

    fn end(&mut self, token: Option<TokenId>) {
        if let Some(with_token) = self.by_token.get_mut(&token) {
            *with_token -= 1;
        }
        self.by_token.retain(|_, changes| *changes > 0);
    }
}

/// The places of a change in progress.
pub(in crate::api) struct ChangePlace {
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
