//! What the store counts: commits, the WAL of an embedded store, the connections of the other.

use std::time::Duration;

use super::StoreError;
use super::postgres::Role;
use plantstore_telemetry::metrics::{Counter, Gauge, Histogram, Page, SIZES, TIMES};

/// The writer's doings, on every engine.
pub(super) struct WriteMetrics {
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
    /// A batch of so many writes came to this, after so much time.
    pub(super) fn committed<T>(&self, writes: usize, took: Duration, result: &Result<T, StoreError>) {
        self.batches.observe(writes as u64);
        self.commits.time(took);
        match result {
            Ok(_) => self.committed.count(),
            Err(StoreError::OutcomeUnknown(_)) => self.unknown.count(),
            Err(_) => self.failed.count(),
        }
    }

    pub(super) fn write(&self, page: &mut Page) {
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

/// What removing finds to remove.
#[derive(Default)]
pub(super) struct SweepMetrics {
    pub(super) departed: Counter,
    pub(super) expired_keys: Counter,
}

impl SweepMetrics {
    pub(super) fn write(&self, page: &mut Page) {
        page.counter("plantstore_swept_rows_total", "Rows removed because nobody needs them any more.")
            .sample(&[("what", "departed".into())], self.departed.get())
            .sample(&[("what", "expired_keys".into())], self.expired_keys.get());
    }
}

/// The WAL of an embedded store.
pub(super) struct WalMetrics {
    pub(super) copies: Histogram,
    pub(super) restarts: Histogram,
    pub(super) bytes: Gauge,
    pub(super) pending_bytes: Gauge,
}

impl Default for WalMetrics {
    fn default() -> Self {
        Self {
            copies: Histogram::new(&TIMES),
            restarts: Histogram::new(&TIMES),
            bytes: Gauge::default(),
            pending_bytes: Gauge::default(),
        }
    }
}

impl WalMetrics {
    pub(super) fn write(&self, page: &mut Page) {
        page.histogram("plantstore_checkpoint_seconds", "Copying the WAL into the database, by who does it.")
            .distribution(&[("by", "thread".into())], &self.copies)
            .distribution(&[("by", "writer".into())], &self.restarts);
        page.gauge("plantstore_wal_bytes", "The WAL as of the last commit.").sample(&[], self.bytes.get());
        page.gauge("plantstore_wal_pending_bytes", "What of the WAL was not copied into the database yet.")
            .sample(&[], self.pending_bytes.get());
    }
}

/// The connections to a database server.
pub(super) struct DatabaseMetrics {
    /// By the number of the role.
    roles: [RoleMetrics; 4],
    /// From sending a query that changes nothing to its last row.
    pub(super) queries: Histogram,
}

#[derive(Default)]
struct RoleMetrics {
    open: Gauge,
    made: Counter,
    refused: Counter,
}

impl Default for DatabaseMetrics {
    fn default() -> Self {
        Self { roles: Default::default(), queries: Histogram::new(&TIMES) }
    }
}

impl DatabaseMetrics {
    /// A connection was made; it is open until what is handed over is dropped.
    pub(super) fn connected(&self, role: Role) -> impl Drop + '_ {
        let metrics = &self.roles[role as usize];
        metrics.made.count();
        metrics.open.hold()
    }

    /// An attempt to connect failed.
    pub(super) fn refused(&self, role: Role) {
        self.roles[role as usize].refused.count();
    }

    pub(super) fn write(&self, page: &mut Page) {
        let roles = || Role::KEPT.iter().map(|role| ([("role", role.name().into())], &self.roles[*role as usize]));
        let mut open = page.gauge("plantstore_database_connections", "Connections to the database that are open.");
        for (labels, role) in roles() {
            open.sample(&labels, role.open.get());
        }
        let mut made = page.counter("plantstore_database_connections_made_total", "Connections that were made.");
        for (labels, role) in roles() {
            made.sample(&labels, role.made.get());
        }
        let failures = "plantstore_database_connection_failures_total";
        let mut failed = page.counter(failures, "Attempts to connect to the database that failed.");
        for (labels, role) in roles() {
            failed.sample(&labels, role.refused.get());
        }
        page.histogram(
            "plantstore_database_query_seconds",
            "From sending a query that changes nothing to its last row.",
        )
        .distribution(&[], &self.queries);
    }
}
