//! Checkpoints of the WAL, each a single pragma. SQLite's own automatic checkpoint is off, because it hides a failed sync.

use std::time::Duration;

use rusqlite::Connection;

use super::connection::BUSY_TIMEOUT;
use super::database_error::{describe, end_process, is_failed_sync};

/// Frames (of a page each, 4 KiB) to be copied for which the thread is woken: 4 MiB.
pub(super) const WAKE_FRAMES: i64 = 1_024;
/// Timeout of a reset for readers: they are quick, unless another program holds the file.
const RESET_TIMEOUT: Duration = Duration::from_millis(20);
/// Timeout for readers and other writers when the WAL is emptied before the process ends.
const EMPTY_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the state of the WAL.
pub(super) const LOOK: &str = "PRAGMA wal_checkpoint(NOOP)";
/// Copies what can be copied without blocking.
pub(super) const COPY: &str = "PRAGMA wal_checkpoint(PASSIVE)";
/// Copies everything and resets the WAL.
const RESET: &str = "PRAGMA wal_checkpoint(RESTART)";
/// Copies everything and cuts the WAL to nothing.
const EMPTY: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

/// State of the WAL, in frames.
pub(super) struct Wal {
    busy: bool,
    pub(super) frames: i64,
    pub(super) copied: i64,
}

impl Wal {
    /// Returns the number of frames that are not in the database yet.
    pub(super) fn pending(&self) -> i64 {
        self.frames - self.copied
    }
}

pub(super) fn checkpoint(connection: &Connection, pragma: &str) -> Option<Wal> {
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

/// For a connection that has written on its own: copies what has piled up.
pub(super) fn relieve(connection: &Connection) {
    if checkpoint(connection, LOOK).is_some_and(|wal| wal.pending() > WAKE_FRAMES) {
        checkpoint(connection, COPY);
    }
}

/// Empties the WAL, unless others are in the way.
pub(super) fn empty(connection: &Connection) {
    let _ = connection.busy_timeout(EMPTY_TIMEOUT);
    if checkpoint(connection, EMPTY).is_none_or(|wal| wal.busy) {
        tracing::error!(
            "the write-ahead log could not be emptied: before another file is used in this place, remove it"
        );
    }
}

/// Copies what is left and resets the WAL; true when a reader was in the way.
pub(super) fn reset(writer: &Connection) -> bool {
    let timeout = writer.pragma_query_value(None, "busy_timeout", |row| row.get::<_, u32>(0));
    let _ = writer.busy_timeout(RESET_TIMEOUT);
    let found = checkpoint(writer, RESET);
    let _ = writer.busy_timeout(timeout.map_or(BUSY_TIMEOUT, |timeout| Duration::from_millis(timeout.into())));
    match found {
        // Without a count, the thread was copying concurrently: the next commit tries again.
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
