//! Bounds the size of the WAL without blocking the writer for long. Its thread also notices a database file that was replaced.
//!
//! A thread copies the WAL into the database while the writer continues. Under constant load it never copies all of it, and
//! only a fully copied WAL can be reset. Past [`WAL_LIMIT_FRAMES`] the writer itself copies the rest and resets the WAL.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::connection::{DISK_ADVICE, connect, exit_process};
use super::file::{CHECKPOINT_FRAMES, DatabaseFile, NOOP, PASSIVE, checkpoint, reset};
use plantstore_telemetry::metrics::{Exposition, Gauge, Histogram, TIMES};

/// Bytes of a frame: a page and its header.
const FRAME_BYTES: i64 = 4_096 + 24;
/// Number of frames past which the writer resets the WAL: 32 MiB.
const WAL_LIMIT_FRAMES: i64 = 8_192;
/// Size to which the file is truncated after a reset, in bytes.
const WAL_FILE_LIMIT: i64 = WAL_LIMIT_FRAMES * 4_096 * 2;
/// Delay before the next attempt after a blocked reset.
const RESET_PAUSE: Duration = Duration::from_secs(1);
/// Interval at which the database file is checked while nothing is written.
const FILE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The writer's handle on the checkpointing thread.
pub(crate) struct Checkpointer {
    /// Set until this is dropped.
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    not_before: Option<Instant>,
    metrics: Arc<WalMetrics>,
}

impl Checkpointer {
    /// Starts the thread that runs the checkpoints for the writer's connection.
    pub(crate) fn start(
        path: &Path,
        file: &Arc<DatabaseFile>,
        writer: &Connection,
        metrics: &Arc<WalMetrics>,
    ) -> rusqlite::Result<Self> {
        writer.pragma_update(None, "journal_size_limit", WAL_FILE_LIMIT)?;
        let connection = connect(path)?;
        let (wake, woken) = sync_channel(1);
        let file = Arc::clone(file);
        let counted = Arc::clone(metrics);
        let thread = thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || run(&connection, &woken, &file, &counted))
            .unwrap_or_else(|error| {
                exit_process("cannot start the checkpoint thread", &error.to_string(), DISK_ADVICE)
            });
        Ok(Self { wake: Some(wake), thread: Some(thread), not_before: None, metrics: Arc::clone(metrics) })
    }

    /// Checks the size of the WAL. The writer calls this between two transactions.
    pub(crate) fn after_commit(&mut self, writer: &Connection) {
        let Some(wal) = checkpoint(writer, NOOP) else { return };
        self.metrics.bytes.set(wal.frames * FRAME_BYTES);
        self.metrics.pending_bytes.set(wal.pending() * FRAME_BYTES);
        if wal.pending() > CHECKPOINT_FRAMES {
            // A full channel means that the thread is already woken.
            let _ = self.wake.as_ref().map(|wake| wake.try_send(()));
        }
        let due = self.not_before.is_none_or(|not_before| Instant::now() >= not_before);
        if wal.frames > WAL_LIMIT_FRAMES && due {
            let begun = Instant::now();
            let blocked = reset(writer);
            self.metrics.restart_checkpoints.time(begun.elapsed());
            self.not_before = blocked.then(|| Instant::now() + RESET_PAUSE);
        }
    }
}

impl Drop for Checkpointer {
    /// Ends the thread, and waits until its connection is closed.
    fn drop(&mut self) {
        self.wake = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(connection: &Connection, woken: &Receiver<()>, file: &DatabaseFile, metrics: &WalMetrics) {
    loop {
        match woken.recv_timeout(FILE_CHECK_INTERVAL) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => {
                // An error is retried at the next interval.
                let _ = file.verify_or_exit(connection);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let begun = Instant::now();
        if let Some(wal) = checkpoint(connection, PASSIVE) {
            metrics.pending_bytes.set(wal.pending() * FRAME_BYTES);
        }
        metrics.passive_checkpoints.time(begun.elapsed());
    }
}

/// Metrics of the write-ahead log.
pub(crate) struct WalMetrics {
    passive_checkpoints: Histogram,
    restart_checkpoints: Histogram,
    bytes: Gauge,
    pending_bytes: Gauge,
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
