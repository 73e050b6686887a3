//! A file that appears when it is complete: written under another name beside its own, synced, and renamed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

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
    /// What there is of this name is no ordinary file.
    #[error("{0} is not a regular file, and is never replaced: name another")]
    NotAFile(PathBuf),
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
        new.check_name()?;
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
        let failed = |error| NewFileError::Failed(self.path.clone(), error);
        self.file.sync_all().map_err(failed)?;
        self.check_name()?;
        let named = if self.replace { fs::rename(&self.partial, &self.path) } else { self.take_name() };
        named.map_err(|error| match error.kind() {
            // Somebody else has taken it in the meantime.
            io::ErrorKind::AlreadyExists => NewFileError::Exists(self.path.clone()),
            _ => failed(error),
        })?;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new("."))).and_then(|opened| opened.sync_all()).map_err(failed)?;
        self.finished = true;
        Ok(())
    }

    /// Takes the name unless it is taken: nobody can come in between.
    fn take_name(&self) -> io::Result<()> {
        match renameat_with(CWD, &self.partial, CWD, &self.path, RenameFlags::NOREPLACE) {
            // Not every file system knows how.
            Err(Errno::INVAL) => {
                fs::hard_link(&self.partial, &self.path)?;
                fs::remove_file(&self.partial)
            }
            renamed => Ok(renamed?),
        }
    }

    fn check_name(&self) -> Result<(), NewFileError> {
        match self.path.symlink_metadata() {
            Ok(_) if !self.replace => Err(NewFileError::Exists(self.path.clone())),
            Ok(there) if !there.is_file() => Err(NewFileError::NotAFile(self.path.clone())),
            _ => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_name_that_somebody_takes_meanwhile_is_theirs() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("new");
        let mut new = NewFile::begin(&path, false).expect("a new file");
        new.file().write_all(b"ours").expect("room");
        // As if it came between the last look and the renaming.
        fs::write(&path, b"theirs").expect("a file");
        assert!(matches!(new.take_name(), Err(error) if error.kind() == io::ErrorKind::AlreadyExists));
        assert!(matches!(new.finish(), Err(NewFileError::Exists(_))));
        assert_eq!(fs::read(&path).expect("their file"), b"theirs");
        assert_eq!(fs::read_dir(directory.path()).expect("the directory").count(), 1, "nothing of ours is left");
    }

    #[test]
    fn only_a_regular_file_is_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, link) = (directory.path().join("old"), directory.path().join("link"));
        fs::write(&path, b"old").expect("a file");
        symlink(&path, &link).expect("a link");
        assert!(matches!(NewFile::begin(&link, true), Err(NewFileError::NotAFile(_))));
        let mut new = NewFile::begin(&path, true).expect("a file in its place");
        new.file().write_all(b"new").expect("room");
        assert_eq!(fs::read(&path).expect("the old file"), b"old");
        new.finish().expect("its name");
        assert_eq!(fs::read(&path).expect("the new file"), b"new");
    }
}
