//! The embedded engine: SQLite in WAL mode, one writer thread, readers that never wait for it.
//!
//! Reads run on the calling thread: a list of a few plants takes less time than handing it to another thread would.
//! Their callers keep them short (a long list is read in steps) and hold no transaction between two calls, so that
//! the WAL can always be reset. The command line opens the same file beside a running server; SQLite's locks keep them apart.

mod accounts;
mod checkpoint;
mod connection;
mod database_error;
mod database_file;
mod engine;
mod import;
mod lists;
mod metrics;
mod restore;
mod rows;
mod schema;
mod shares;
mod snapshot;
mod sweep;
mod wal;
mod wal_index;
mod writer;

pub(crate) use self::engine::Sqlite;
pub(crate) use self::import::Importer;
pub(crate) use self::restore::RestoreTarget;
pub(crate) use self::snapshot::snapshot;
