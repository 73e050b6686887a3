//! Detects that the database file was deleted, moved or replaced while this process has it open.
//!
//! SQLite continues to use the open file after its path names another one, so all later writes would be lost at the next
//! start. Therefore the device and inode of the path are compared with those of the open file: after every commit, before it
//! is acknowledged, and periodically by the checkpoint thread.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;

use super::checkpoint;
use super::database_error::exit_process_with;
use crate::error::StoreError;

/// Mode of a file that its group or all users can write to.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The path of the database, and the identity of the file when it was opened.
pub(crate) struct DatabaseFile {
    /// Absolute, so that a moved working directory counts as a moved file. Links are followed at every check.
    path: PathBuf,
    identity: (u64, u64),
    /// Set before the process exits. No commit begins afterwards.
    lost: AtomicBool,
}

/// Result of a failed comparison of the path with the open file.
#[derive(Debug, thiserror::Error)]
enum Mismatch {
    #[error("the database file was deleted or moved")]
    Missing,
    #[error("the database file was replaced by another")]
    Replaced,
    #[error("the database file cannot be examined: {0}")]
    Unknown(io::Error),
}

impl DatabaseFile {
    /// Reads the identity of the file at `path`. Call this before the file is opened.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let file = fs::metadata(&path)?;
        if file.mode() & WRITABLE_BY_OTHERS != 0 {
            tracing::warn!(file = %path.display(), "other users can write to the store: make it private with chmod 600");
        }
        let identity = identity(&file);
        Ok(Self { path, identity, lost: AtomicBool::new(false) })
    }

    /// Fails if the path does not name the open file, or cannot be examined.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let found = if self.lost.load(Ordering::SeqCst) { Err(Mismatch::Missing) } else { self.compare() };
        found.map_err(|mismatch| StoreError::Unavailable(mismatch.to_string()))
    }

    /// Fails if the file is known to be lost. Call this with the write lock held, so that no commit follows the last
    /// checkpoint.
    pub(super) fn check_not_lost(&self) -> Result<(), StoreError> {
        let lost = self.lost.load(Ordering::SeqCst);
        if lost { Err(StoreError::Unavailable(Mismatch::Missing.to_string())) } else { Ok(()) }
    }

    /// Fails if the path cannot be examined, and exits the process if the file is lost. Call this after a commit, before it is
    /// acknowledged.
    pub(crate) fn verify_or_exit(&self, connection: &Connection) -> Result<(), StoreError> {
        match self.compare() {
            Ok(()) => Ok(()),
            Err(Mismatch::Unknown(error)) => {
                tracing::warn!(%error, file = %self.path.display(), "the database file cannot be examined");
                Err(StoreError::OutcomeUnknown("the database file cannot be examined"))
            }
            // Another thread is exiting the process.
            Err(_) if self.lost.swap(true, Ordering::SeqCst) => {
                Err(StoreError::OutcomeUnknown("the database file was lost"))
            }
            Err(mismatch) => self.exit(&mismatch, connection),
        }
    }

    /// Exits the process. Before that, copies the write-ahead log into the open file, which may have been moved, and truncates
    /// it: SQLite would otherwise apply it to a file that has replaced this one.
    fn exit(&self, mismatch: &Mismatch, connection: &Connection) -> ! {
        let advice = "stop every server before moving or replacing the file; put it back, or restore a backup in its \
                      place, and start again";
        exit_process_with(&mismatch.to_string(), &self.path.display().to_string(), advice, || {
            checkpoint::truncate(connection);
        })
    }

    fn compare(&self) -> Result<(), Mismatch> {
        match fs::metadata(&self.path) {
            Ok(found) if identity(&found) == self.identity => Ok(()),
            Ok(_) => Err(Mismatch::Replaced),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Err(Mismatch::Missing)
            }
            Err(error) => Err(Mismatch::Unknown(error)),
        }
    }
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}
