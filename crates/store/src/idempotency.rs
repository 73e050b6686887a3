//! Idempotency keys: stored outcomes and keys in flight.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

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

/// A stored outcome. The response to a success is rebuilt from the repeated request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredOutcome {
    /// The status of a success.
    Success(i32),
    Error(StoredError),
}

/// Result for a key that is stored already. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownKey {
    /// The same request was executed before, with this outcome.
    Replayed(StoredOutcome),
    /// The key was used for a different request.
    Reused,
}

/// Result of a write that may have a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteResult<T> {
    Executed(T),
    KnownKey(KnownKey),
}

impl IdempotencyKey {
    /// Compares the request with the stored one. A stored success has no message.
    pub(crate) fn compare_with_stored(&self, fingerprint: &[u8], outcome: i32, message: Option<String>) -> KnownKey {
        if fingerprint != self.fingerprint {
            return KnownKey::Reused;
        }
        KnownKey::Replayed(match message {
            None => StoredOutcome::Success(outcome),
            Some(message) => StoredOutcome::Error(StoredError { code: outcome, message }),
        })
    }
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
        let claim = Claim {
            entries: Arc::clone(&self.0),
            entry,
            node_lock: Mutex::new(None),
            released: AtomicBool::new(false),
        };
        Ok(Box::new(ClaimedKey { key, claim: Arc::new(claim) }))
    }
}

/// A key in flight. It is released when this is dropped, or by [`Claim::release`].
pub(crate) struct ClaimedKey {
    pub(crate) key: IdempotencyKey,
    claim: Arc<Claim>,
}

impl ClaimedKey {
    /// Keeps the lock that blocks the key on other nodes until the key is released.
    pub(crate) fn hold_node_lock(&self, lock: impl Send + 'static) {
        *self.claim.node_lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(lock));
    }

    /// Returns the claim, so that a caller can release it while the writer still has the job.
    pub(crate) fn claim(&self) -> Weak<Claim> {
        Arc::downgrade(&self.claim)
    }
}

/// The entry of a key in flight.
pub(crate) struct Claim {
    entries: Arc<Mutex<HashSet<Entry>>>,
    entry: Entry,
    node_lock: Mutex<Option<Box<dyn Send>>>,
    released: AtomicBool,
}

impl Claim {
    /// Releases the key, at most once, because another request may claim it afterwards. The node lock is released first, so that
    /// the next request in this process does not find it locked.
    pub(crate) fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            drop(self.node_lock.lock().unwrap_or_else(PoisonError::into_inner).take());
            self.entries.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.entry);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}
