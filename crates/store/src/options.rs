//! Options for opening a store.

use std::str::FromStr;
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

/// Address of a worker of Citus as this process reaches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerAddress {
    /// Host and port in the catalog of Citus, as `HOST:PORT`.
    pub known_as: String,
    pub host: String,
    pub port: u16,
}

impl FromStr for WorkerAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "must be CATALOG-HOST:PORT=HOST:PORT, such as 10.0.0.5:5432=worker1.example:5432";
        let (known_as, address) = text.split_once('=').ok_or(FORM)?;
        let (host, port) = address.rsplit_once(':').ok_or(FORM)?;
        let is_address =
            known_as.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !is_address || host.is_empty() {
            return Err(FORM);
        }
        Ok(Self { known_as: known_as.to_owned(), host: host.to_owned(), port: port.parse().map_err(|_| FORM)? })
    }
}

pub struct Opened<T> {
    pub store: T,
    pub is_new: bool,
}

#[derive(Clone, Debug)]
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
    /// Connect to each worker of Citus, at these addresses if they differ from the catalog; if `None`, only to the server of the URL.
    pub worker_addresses: Option<Vec<WorkerAddress>>,
}

impl OpenOptions {
    /// Returns the options of one connection for an operator's command.
    pub fn of_command(schema_change: SchemaChange, timeout: Duration) -> Self {
        Self {
            schema_change,
            write_queue: 1,
            readers: 1,
            admin_timeout: timeout,
            timeout,
            await_server: false,
            worker_addresses: None,
        }
    }
}
