//! Connections to the database file.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

/// Timeout for a lock that another process holds.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Page cache of a writing connection, in KiB. It holds the inner pages of a table with many million plants.
const WRITER_CACHE_KIB: i64 = 16_384;

/// Opens the file with the settings of all connections. The path is never interpreted as a URI.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Otherwise some builds of SQLite plan a prepared statement again whenever a bound value changes.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // On macOS, a sync without it leaves data in the cache of the drive. Other systems ignore it.
    connection.pragma_update(None, "fullfsync", true)?;
    // SQLite's automatic checkpoints hide a failed sync.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // Views, triggers and indexes of an untrusted file must not call functions with side effects.
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(connection)
}

/// Opens a read-only connection.
pub(crate) fn connect_reader(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connect(path)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// Opens a connection for frequent writes.
pub(crate) fn connect_writer(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connect(path)?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    Ok(connection)
}
