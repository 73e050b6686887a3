//! Knowing, without asking SQLite, that nobody has written.
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

use super::reader;
use crate::Version;
use crate::cache::{Memory, memory};
use plantstore_model::user::UserId;

/// Bytes of the header.
const HEADER: usize = 48;
/// The version of the format, the only one there is.
const FORMAT: u32 = 3_007_000;
/// Users whose version is remembered at the most.
const USERS_MAX: usize = 20_000;

/// A moment in the life of the file: the same as long as nobody commits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment([u8; HEADER]);

pub(super) struct Watch {
    /// Never closed while the process lives: closing it would drop the locks that SQLite has on the same file.
    index: Option<ManuallyDrop<File>>,
    /// Has the index open for as long as we look at it. Whoever is the last to close it removes it, and the next makes
    /// another: then we would look at one that never changes any more.
    keeper: Mutex<Option<Connection>>,
    ended: AtomicBool,
    versions: Memory<UserId, (Moment, Version)>,
}

impl Watch {
    /// Watches the file at `path`. Where it cannot, nothing is ever at hand.
    pub(super) fn new(path: &Path) -> rusqlite::Result<Self> {
        let keeper = reader(path)?;
        // The first look at a table opens the index.
        keeper.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
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
        let keeper = Mutex::new(Some(keeper));
        Ok(Self { index, keeper, ended: AtomicBool::new(false), versions: memory(USERS_MAX) })
    }

    /// Looks no more, and lets go of the index.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// This moment; `None` when it cannot be told, or somebody is committing right now.
    pub(super) fn moment(&self) -> Option<Moment> {
        if self.ended.load(Ordering::Relaxed) {
            return None;
        }
        let mut headers = [0; 2 * HEADER];
        self.index.as_ref()?.read_exact_at(&mut headers, 0).ok()?;
        // Whoever commits writes the second before the first, and readers look at them the other way round.
        let (first, second) = headers.split_at(HEADER);
        let format = u32::from_ne_bytes(first[..4].try_into().ok()?);
        (first == second && format == FORMAT).then(|| Moment(first.try_into().expect("the length of a header")))
    }

    /// The user's version at this moment, if it is known.
    pub(super) fn version(&self, moment: &Moment, user: UserId) -> Option<Version> {
        self.versions.get(&user).filter(|(known, _)| known == moment).map(|(_, version)| version)
    }

    /// Remembers versions that were read after `moment`.
    pub(super) fn learn(&self, moment: Option<Moment>, versions: impl Iterator<Item = (UserId, Option<Version>)>) {
        let Some(moment) = moment else { return };
        for (user, version) in versions {
            if let Some(version) = version {
                self.versions.insert(user, (moment, version));
            }
        }
    }
}
