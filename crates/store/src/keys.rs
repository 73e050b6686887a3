//! Idempotency keys: what is kept under one, and who is at work with one.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::StoreError;
use plantstore_model::user::UserId;

/// How long an answer is kept under its key, in seconds.
pub(crate) const KEPT_SECONDS: i64 = 24 * 60 * 60;

/// The idempotency key of a request, and what will be kept under it.
#[derive(Clone, Debug)]
pub struct Key {
    /// The SHA-256 of the key itself.
    pub hash: [u8; 32],
    /// The SHA-256 of the request: the same for the same request alone.
    pub fingerprint: [u8; 32],
    /// What is kept when the request is done: its status.
    pub done: i32,
    /// What is kept when it is refused.
    pub refused: Refusal,
}

/// A refusal as it is kept, so that it can be repeated word for word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The number of the error.
    pub number: i32,
    /// What it said.
    pub message: String,
}

/// An answer as it is kept. A success is made again from its request, which is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The request was done, with this status.
    Done(i32),
    /// The request was refused.
    Refused(Refusal),
}

/// What a key is known for. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// The same request, and this was its answer.
    Replayed(Kept),
    /// Another request.
    Reused,
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written<T> {
    /// It was done or refused now.
    Now(T),
    /// Its key was there already.
    Known(Known),
}

impl Key {
    /// What a request with this key is told of what is kept under it: a success has no message.
    pub(crate) fn recall(&self, fingerprint: &[u8], outcome: i32, message: Option<String>) -> Known {
        if fingerprint != self.fingerprint {
            return Known::Reused;
        }
        Known::Replayed(match message {
            None => Kept::Done(outcome),
            Some(message) => Kept::Refused(Refusal { number: outcome, message }),
        })
    }
}

/// The keys at work in this process.
#[derive(Default)]
pub(crate) struct AtWork(Arc<Mutex<HashSet<Entry>>>);

type Entry = (UserId, [u8; 32]);

impl AtWork {
    /// Claims a key of this user; [`StoreError::InFlight`] when somebody has it.
    pub(crate) fn claim(&self, user: UserId, key: Key) -> Result<Box<Claimed>, StoreError> {
        let entry = (user, key.hash);
        if !self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(entry) {
            return Err(StoreError::InFlight);
        }
        let place = Place { entries: Arc::clone(&self.0), entry };
        Ok(Box::new(Claimed { key, elsewhere: None, _place: place }))
    }
}

/// A key that a request is at work with, until this is dropped.
pub(crate) struct Claimed {
    pub(crate) key: Key,
    /// What shows it to other nodes. Stands before the place, and so goes before it: whoever comes next in this process
    /// must not meet what is about to go.
    pub(crate) elsewhere: Option<Box<dyn Send + Sync>>,
    _place: Place,
}

struct Place {
    entries: Arc<Mutex<HashSet<Entry>>>,
    entry: Entry,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.entry);
    }
}
