//! Atomic creation of files: a file is written under a temporary name in the same directory, synced, and renamed.
//!
//! No other file in the directory is opened, changed or removed, except a file that is replaced. A killed process leaves its
//! partial file, which no later process touches, because it cannot know that the file is not in use.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// The partial files of this process, for [`discard_all`]. Files are created, finished and removed under this lock.
static PARTIAL_FILES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file that is being written. Dropping it removes the partial file.
pub struct NewFile {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    existing: Existing,
}

/// Errors of writing a file. The messages are for the operator.
#[derive(Debug, thiserror::Error)]
pub enum NewFileError {
    #[error("there is a file {0} already: name another, or move it away")]
    Exists(PathBuf),
    #[error("{0} is not a regular file, and is never replaced: name another")]
    NotAFile(PathBuf),
    /// The partial file was moved, removed or replaced by another process.
    #[error("another process has moved or removed {0}: nothing was written")]
    Lost(PathBuf),
    #[error("cannot write {0}: {1}")]
    Failed(PathBuf, io::Error),
}

impl NewFile {
    /// Begins a file that only its owner can read.
    pub fn begin(path: &Path, existing: Existing) -> Result<Self, NewFileError> {
        let failed = |error| NewFileError::Failed(path.to_owned(), error);
        existing.check(path)?;
        let random = getrandom::u64().map_err(|error| failed(error.into()))?;
        let partial = beside(path, &format!(".{random:016x}.partial"));
        let mut partial_files = partial_files();
        // `create_new` never opens an existing file and never follows a link.
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&partial);
        let file = file.map_err(failed)?;
        partial_files.push(partial.clone());
        Ok(Self { path: path.to_owned(), partial, file, existing })
    }

    pub fn partial(&self) -> &Path {
        &self.partial
    }

    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    pub fn finish(self) -> Result<(), NewFileError> {
        let failed = |error| NewFileError::Failed(self.path.clone(), error);
        self.file.sync_all().map_err(failed)?;
        self.rename()?;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new("."))).and_then(|opened| opened.sync_all()).map_err(failed)
    }

    fn rename(&self) -> Result<(), NewFileError> {
        let mut partial_files = partial_files();
        self.existing.check(&self.path)?;
        if !is_at(&self.file, &self.partial) {
            return Err(NewFileError::Lost(self.partial.clone()));
        }
        let named = match self.existing {
            Existing::Keep => self.rename_to_unused(),
            Existing::Replace => fs::rename(&self.partial, &self.path),
        };
        named.map_err(|error| match error.kind() {
            // Created after the check.
            io::ErrorKind::AlreadyExists => NewFileError::Exists(self.path.clone()),
            _ => NewFileError::Failed(self.path.clone(), error),
        })?;
        partial_files.retain(|partial| *partial != self.partial);
        Ok(())
    }

    /// Renames the file unless the name is in use. The check is atomic.
    fn rename_to_unused(&self) -> io::Result<()> {
        match rename_exclusively(&self.partial, &self.path) {
            // Neither every file system nor every operating system supports it.
            Err(Errno::INVAL | Errno::NOTSUP) => {
                fs::hard_link(&self.partial, &self.path)?;
                fs::remove_file(&self.partial)
            }
            renamed => Ok(renamed?),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        let mut partial_files = partial_files();
        if let Some(index) = partial_files.iter().position(|partial| *partial == self.partial) {
            partial_files.swap_remove(index);
            // Another process may have replaced it.
            if is_at(&self.file, &self.partial) {
                let _ = fs::remove_file(&self.partial);
            }
        }
    }
}

/// Removes all partial files of this process, which is about to exit. No file is begun or finished while the result is held.
pub fn discard_all() -> MutexGuard<'static, Vec<PathBuf>> {
    let mut partial_files = partial_files();
    for partial in partial_files.drain(..) {
        let _ = fs::remove_file(partial);
    }
    partial_files
}

fn partial_files() -> MutexGuard<'static, Vec<PathBuf>> {
    PARTIAL_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Treatment of a file that has the name already.
#[derive(Clone, Copy)]
pub enum Existing {
    /// It is an error.
    Keep,
    Replace,
}

impl Existing {
    fn check(self, path: &Path) -> Result<(), NewFileError> {
        match (path.symlink_metadata(), self) {
            (Ok(_), Self::Keep) => Err(NewFileError::Exists(path.to_owned())),
            (Ok(found), Self::Replace) if !found.is_file() => Err(NewFileError::NotAFile(path.to_owned())),
            _ => Ok(()),
        }
    }
}

/// Returns the path with a suffix added to its name.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Renames a file unless the new name is in use.
#[cfg(any(target_os = "linux", target_vendor = "apple"))]
fn rename_exclusively(from: &Path, to: &Path) -> rustix::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn rename_exclusively(_: &Path, _: &Path) -> rustix::io::Result<()> {
    Err(Errno::NOTSUP)
}

fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let found = path.symlink_metadata().map(identity);
    file.metadata().map(identity).is_ok_and(|ours| found.is_ok_and(|found| found == ours))
}
