//! Detects that the runtime has more tasks ready than it can run soon.

use tokio::runtime::{Handle, RuntimeMetrics};

/// Tasks per thread that may wait in the runtime's global queue before requests are rejected. On two cores, 1,024 brought the
/// 99th percentile of a mix of lists and creates above 250 ms (`scripts/bench overload`); fewer reject more for no gain.
const READY_TASKS_MAX: usize = 512;

pub(in crate::api) struct Saturation {
    runtime: RuntimeMetrics,
    ready_max: usize,
}

impl Saturation {
    /// Watches the runtime that this is called in.
    pub(in crate::api) fn of_current_runtime() -> Self {
        let runtime = Handle::current().metrics();
        Self { ready_max: READY_TASKS_MAX * runtime.num_workers(), runtime }
    }

    pub(in crate::api) fn is_reached(&self) -> bool {
        self.runtime.global_queue_depth() > self.ready_max
    }
}
