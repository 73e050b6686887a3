//! Protection against overload. A request passes these limits in this order:
//!
//! 1. [`capacity`]: rejected at once, before its body is read, if the runtime is saturated ([`saturation`]) or the write queue
//!    of the store is full.
//! 2. [`read_limiter`], for reads: a limited number of concurrent reads of the store, and a short queue.
//! 3. [`account_changes`], for changes of tokens and shares: a limited number in progress.
//!
//! [`delay`]: a connection whose requests keep being rejected gets its responses later.

pub(super) mod account_changes;
pub(super) mod capacity;
pub(super) mod delay;
pub(super) mod read_limiter;
pub(super) mod saturation;
