//! Writes: a queue, a writer that commits batches of it, and the locks of idempotency keys in flight.

mod batch;
mod key_locks;
mod transaction;
mod writer;

pub(crate) use self::batch::{PlantColumns, changed_plants};
pub(crate) use self::key_locks::{KeyLocks, lock_number};
pub(crate) use self::writer::Writer;
