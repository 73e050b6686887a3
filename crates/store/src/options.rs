//! Options of an open store.

use std::time::Duration;

/// Options to open a store with.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Make the store when there is none; otherwise that is [`OpenError::Missing`](crate::OpenError::Missing).
    pub create: bool,
    /// Bring the schema of a database server up to date; a file is always brought up to date.
    pub migrate: bool,
    /// Writes that may wait for the writer; one more is [`StoreError::Overloaded`](crate::StoreError::Overloaded).
    pub write_queue: usize,
    pub readers: usize,
    /// Timeout of a change that an operator makes, while others write.
    pub operator_timeout: Duration,
    /// Timeout of a request for a database server, or for the write lock of a file.
    pub timeout: Duration,
    /// Retry for some seconds when a database server does not accept connections yet; otherwise that is an error at once.
    pub await_server: bool,
}
