//! Stop flag for the threads of a test.

use std::sync::atomic::{AtomicBool, Ordering};

/// Tells the threads of a test to stop when it ends, also when it fails: a scope waits for all of its threads.
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
