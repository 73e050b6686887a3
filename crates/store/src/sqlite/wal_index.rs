//! The WAL index of the file, which shows without a query that nothing was written.
//!
//! Beside the file lies its WAL index, which all processes that use the file share. It starts with a header, twice, that
//! changes with every commit of whichever process (<https://www.sqlite.org/walformat.html>, "The WAL-Index File Format").
//! What was read from the file after the header was looked at holds for as long as the header is the same: reading it is
//! one system call, and a tenth of what the smallest query costs.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use super::connection::connect_reader;
use crate::cache::{BoundedCache, bounded_cache};
use crate::version::Version;
use plantstore_model::user::UserId;

const HEADER_BYTES: usize = 48;
/// The version of the format.
const FORMAT: u32 = 3_007_000;
/// Limit of users whose version is cached.
const USERS_MAX: usize = 20_000;

/// The header of the index: the same as long as no process commits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Header([u8; HEADER_BYTES]);

pub(super) struct WalIndex {
    /// Never closed while the process lives: closing it would drop the locks that SQLite has on the same file.
    index: Option<ManuallyDrop<File>>,
    /// Has the index open for as long as it is read. The last process to close it removes it, and the next makes another:
    /// then this one would never change any more.
    anchor: Mutex<Option<Connection>>,
    closed: AtomicBool,
    versions: BoundedCache<UserId, (Header, Version)>,
}

impl WalIndex {
    /// Opens the index of the file at `path`. Where it cannot be read, no version is ever cached.
    pub(super) fn open(path: &Path) -> rusqlite::Result<Self> {
        let anchor = connect_reader(path)?;
        // The first look at a table opens the index.
        anchor.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        // SQLite puts the index beside the file itself, not beside a link to it.
        let index = path.canonicalize().and_then(|path| {
            let mut index = path.into_os_string();
            index.push("-shm");
            File::open(index)
        });
        if let Err(error) = &index {
            tracing::warn!(%error, "the WAL index cannot be read: lists are not remembered");
        }
        let index = index.ok().map(ManuallyDrop::new);
        let anchor = Mutex::new(Some(anchor));
        Ok(Self { index, anchor, closed: AtomicBool::new(false), versions: bounded_cache(USERS_MAX) })
    }

    /// Reads the index no more, and lets go of it.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.anchor.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Reads the header; `None` when that is not possible, or another thread or process is committing right now.
    pub(super) fn header(&self) -> Option<Header> {
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        let mut headers = [0; 2 * HEADER_BYTES];
        self.index.as_ref()?.read_exact_at(&mut headers, 0).ok()?;
        // A commit writes the second before the first, and readers look at them the other way round.
        let (first, second) = headers.split_at(HEADER_BYTES);
        let format = u32::from_ne_bytes(first[..4].try_into().ok()?);
        (first == second && format == FORMAT).then(|| Header(first.try_into().expect("the length of a header")))
    }

    /// Returns the user's version, if it was read under this header.
    pub(super) fn cached_version(&self, header: &Header, user: UserId) -> Option<Version> {
        self.versions.get(&user).filter(|(known, _)| known == header).map(|(_, version)| version)
    }

    /// Caches versions that were read after `header`.
    pub(super) fn cache_versions(
        &self,
        header: Option<Header>,
        versions: impl Iterator<Item = (UserId, Option<Version>)>,
    ) {
        let Some(header) = header else { return };
        for (user, version) in versions {
            if let Some(version) = version {
                self.versions.insert(user, (header, version));
            }
        }
    }
}
