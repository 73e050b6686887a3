//! Options for opening a store.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Create the store if there is none; otherwise a missing store is [`OpenError::Missing`](crate::OpenError::Missing).
    pub create: bool,
    /// Migrate the schema of a PostgreSQL database. An SQLite file is always migrated.
    pub migrate: bool,
    /// Capacity of the write queue; one more write is [`StoreError::Overloaded`](crate::StoreError::Overloaded).
    pub write_queue: usize,
    pub readers: usize,
    /// Timeout of administrative operations, which wait for concurrent writes.
    pub admin_timeout: Duration,
    /// Timeout of a request: for PostgreSQL to respond, or for the write lock of an SQLite file.
    pub timeout: Duration,
    /// Retry for some seconds if the database server does not accept connections yet; otherwise fail immediately.
    pub await_server: bool,
}
