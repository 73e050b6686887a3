//! The embedded engine: SQLite in WAL mode, with one writer thread, and readers that the writer never blocks.
//!
//! Reads run on the calling thread, because passing a short list to another thread would take longer than reading it. Callers
//! read long lists in steps and hold no transaction between two steps, so that the WAL can always be reset. The command line
//! opens the same file as a running server; SQLite's locks synchronize them.

mod batch;
mod connection;
mod engine;
mod file;
mod lists;
mod schema;
mod version_cache;
mod writer;

pub(crate) use self::connection::{change_error, connect_reader, connect_writer, describe};
pub(crate) use self::engine::{Sqlite, Transaction};
pub(crate) use self::file::{Checkpointer, DatabaseFile};
pub(crate) use self::schema::{ExaminedFile, create as create_schema};
pub(crate) use self::writer::{Changes, create_user};
