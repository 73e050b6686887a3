//! Detects that the database file was deleted, moved or replaced while this process has it open.
//!
//! SQLite keeps using the file it has opened, whatever its path names by now, so every later write would be lost at the
//! next start. The device and inode of the path are therefore compared with those of the open file after every commit,
//! before it is acknowledged (one system call, next to a sync of the disk), and while nothing is written, by the
//! checkpoint thread.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;

use super::database_error::end_process_with;
use super::wal;
use crate::error::StoreError;

/// The path of the database and the file it named when it was opened.
pub(super) struct DatabaseFile {
    /// Absolute, so that a moved working directory counts as a moved file. Links are followed at every look.
    path: PathBuf,
    identity: (u64, u64),
    /// Set before the process ends: from then on no commit is begun.
    lost: AtomicBool,
}

/// Reasons why the path does not name the open file, as far as is known.
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
    /// Stores the identity of the file at `path`, which is about to be opened.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let identity = identity(&fs::metadata(&path)?);
        Ok(Self { path, identity, lost: AtomicBool::new(false) })
    }

    /// Fails when the path is known not to name the open file, or cannot be examined.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let found = if self.lost.load(Ordering::SeqCst) { Err(Mismatch::Missing) } else { self.compare() };
        found.map_err(|mismatch| StoreError::Unavailable(mismatch.to_string()))
    }

    /// Fails once the file is known to be lost. To be called with the write lock held: after that check no commit can
    /// come behind the last checkpoint.
    pub(super) fn check_not_lost(&self) -> Result<(), StoreError> {
        let lost = self.lost.load(Ordering::SeqCst);
        if lost { Err(StoreError::Unavailable(Mismatch::Missing.to_string())) } else { Ok(()) }
    }

    /// Fails unless the path names the open file; to be called after a commit and before it is acknowledged. Ends the
    /// process when the file is lost.
    pub(super) fn confirm(&self, connection: &Connection) -> Result<(), StoreError> {
        match self.compare() {
            Ok(()) => Ok(()),
            Err(Mismatch::Unknown(error)) => {
                tracing::warn!(%error, file = %self.path.display(), "the database file cannot be examined");
                Err(StoreError::OutcomeUnknown("the database file cannot be examined"))
            }
            // Another thread is ending the process.
            Err(_) if self.lost.swap(true, Ordering::SeqCst) => {
                Err(StoreError::OutcomeUnknown("the database file was lost"))
            }
            Err(mismatch) => self.end(&mismatch, connection),
        }
    }

    /// Ends the process. Before that, the write-ahead log is copied into the open file, which may be a file that was
    /// moved, and emptied: beside a file that was put in the place of this one, it would be taken for its newest writes.
    fn end(&self, mismatch: &Mismatch, connection: &Connection) -> ! {
        let advice = "stop every server before moving or replacing the file; put it back, or restore a backup in its \
                      place, and start again";
        end_process_with(&mismatch.to_string(), &self.path.display().to_string(), advice, || {
            wal::empty(connection);
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
