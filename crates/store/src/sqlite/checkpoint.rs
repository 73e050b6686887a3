//! Checkpoints of the WAL. SQLite's automatic checkpoint is off, because it hides a failed sync.

use std::time::Duration;

use rusqlite::Connection;

use super::connection::BUSY_TIMEOUT;
use super::database_error::{describe, exit_process, is_failed_sync};

/// Number of pending frames (4 KiB each) past which a checkpoint runs: 4 MiB.
pub(super) const CHECKPOINT_FRAMES: i64 = 1_024;
/// Timeout of a reset for readers, which are short unless they belong to another program.
const RESET_TIMEOUT: Duration = Duration::from_millis(20);
/// Timeout for readers and other writers when the WAL is truncated before the process exits.
const TRUNCATE_TIMEOUT: Duration = Duration::from_secs(1);

/// Only reports the state of the WAL.
pub(super) const NOOP: &str = "PRAGMA wal_checkpoint(NOOP)";
/// Copies as many frames as possible without blocking.
pub(super) const PASSIVE: &str = "PRAGMA wal_checkpoint(PASSIVE)";
/// Copies all frames and resets the WAL.
const RESTART: &str = "PRAGMA wal_checkpoint(RESTART)";
/// Copies all frames and truncates the WAL to zero bytes.
const TRUNCATE: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

/// State of the WAL, in frames.
pub(super) struct WalState {
    busy: bool,
    pub(super) frames: i64,
    pub(super) copied: i64,
}

impl WalState {
    /// Returns the number of frames that are not in the database yet.
    pub(super) fn pending(&self) -> i64 {
        self.frames - self.copied
    }
}

pub(super) fn checkpoint(connection: &Connection, pragma: &str) -> Option<WalState> {
    let found = connection.prepare_cached(pragma).and_then(|mut statement| {
        statement.query_row([], |row| Ok(WalState { busy: row.get(0)?, frames: row.get(1)?, copied: row.get(2)? }))
    });
    match found {
        Ok(wal) => Some(wal),
        Err(error) if is_failed_sync(&error) => {
            exit_process("the disk failed to sync written data", &describe(&error));
        }
        // For example a full disk. The frames stay in the WAL, and the next checkpoint copies them.
        Err(error) => {
            tracing::warn!(error = describe(&error), "checkpoint failed, will be retried");
            None
        }
    }
}

/// Runs a checkpoint if many frames are pending. For connections that write without a checkpoint thread.
pub(super) fn checkpoint_if_large(connection: &Connection) {
    if checkpoint(connection, NOOP).is_some_and(|wal| wal.pending() > CHECKPOINT_FRAMES) {
        checkpoint(connection, PASSIVE);
    }
}

/// Truncates the WAL, unless another connection blocks that.
pub(super) fn truncate(connection: &Connection) {
    let _ = connection.busy_timeout(TRUNCATE_TIMEOUT);
    if checkpoint(connection, TRUNCATE).is_none_or(|wal| wal.busy) {
        tracing::error!("cannot truncate the write-ahead log: remove it before another file is used in this place");
    }
}

/// Resets the WAL. Returns true if another connection blocked that.
pub(super) fn reset(writer: &Connection) -> bool {
    let timeout = writer.pragma_query_value(None, "busy_timeout", |row| row.get::<_, u32>(0));
    let _ = writer.busy_timeout(RESET_TIMEOUT);
    let found = checkpoint(writer, RESTART);
    let _ = writer.busy_timeout(timeout.map_or(BUSY_TIMEOUT, |timeout| Duration::from_millis(timeout.into())));
    match found {
        // Frames are -1 if the thread is running a checkpoint; then the next commit retries.
        Some(WalState { busy: true, frames: 0.., copied }) => {
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
