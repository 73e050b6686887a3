//! Plants: the queue of writes, idempotency keys, and lists.

mod keys;
mod list;
mod write;

pub(crate) use self::keys::{ClaimedKey, InFlightKeys, KEY_LIFETIME_SECONDS};
pub use self::keys::{IdempotencyKey, StoredError};
pub(crate) use self::list::{FetchedRows, PlantRow, fetch_sizes, merge};
pub use self::list::{ListStep, PlantRange, Version, end_ranges_after};
pub(crate) use self::write::{
    BATCH_MAX, BatchResult, Job, JobOutcome, KeyOutcome, Timeouts, WriteMetrics, WriteQueue, execute_batch,
    is_worth_retrying_one_by_one, reply, reply_all,
};
pub use self::write::{PlantWrite, WriteContext, WriteOutcome};
