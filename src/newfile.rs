//! A file that appears when it is complete: written under another name beside its own, synced, and renamed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What the name of an incomplete file ends with.
const PARTIAL: &str = ".partial";

/// A file that is being written. Dropping it leaves nothing behind; a process that is killed leaves the incomplete
/// file, which the next one with the same name takes over.
pub struct NewFile {
    path: PathBuf,
    partial: PathBuf,
    /// Locked for as long as it is open, so that nobody else writes the same.
    file: File,
    replace: bool,
    finished: bool,
}

/// Why a file cannot be written. The messages are meant for the operator.
#[derive(Debug, thiserror::Error)]
pub enum NewFileError {
    /// There is one of this name, and it was not to be replaced.
    #[error("there is a file {0} already: name another, or move it away")]
    Exists(PathBuf),
    /// Somebody else is writing the same.
    #[error("another process is writing {0}: wait for it, or name another file")]
    AtWork(PathBuf),
    /// The system refused.
    #[error("cannot write {0}: {1}")]
    Failed(PathBuf, io::Error),
}

impl NewFile {
    /// Begins a file, readable by its owner alone. One that exists is refused, or else replaced by the complete one.
    pub fn begin(path: &Path, replace: bool) -> Result<Self, NewFileError> {
        let partial = beside(path, PARTIAL);
        let failed = |error| NewFileError::Failed(path.to_owned(), error);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&partial);
        let file = file.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(NewFileError::AtWork(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // Whoever had the lock before may have finished, and then this is their file by another name.
        if !is_at(&file, &partial).map_err(failed)? {
            return Err(NewFileError::AtWork(path.to_owned()));
        }
        let new = Self { path: path.to_owned(), partial, file, replace, finished: false };
        new.refuse_to_replace()?;
        // What an interrupted process has left.
        new.file.set_len(0).map_err(failed)?;
        Ok(new)
    }

    /// Where it is written until it is complete.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// The file itself.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its name, once all of it is on disk.
    pub fn finish(mut self) -> Result<(), NewFileError> {
        self.refuse_to_replace()?;
        let finish = || {
            self.file.sync_all()?;
            fs::rename(&self.partial, &self.path)?;
            let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
        };
        let finished = finish().map_err(|error| NewFileError::Failed(self.path.clone(), error));
        self.finished = finished.is_ok();
        finished
    }

    fn refuse_to_replace(&self) -> Result<(), NewFileError> {
        if !self.replace && self.path.symlink_metadata().is_ok() {
            return Err(NewFileError::Exists(self.path.clone()));
        }
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.finished {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// The path with something added to its name.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let (ours, theirs) = (file.metadata()?, path.symlink_metadata());
    Ok(theirs.is_ok_and(|theirs| (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino())))
}
