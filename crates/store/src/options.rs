//! Options for opening a store.

use std::time::Duration;

use crate::error::OpenError;
use crate::url::StoreUrl;

/// Changes of the schema that opening a store may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaChange {
    /// The store must exist and have the current schema.
    None,
    /// A new store may be created; the schema of an existing one must be current.
    Create,
    /// A new store may be created, and an older schema is migrated.
    Migrate,
}

impl SchemaChange {
    /// Returns true if a schema of version `found` must be created or migrated to `latest`, and may be. Version 0 is no schema.
    pub(crate) fn is_needed(self, url: &StoreUrl, found: i64, latest: i64) -> Result<bool, OpenError> {
        match (found, self) {
            (found, _) if found >= latest => Ok(false),
            (0, Self::None) => Err(OpenError::Missing(url.clone())),
            (0, Self::Create) | (_, Self::Migrate) => Ok(true),
            (_, Self::None | Self::Create) => Err(OpenError::Outdated(url.clone(), found, latest)),
        }
    }
}

/// Logs that a schema was migrated. A warning, because earlier releases may not be able to use the store any more.
pub(crate) fn report_migration(url: &StoreUrl, from: i64, to: i64) {
    if from > 0 && from < to {
        tracing::warn!(store = %url, "schema updated from {from} to {to}");
    }
}

#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    pub schema_change: SchemaChange,
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
