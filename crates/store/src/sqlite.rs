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
mod lists;
mod metrics;
mod rows;
mod schema;
mod version_cache;
mod writer;

pub(crate) use self::checkpointer::Checkpointer;
pub(crate) use self::connection::{connect_reader, connect_writer};
pub(crate) use self::database_error::{change_error, describe, store_error};
pub(crate) use self::database_file::DatabaseFile;
pub(crate) use self::engine::{Sqlite, Transaction};
pub(crate) use self::schema::{check_schema, create as create_schema, examine};
