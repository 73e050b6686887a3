//! Idempotency keys: stored outcomes and keys in flight.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::StoreError;
use plantstore_model::user::UserId;

/// Time for which an outcome is stored under its key.
pub(crate) const KEY_LIFETIME_SECONDS: i64 = 24 * 60 * 60;

/// The idempotency key of a request, and the outcomes that may be stored under it.
#[derive(Clone, Debug)]
pub struct IdempotencyKey {
    /// The SHA-256 of the key itself.
    pub hash: [u8; 32],
    /// The SHA-256 of the request, which tells requests with the same key apart.
    pub fingerprint: [u8; 32],
    /// The status that is stored for a success.
    pub success_status: i32,
    /// The error that is stored for a rejection.
    pub rejection: StoredError,
}

/// A stored error response, which is replayed unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredError {
    pub code: i32,
    pub message: String,
}

/// The keys in flight in this process.
#[derive(Default)]
pub(crate) struct InFlightKeys(Arc<Mutex<HashSet<Entry>>>);

type Entry = (UserId, [u8; 32]);

impl InFlightKeys {
    /// Claims a key of this user; [`StoreError::InFlight`] if another request holds it.
    pub(crate) fn claim(&self, user: UserId, key: IdempotencyKey) -> Result<Box<ClaimedKey>, StoreError> {
        let entry = (user, key.hash);
        if !self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(entry) {
            return Err(StoreError::InFlight);
        }
        let claim = Claim { entries: Arc::clone(&self.0), entry, node_lock: None };
        Ok(Box::new(ClaimedKey { key, claim: SharedClaim(Arc::new(Mutex::new(Some(claim)))) }))
    }
}

/// A key in flight. It is released when this is dropped, or by [`SharedClaim::release`].
pub(crate) struct ClaimedKey {
    pub(crate) key: IdempotencyKey,
    pub(super) claim: SharedClaim,
}

impl ClaimedKey {
    /// Keeps the lock that blocks the key on other nodes until the key is released.
    pub(crate) fn hold_node_lock(&self, lock: impl Send + 'static) {
        if let Some(claim) = &mut *self.claim.0.lock().unwrap_or_else(PoisonError::into_inner) {
            claim.node_lock = Some(Box::new(lock));
        }
    }
}

impl Drop for ClaimedKey {
    fn drop(&mut self) {
        self.claim.release();
    }
}

/// A claim that the caller of a job can release while the writer still has the job.
#[derive(Clone)]
pub(super) struct SharedClaim(Arc<Mutex<Option<Claim>>>);

impl SharedClaim {
    /// Releases the key, at most once, because another request may claim it afterwards.
    pub(super) fn release(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// The entry of a key in flight, removed when this is dropped.
struct Claim {
    entries: Arc<Mutex<HashSet<Entry>>>,
    entry: Entry,
    node_lock: Option<Box<dyn Send>>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // First, so that the next request in this process does not find the key locked.
        drop(self.node_lock.take());
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.entry);
    }
}
