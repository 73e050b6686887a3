//! Limit on the changes of tokens and shares in progress. Each change runs to its end, even if its client disconnects.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Maximum number of changes in progress. A change takes the write lock of the embedded store, or one of few connections to
/// PostgreSQL. More of them would only wait, and delay the writes of plants.
const CHANGES_MAX: u32 = 32;

pub(crate) struct AccountChangeLimit(Semaphore);

impl AccountChangeLimit {
    pub(in crate::api) fn new() -> Self {
        Self(Semaphore::new(CHANGES_MAX as usize))
    }

    /// Returns `None` if there are too many.
    pub(in crate::api) fn try_begin(&self) -> Option<SemaphorePermit<'_>> {
        self.0.try_acquire().ok()
    }

    /// Waits for the changes in progress, and rejects later ones.
    pub(crate) async fn finish(&self) {
        let _all = self.0.acquire_many(CHANGES_MAX).await;
        self.0.close();
    }
}
