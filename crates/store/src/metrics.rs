//! Metrics of both engines: commits and swept rows.

use std::time::Duration;

use crate::error::StoreError;
use plantstore_telemetry::metrics::{Counter, Exposition, Histogram, SIZES, TIMES};

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
    pub(crate) fn committed<T>(&self, writes: usize, took: Duration, result: &Result<T, StoreError>) {
        self.batches.observe(writes as u64);
        self.commits.time(took);
        match result {
            Ok(_) => self.committed.count(),
            Err(StoreError::OutcomeUnknown(_)) => self.unknown.count(),
            Err(_) => self.failed.count(),
        }
    }

    pub(crate) fn write(&self, exposition: &mut Exposition) {
        exposition.histogram("plantstore_write_batch_size", "Writes per commit.").distribution(&[], &self.batches);
        let help = "Time to commit a batch of writes, including waits for a lock or a connection and retries.";
        exposition.histogram("plantstore_commit_duration_seconds", help).distribution(&[], &self.commits);
        exposition
            .counter("plantstore_commits_total", "Commits, by outcome.")
            .sample(&[("outcome", "ok".into())], self.committed.get())
            .sample(&[("outcome", "failed".into())], self.failed.get())
            .sample(&[("outcome", "unknown".into())], self.unknown.get());
    }
}

#[derive(Default)]
pub(crate) struct SweepMetrics {
    pub(crate) deleted_users: Counter,
    pub(crate) expired_keys: Counter,
}

impl SweepMetrics {
    pub(crate) fn write(&self, exposition: &mut Exposition) {
        exposition
            .counter("plantstore_swept_rows_total", "Rows removed in the background, by reason.")
            .sample(&[("reason", "deleted_user".into())], self.deleted_users.get())
            .sample(&[("reason", "expired_key".into())], self.expired_keys.get());
    }
}
