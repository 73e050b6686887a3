//! Writes: the writer with its batches, and the locks of idempotency keys.

mod batch;
mod collector;
mod key_locks;
mod row;
mod scope;
mod writer;

pub(crate) use self::batch::changed_plants;
pub(super) use self::key_locks::{KeyLocks, lock_number};
pub(super) use self::writer::Writer;
