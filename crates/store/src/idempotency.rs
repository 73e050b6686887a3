//! Idempotency keys: what is stored under one, and which are in flight.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::StoreError;
use plantstore_model::user::UserId;

/// Time for which an outcome is stored under its key.
pub(crate) const KEY_LIFETIME_SECONDS: i64 = 24 * 60 * 60;

/// The idempotency key of a request, and what will be stored under it.
#[derive(Clone, Debug)]
pub struct IdempotencyKey {
    /// The SHA-256 of the key itself.
    pub hash: [u8; 32],
    /// The SHA-256 of the request: the same for the same request alone.
    pub fingerprint: [u8; 32],
    /// The status that is stored for a success.
    pub success_status: i32,
    /// The error that is stored when it is rejected.
    pub rejection: StoredError,
}

/// A stored error response, so that it can be repeated word for word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredError {
    pub code: i32,
    pub message: String,
}

/// A stored outcome. The response to a success is made again from its request, which is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredOutcome {
    /// The status of a success.
    Success(i32),
    Error(StoredError),
}

/// A key that is stored already. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownKey {
    /// The same request came before, with this outcome.
    Replayed(StoredOutcome),
    /// Another request came before.
    Reused,
}

/// Result of a write that may have a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteResult<T> {
    /// It was done or rejected now.
    Executed(T),
    /// Its key was known already.
    KnownKey(KnownKey),
}

impl IdempotencyKey {
    /// Returns the result of a request with this key, given what is stored under it: a success has no message.
    pub(crate) fn lookup(&self, fingerprint: &[u8], outcome: i32, message: Option<String>) -> KnownKey {
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
    /// Claims a key of this user; [`StoreError::InFlight`] when another request has it.
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

/// A key in flight, until this is dropped or its claim is released.
pub(crate) struct ClaimedKey {
    pub(crate) key: IdempotencyKey,
    claim: Arc<Claim>,
}

impl ClaimedKey {
    /// Holds the lock that shows the key to other nodes.
    pub(crate) fn hold_node_lock(&self, lock: impl Send + 'static) {
        *self.claim.node_lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(lock));
    }

    /// Returns the claim, for a caller that may have to release it while the writer still has the job.
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
    /// Releases the key; once, because another request may claim it afterwards. The node lock is released first: the next request
    /// in this process must not meet a lock that is about to go.
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
