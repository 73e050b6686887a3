//! Metrics that every engine has: commits, and rows that are swept.

use std::time::Duration;

use crate::error::StoreError;
use plantstore_telemetry::metrics::{Counter, Histogram, Page, SIZES, TIMES};

/// Metrics of the writer.
pub(crate) struct WriteMetrics {
    batches: Histogram,
    commits: Histogram,
    committed: Counter,
    failed: Counter,
    unknown: Counter,
}

impl Default for WriteMetrics {
    fn default() -> Self {
        Self {
            batches: Histogram::new(&SIZES),
            commits: Histogram::new(&TIMES),
            committed: Counter::default(),
            failed: Counter::default(),
            unknown: Counter::default(),
        }
    }
}

impl WriteMetrics {
    /// Records the result of a batch.
    pub(crate) fn committed<T>(&self, writes: usize, took: Duration, result: &Result<T, StoreError>) {
        self.batches.observe(writes as u64);
        self.commits.time(took);
        match result {
            Ok(_) => self.committed.count(),
            Err(StoreError::OutcomeUnknown(_)) => self.unknown.count(),
            Err(_) => self.failed.count(),
        }
    }

    pub(crate) fn write(&self, page: &mut Page) {
        page.histogram("plantstore_write_batch_size", "Writes that shared a commit.").distribution(&[], &self.batches);
        let help = "From the begin of a batch of writes to the end of its commit, with waits for a lock or a connection and \
                    further attempts.";
        page.histogram("plantstore_commit_seconds", help).distribution(&[], &self.commits);
        page.counter("plantstore_commits_total", "Commits by what became of them.")
            .sample(&[("outcome", "ok".into())], self.committed.get())
            .sample(&[("outcome", "failed".into())], self.failed.get())
            .sample(&[("outcome", "unknown".into())], self.unknown.get());
    }
}

/// Metrics of the sweeper.
#[derive(Default)]
pub(crate) struct SweepMetrics {
    pub(crate) departed: Counter,
    pub(crate) expired_keys: Counter,
}

impl SweepMetrics {
    pub(crate) fn write(&self, page: &mut Page) {
        page.counter("plantstore_swept_rows_total", "Rows removed because nobody needs them any more.")
            .sample(&[("what", "departed".into())], self.departed.get())
            .sample(&[("what", "expired_keys".into())], self.expired_keys.get());
    }
}
