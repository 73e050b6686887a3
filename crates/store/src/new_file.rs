//! A file that appears when it is complete: written under a random name beside its own, synced, and renamed.
//!
//! Nothing that is already in the directory is opened, changed or removed, save the file that is to be replaced. A process that
//! is killed without notice leaves its partial file, which no later process touches: only its owner can tell that it is of no use.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// The last part of a partial file's name; a random number stands before it.
const PARTIAL: &str = ".partial";

/// The partial files of this process, for [`discard_all`]. A file is created, finished and removed under this lock.
static PARTIAL_FILES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file that is being written. Dropping it removes it.
pub struct NewFile {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    replace: bool,
}

/// Reasons why a file cannot be written. The messages are meant for the operator.
#[derive(Debug, thiserror::Error)]
pub enum NewFileError {
    /// There is one of this name, and it was not to be replaced.
    #[error("there is a file {0} already: name another, or move it away")]
    Exists(PathBuf),
    /// A file of this name is not a regular file.
    #[error("{0} is not a regular file, and is never replaced: name another")]
    NotAFile(PathBuf),
    /// The partial file was moved, removed or replaced by another process.
    #[error("another process has moved or removed {0}: nothing was written")]
    Lost(PathBuf),
    /// The system reported an error.
    #[error("cannot write {0}: {1}")]
    Failed(PathBuf, io::Error),
}

impl NewFile {
    /// Begins a file, readable by its owner alone. One that exists is rejected, or else replaced by the complete one.
    pub fn begin(path: &Path, replace: bool) -> Result<Self, NewFileError> {
        let failed = |error| NewFileError::Failed(path.to_owned(), error);
        check_name(path, replace)?;
        let random = getrandom::u64().map_err(|error| failed(error.into()))?;
        let partial = beside(path, &format!(".{random:016x}{PARTIAL}"));
        let mut partial_files = partial_files();
        // Exclusively: neither a file nor a link of this name is ever followed or taken over.
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&partial);
        let file = file.map_err(failed)?;
        partial_files.push(partial.clone());
        Ok(Self { path: path.to_owned(), partial, file, replace })
    }

    /// Returns the path under which it is written until it is complete.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its name, once all of it is on disk.
    pub fn finish(self) -> Result<(), NewFileError> {
        let failed = |error| NewFileError::Failed(self.path.clone(), error);
        self.file.sync_all().map_err(failed)?;
        self.take_name()?;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new("."))).and_then(|opened| opened.sync_all()).map_err(failed)
    }

    fn take_name(&self) -> Result<(), NewFileError> {
        let mut partial_files = partial_files();
        check_name(&self.path, self.replace)?;
        if !is_at(&self.file, &self.partial) {
            return Err(NewFileError::Lost(self.partial.clone()));
        }
        let named = if self.replace { fs::rename(&self.partial, &self.path) } else { self.rename_to_unused() };
        named.map_err(|error| match error.kind() {
            // Taken since it was checked.
            io::ErrorKind::AlreadyExists => NewFileError::Exists(self.path.clone()),
            _ => NewFileError::Failed(self.path.clone(), error),
        })?;
        partial_files.retain(|partial| *partial != self.partial);
        Ok(())
    }

    /// Takes the name unless it is in use, which the system decides.
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
        if let Some(place) = partial_files.iter().position(|partial| *partial == self.partial) {
            partial_files.swap_remove(place);
            // Another process may have put something else in its place.
            if is_at(&self.file, &self.partial) {
                let _ = fs::remove_file(&self.partial);
            }
        }
    }
}

/// Removes all partial files of this process, which is about to end. No file is begun or finished while the result is held.
pub fn discard_all() -> Discarded {
    let mut partial_files = partial_files();
    for partial in partial_files.drain(..) {
        let _ = fs::remove_file(partial);
    }
    Discarded { _lock: partial_files }
}

/// Keeps the process from beginning and finishing files.
#[must_use = "a file may be begun or finished as soon as this is dropped"]
pub struct Discarded {
    _lock: MutexGuard<'static, Vec<PathBuf>>,
}

fn partial_files() -> MutexGuard<'static, Vec<PathBuf>> {
    PARTIAL_FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_name(path: &Path, replace: bool) -> Result<(), NewFileError> {
    match path.symlink_metadata() {
        Ok(_) if !replace => Err(NewFileError::Exists(path.to_owned())),
        Ok(there) if !there.is_file() => Err(NewFileError::NotAFile(path.to_owned())),
        _ => Ok(()),
    }
}

/// Returns the path with something added to its name.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

/// Renames a file unless the new name is in use.
#[cfg(any(target_os = "linux", target_vendor = "apple"))]
fn rename_exclusively(from: &Path, to: &Path) -> rustix::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
}

/// Reports that the system has no such call.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn rename_exclusively(_: &Path, _: &Path) -> rustix::io::Result<()> {
    Err(Errno::NOTSUP)
}

fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (ours, found) = (file.metadata().map(identity), path.symlink_metadata().map(identity));
    matches!((ours, found), (Ok(ours), Ok(found)) if ours == found)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_name_that_another_process_takes_meanwhile_is_not_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("new");
        let mut new = NewFile::begin(&path, false).expect("a new file");
        new.file().write_all(b"ours").expect("room");
        // As if it came between the last look and the renaming.
        fs::write(&path, b"theirs").expect("a file");
        assert!(matches!(new.rename_to_unused(), Err(error) if error.kind() == io::ErrorKind::AlreadyExists));
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
