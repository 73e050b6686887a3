//! Protection against overload, fair between users. A request passes these limits in this order:
//!
//! 1. [`capacity`] rejects it at once, before its body is read, if the runtime is saturated ([`saturation`]) or the write queue of the store is
//!    full.
//! 2. [`read_limiter`] limits the number of concurrent reads of the store. Some more requests wait in a short queue.
//! 3. [`account_changes`] limits the changes of tokens and shares in progress, instead of the two above.
//!
//! When one of the first two resources is short, users who have used little of it still get a place of its
//! [`Reserve`](plantstore_store::Reserve). [`delay`] delays repeated rejections of one client.

pub(super) mod account_changes;
pub(super) mod capacity;
pub(super) mod delay;
pub(super) mod read_limiter;
pub(super) mod saturation;
