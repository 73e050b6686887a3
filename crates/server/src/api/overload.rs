//! Protection against overload. A request passes these limits in this order:
//!
//! 1. [`capacity`] rejects it at once, before its body is read, if the runtime is saturated ([`saturation`]) or the write queue of
//!    the store is full.
//! 2. [`read_limiter`] limits the number of concurrent reads of the store. Some more requests wait in a short queue.
//! 3. [`account_changes`] limits the number of changes of tokens and shares in progress.
//!
//! [`delay`] delays the responses on a connection whose requests are rejected repeatedly.

pub(super) mod account_changes;
pub(super) mod capacity;
pub(super) mod delay;
pub(super) mod read_limiter;
pub(super) mod saturation;
