//! Metrics of the SQLite engine.

use crate::metrics::{SweepMetrics, WriteMetrics};
use plantstore_telemetry::metrics::{Exposition, Gauge, Histogram, TIMES};

#[derive(Default)]
pub(crate) struct SqliteMetrics {
    pub(super) writes: WriteMetrics,
    pub(super) wal: WalMetrics,
    pub(super) sweeps: SweepMetrics,
}

impl SqliteMetrics {
    pub(super) fn write(&self, exposition: &mut Exposition) {
        self.writes.write(exposition);
        self.wal.write(exposition);
        self.sweeps.write(exposition);
    }
}

/// Metrics of the write-ahead log.
pub(super) struct WalMetrics {
    pub(super) passive_checkpoints: Histogram,
    pub(super) restart_checkpoints: Histogram,
    pub(super) bytes: Gauge,
    pub(super) pending_bytes: Gauge,
}

impl Default for WalMetrics {
    fn default() -> Self {
        Self {
            passive_checkpoints: Histogram::new(&TIMES),
            restart_checkpoints: Histogram::new(&TIMES),
            bytes: Gauge::default(),
            pending_bytes: Gauge::default(),
        }
    }
}

impl WalMetrics {
    pub(super) fn write(&self, exposition: &mut Exposition) {
        exposition
            .histogram(
                "plantstore_checkpoint_duration_seconds",
                "Duration of checkpoints, by mode; a restart blocks writes.",
            )
            .distribution(&[("mode", "passive".into())], &self.passive_checkpoints)
            .distribution(&[("mode", "restart".into())], &self.restart_checkpoints);
        exposition
            .gauge("plantstore_wal_bytes", "Size of the WAL after the last commit.")
            .sample(&[], self.bytes.get());
        exposition
            .gauge("plantstore_wal_pending_bytes", "Part of the WAL that is not yet checkpointed.")
            .sample(&[], self.pending_bytes.get());
    }
}
