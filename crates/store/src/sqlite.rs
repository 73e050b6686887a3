//! The embedded engine: SQLite in WAL mode, with one writer thread, and readers that the writer never blocks.
//!
//! Reads run on the calling thread, because passing a short list to another thread would take longer than reading it. Callers
//! read long lists in steps and hold no transaction between two steps, so that the WAL can always be reset. The command line
//! opens the same file as a running server; SQLite's locks synchronize them.

mod checkpoint;
mod checkpointer;
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
mod snapshot;
mod version_cache;
mod writer;

pub(crate) use self::engine::{Sqlite, Transaction};
pub(crate) use self::import::Importer;
pub(crate) use self::restore::RestoreTarget;
pub(crate) use self::schema::check_schema;
pub(crate) use self::snapshot::snapshot;
