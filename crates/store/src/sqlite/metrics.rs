//! Metrics of the engine.

use crate::metrics::{SweepMetrics, WriteMetrics};
use plantstore_telemetry::metrics::{Gauge, Histogram, Page, TIMES};

#[derive(Default)]
pub(super) struct SqliteMetrics {
    pub(super) writes: WriteMetrics,
    pub(super) wal: WalMetrics,
    pub(super) sweeps: SweepMetrics,
}

impl SqliteMetrics {
    pub(super) fn write(&self, page: &mut Page) {
        self.writes.write(page);
        self.wal.write(page);
        self.sweeps.write(page);
    }
}

/// Metrics of the write-ahead log.
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
