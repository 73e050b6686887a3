//! Keeps the WAL bounded without blocking writers.
//!
//! A thread of its own copies the WAL into the database while the writer goes on. Under unbroken load it never catches up
//! entirely, and only a WAL that is copied entirely can be reset: past [`WAL_LIMIT_FRAMES`] the writer itself copies the
//! little that is left and resets it.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::connection::connect;
use super::database_error::end_process;
use super::database_file::DatabaseFile;
use super::metrics::SqliteMetrics;
use super::wal::{COPY, LOOK, WAKE_FRAMES, checkpoint, reset};

/// Bytes of a frame: a page and what is said of it.
const FRAME_BYTES: i64 = 4_096 + 24;
/// Frames past which the writer resets the WAL: 32 MiB.
const WAL_LIMIT_FRAMES: i64 = 8_192;
/// Size to which the file is cut when it is reset.
const WAL_FILE_LIMIT: i64 = WAL_LIMIT_FRAMES * 4_096 * 2;
/// Pause of the writer after something was in the way of a reset.
const RESET_PAUSE: Duration = Duration::from_secs(1);
/// Interval at which the database file is looked for while nothing is written.
const FILE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The writer's handle on the checkpointing thread.
pub(super) struct Checkpointer {
    wake: SyncSender<()>,
    thread: JoinHandle<()>,
    not_before: Option<Instant>,
    metrics: Arc<SqliteMetrics>,
}

impl Checkpointer {
    /// Takes over the checkpoints of the writer's connection.
    pub(super) fn start(
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
            .unwrap_or_else(|error| end_process("cannot start the checkpoint thread", &error.to_string()));
        Ok(Self { wake, thread, not_before: None, metrics: Arc::clone(metrics) })
    }

    /// Called by the writer between two transactions.
    pub(super) fn after_commit(&mut self, writer: &Connection) {
        let Some(wal) = checkpoint(writer, LOOK) else { return };
        self.metrics.wal.bytes.set(wal.frames * FRAME_BYTES);
        self.metrics.wal.pending_bytes.set(wal.pending() * FRAME_BYTES);
        if wal.pending() > WAKE_FRAMES {
            // A full channel means that the thread is about to look anyway.
            let _ = self.wake.try_send(());
        }
        let due = self.not_before.is_none_or(|not_before| Instant::now() >= not_before);
        if wal.frames > WAL_LIMIT_FRAMES && due {
            let begun = Instant::now();
            let blocked = reset(writer);
            self.metrics.wal.restarts.time(begun.elapsed());
            self.not_before = blocked.then(|| Instant::now() + RESET_PAUSE);
        }
    }

    pub(super) fn finish(self) {
        drop(self.wake);
        let _ = self.thread.join();
    }
}

fn run(connection: &Connection, woken: &Receiver<()>, file: &DatabaseFile, metrics: &SqliteMetrics) {
    loop {
        match woken.recv_timeout(FILE_CHECK_INTERVAL) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => {
                // What cannot be examined now is looked at again.
                let _ = file.confirm(connection);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let begun = Instant::now();
        if let Some(wal) = checkpoint(connection, COPY) {
            metrics.wal.pending_bytes.set(wal.pending() * FRAME_BYTES);
        }
        metrics.wal.copies.time(begun.elapsed());
    }
}
