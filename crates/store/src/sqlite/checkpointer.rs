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

use super::checkpoint::{CHECKPOINT_FRAMES, NOOP, PASSIVE, checkpoint, reset};
use super::connection::connect;
use super::database_error::exit_process;
use super::database_file::DatabaseFile;
use super::metrics::SqliteMetrics;

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
    wake: SyncSender<()>,
    thread: JoinHandle<()>,
    not_before: Option<Instant>,
    metrics: Arc<SqliteMetrics>,
}

impl Checkpointer {
    /// Starts the thread that runs the checkpoints for the writer's connection.
    pub(crate) fn start(
        path: &Path,
        file: &Arc<DatabaseFile>,
        writer: &Connection,
        metrics: &Arc<SqliteMetrics>,
    ) -> rusqlite::Result<Self> {
        writer.pragma_update(None, "journal_size_limit", WAL_FILE_LIMIT)?;
        let connection = connect(path)?;
        let (wake, woken) = sync_channel(1);
        let (file, counted) = (Arc::clone(file), Arc::clone(metrics));
        let thread = thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || run(&connection, &woken, &file, &counted))
            .unwrap_or_else(|error| exit_process("cannot start the checkpoint thread", &error.to_string()));
        Ok(Self { wake, thread, not_before: None, metrics: Arc::clone(metrics) })
    }

    /// Checks the size of the WAL. The writer calls this between two transactions.
    pub(crate) fn after_commit(&mut self, writer: &Connection) {
        let Some(wal) = checkpoint(writer, NOOP) else { return };
        self.metrics.wal.bytes.set(wal.frames * FRAME_BYTES);
        self.metrics.wal.pending_bytes.set(wal.pending() * FRAME_BYTES);
        if wal.pending() > CHECKPOINT_FRAMES {
            // A full channel means that the thread is already woken.
            let _ = self.wake.try_send(());
        }
        let due = self.not_before.is_none_or(|not_before| Instant::now() >= not_before);
        if wal.frames > WAL_LIMIT_FRAMES && due {
            let begun = Instant::now();
            let blocked = reset(writer);
            self.metrics.wal.restart_checkpoints.time(begun.elapsed());
            self.not_before = blocked.then(|| Instant::now() + RESET_PAUSE);
        }
    }

    pub(crate) fn finish(self) {
        drop(self.wake);
        let _ = self.thread.join();
    }
}

fn run(connection: &Connection, woken: &Receiver<()>, file: &DatabaseFile, metrics: &SqliteMetrics) {
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
            metrics.wal.pending_bytes.set(wal.pending() * FRAME_BYTES);
        }
        metrics.wal.passive_checkpoints.time(begun.elapsed());
    }
}
