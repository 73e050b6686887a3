//! Cache of user versions that is validated with the WAL index instead of a query.
//!
//! All processes that use the database share its WAL index (`-shm`). It starts with two copies of a header that changes with
//! every commit (<https://www.sqlite.org/walformat.html>, "The WAL-Index File Format"). A version that was read after the
//! header stays current as long as the header is the same. Reading the header is one system call, and takes about a tenth of
//! the time of the smallest query.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use super::connection::connect_reader;
use crate::cache::{BoundedCache, bounded_cache};
use crate::plants::Version;
use plantstore_model::user::UserId;

const HEADER_BYTES: usize = 48;
/// Version of the format.
const FORMAT: u32 = 3_007_000;
/// Maximum number of users whose version is cached.
const USERS_MAX: usize = 20_000;

/// Header of the index. It is unchanged as long as no process commits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct WalIndexHeader([u8; HEADER_BYTES]);

pub(super) struct VersionCache {
    /// Never closed, because closing it would release the locks that SQLite has on the same file.
    index: Option<ManuallyDrop<File>>,
    /// Connection that keeps the index open. The last process to close an index removes it, and the next creates another one:
    /// `index` would then never change.
    anchor: Mutex<Option<Connection>>,
    closed: AtomicBool,
    versions: BoundedCache<UserId, (WalIndexHeader, Version)>,
}

impl VersionCache {
    /// Opens the index of the file at `path`. If it cannot be read, no version is cached.
    pub(super) fn open(path: &Path) -> rusqlite::Result<Self> {
        let anchor = connect_reader(path)?;
        // The first query opens the index.
        anchor.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        // SQLite creates the index next to the file itself, not next to a link to it.
        let index = path.canonicalize().and_then(|path| {
            let mut index = path.into_os_string();
            index.push("-shm");
            File::open(index)
        });
        if let Err(error) = &index {
            tracing::warn!(%error, "cannot read the WAL index: lists need a query");
        }
        let index = index.ok().map(ManuallyDrop::new);
        let anchor = Mutex::new(Some(anchor));
        Ok(Self { index, anchor, closed: AtomicBool::new(false), versions: bounded_cache(USERS_MAX) })
    }

    /// Stops using the index.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.anchor.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Reads the header; `None` if it cannot be read, or if a commit is changing it.
    pub(super) fn header(&self) -> Option<WalIndexHeader> {
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        let mut headers = [0; 2 * HEADER_BYTES];
        self.index.as_ref()?.read_exact_at(&mut headers, 0).ok()?;
        // A commit writes the second copy before the first, and a reader reads them in the opposite order.
        let (first, second) = headers.split_at(HEADER_BYTES);
        let format = u32::from_ne_bytes(first[..4].try_into().ok()?);
        (first == second && format == FORMAT).then(|| WalIndexHeader(first.try_into().expect("the length of a header")))
    }

    /// Returns the user's cached version if it was read after this header.
    pub(super) fn cached_version(&self, header: &WalIndexHeader, user: UserId) -> Option<Version> {
        self.versions.get(&user).filter(|(cached, _)| cached == header).map(|(_, version)| version)
    }

    /// Caches versions that were read after `header`.
    pub(super) fn cache_versions(
        &self,
        header: Option<WalIndexHeader>,
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
