//! Keeping the WAL bounded without making writers wait.
//!
//! A thread of its own copies the WAL into the database while the writer goes on. Under unbroken load it never catches up
//! entirely, and only a WAL that is copied entirely can be started afresh: past [`WAL_LIMIT_FRAMES`] the writer itself
//! copies the little that is left and starts it afresh. SQLite's own automatic checkpoint is off, because it hides a
//! failed sync.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::database_file::DatabaseFile;
use super::fault::{describe, end_process, is_failed_sync};
use super::{BUSY_PATIENCE, SqliteMetrics, connect};

/// Bytes of a frame: a page and what is said of it.
const FRAME_BYTES: i64 = 4_096 + 24;
/// Frames (of a page each, 4 KiB) to be copied for which the thread is woken: 4 MiB.
const WAKE_FRAMES: i64 = 1_024;
/// Frames past which the writer starts the WAL afresh: 32 MiB.
const WAL_LIMIT_FRAMES: i64 = 8_192;
/// To this size the file is cut when it is started afresh.
const WAL_FILE_LIMIT: i64 = WAL_LIMIT_FRAMES * 4_096 * 2;
/// How long starting afresh may wait for readers: they are quick, unless another program holds the file.
const RESTART_PATIENCE: Duration = Duration::from_millis(20);
/// How long the writer leaves it alone after something was in the way.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// Timeout for readers and other writers when the WAL is emptied before the process ends.
const EMPTY_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which the database file is looked for while nothing is written.
const FILE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Says how the WAL is doing, and does nothing.
const LOOK: &str = "PRAGMA wal_checkpoint(NOOP)";
/// Copies what can be copied without making anybody wait.
const COPY: &str = "PRAGMA wal_checkpoint(PASSIVE)";
/// Copies everything and starts afresh.
const RESTART: &str = "PRAGMA wal_checkpoint(RESTART)";
/// Copies everything and cuts the WAL to nothing.
const EMPTY: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

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
        self.metrics.wal.pending_bytes.set((wal.frames - wal.copied) * FRAME_BYTES);
        if wal.frames - wal.copied > WAKE_FRAMES {
            // A full channel means that the thread is about to look anyway.
            let _ = self.wake.try_send(());
        }
        let due = self.not_before.is_none_or(|not_before| Instant::now() >= not_before);
        if wal.frames > WAL_LIMIT_FRAMES && due {
            let begun = Instant::now();
            let blocked = restart(writer);
            self.metrics.wal.restarts.time(begun.elapsed());
            self.not_before = blocked.then(|| Instant::now() + RESTART_PAUSE);
        }
    }

    pub(super) fn finish(self) {
        drop(self.wake);
        let _ = self.thread.join();
    }
}

/// For a connection that has written on its own: copies what has piled up.
pub(super) fn relieve(connection: &Connection) {
    if checkpoint(connection, LOOK).is_some_and(|wal| wal.frames - wal.copied > WAKE_FRAMES) {
        checkpoint(connection, COPY);
    }
}

/// Empties the WAL, as far as others allow it.
pub(super) fn empty(connection: &Connection) {
    let _ = connection.busy_timeout(EMPTY_TIMEOUT);
    if checkpoint(connection, EMPTY).is_none_or(|wal| wal.busy) {
        tracing::error!(
            "the write-ahead log could not be emptied: before another file is used in this place, remove it"
        );
    }
}

fn run(connection: &Connection, woken: &Receiver<()>, file: &DatabaseFile, metrics: &SqliteMetrics) {
    loop {
        match woken.recv_timeout(FILE_CHECK_INTERVAL) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => {
                // What cannot be told now is looked at again.
                let _ = file.confirm(connection);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let begun = Instant::now();
        if let Some(wal) = checkpoint(connection, COPY) {
            metrics.wal.pending_bytes.set((wal.frames - wal.copied) * FRAME_BYTES);
        }
        metrics.wal.copies.time(begun.elapsed());
    }
}

/// Copies what is left and starts the WAL afresh; true when a reader was in the way.
fn restart(writer: &Connection) -> bool {
    let patience = writer.pragma_query_value(None, "busy_timeout", |row| row.get::<_, u32>(0));
    let _ = writer.busy_timeout(RESTART_PATIENCE);
    let found = checkpoint(writer, RESTART);
    let _ = writer.busy_timeout(patience.map_or(BUSY_PATIENCE, |patience| Duration::from_millis(patience.into())));
    match found {
        // Without a count, the thread was copying at the same time: the next commit tries again.
        Some(Wal { busy: true, frames: 0.., copied }) => {
            tracing::warn!(
                frames_copied = copied,
                "the WAL cannot be reset: a reader holds an old snapshot of the file, or another process is writing"
            );
            true
        }
        Some(_) => false,
        None => true,
    }
}

struct Wal {
    busy: bool,
    frames: i64,
    copied: i64,
}

fn checkpoint(connection: &Connection, pragma: &str) -> Option<Wal> {
    let found = connection.prepare_cached(pragma).and_then(|mut statement| {
        statement.query_row([], |row| Ok(Wal { busy: row.get(0)?, frames: row.get(1)?, copied: row.get(2)? }))
    });
    match found {
        Ok(wal) => Some(wal),
        Err(error) if is_failed_sync(&error) => {
            end_process("the disk failed to keep what was written", &describe(&error));
        }
        // A full disk, for one: the WAL keeps what is not copied, and the next run tries again.
        Err(error) => {
            tracing::warn!(error = describe(&error), "a checkpoint failed and will be tried again");
            None
        }
    }
}
