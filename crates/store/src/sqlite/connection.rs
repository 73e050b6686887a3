//! Connections to the database file: settings, statements that both engines have, and errors.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::types::Type;
use rusqlite::{CachedStatement, Connection, Error, ErrorCode, OpenFlags, Row, ToSql, ffi};

use super::batch;
use crate::error::StoreError;
use crate::sql::{FromRow, Parameter, ReadableValue, RowSource};

/// Timeout for a lock that another process holds.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Page cache of a writing connection, in KiB. It holds the inner pages of a table with many million plants.
const WRITER_CACHE_KIB: i64 = 16_384;
/// Advice after an error of the disk.
pub(super) const DISK_ADVICE: &str = "restart the service when the disk works again";
/// Names of parameters. They are bound by name, because SQLite numbers them in the order of their first use.
const PARAMETERS: [&str; 9] = ["$1", "$2", "$3", "$4", "$5", "$6", "$7", "$8", "$9"];

/// Opens the file with the settings of all connections. The path is never interpreted as a URI.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
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

pub(crate) fn connect_reader(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connect(path)?;
    connection.pragma_update(None, "query_only", true)?;
    batch::define_function(&connection)?;
    Ok(connection)
}

/// Opens a connection for frequent writes.
pub(crate) fn connect_writer(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connect(path)?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    Ok(connection)
}

impl RowSource for Row<'_> {
    type Error = Error;

    fn field<T: ReadableValue>(&self, column: usize) -> rusqlite::Result<T> {
        self.get(column)
    }

    fn lossy_text(&self, column: usize) -> rusqlite::Result<Cow<'_, str>> {
        Ok(String::from_utf8_lossy(self.get_ref(column)?.as_bytes()?))
    }

    fn invalid(column: usize, fault: String) -> Error {
        Error::FromSqlConversionFailure(column, Type::Text, fault.into())
    }
}

pub(super) fn execute(connection: &Connection, text: &str, values: &[&dyn Parameter]) -> rusqlite::Result<u64> {
    prepare(connection, text, values)?.raw_execute().map(|changed| changed as u64)
}

pub(super) fn query<T: FromRow>(
    connection: &Connection,
    text: &str,
    values: &[&dyn Parameter],
) -> rusqlite::Result<Vec<T>> {
    let mut statement = prepare(connection, text, values)?;
    let mut rows = statement.raw_query();
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(T::read(row)?);
    }
    Ok(found)
}

fn prepare<'a>(
    connection: &'a Connection,
    text: &str,
    values: &[&dyn Parameter],
) -> rusqlite::Result<CachedStatement<'a>> {
    let mut statement = connection.prepare_cached(text)?;
    for (name, value) in PARAMETERS.iter().zip(values) {
        if let Some(index) = statement.parameter_index(name)? {
            let value: &dyn ToSql = *value;
            statement.raw_bind_parameter(index, value)?;
        }
    }
    Ok(statement)
}

/// Exits the process if a sync failed. The operating system then marks the failed pages as clean, so later reads cannot be trusted.
/// The only safe reaction is to recover from what is on disk.
pub(super) fn exit_after_failed_sync(error: &Error) {
    let code = error.sqlite_error().map(|error| error.extended_code);
    if matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC)) {
        exit_process("the disk failed to sync written data", &describe(error), DISK_ADVICE);
    }
}

/// Maps the error of a change that was rolled back. Exits the process after a failed sync.
pub(crate) fn change_error(error: Error) -> StoreError {
    exit_after_failed_sync(&error);
    error.into()
}

/// Maps the error of a read, or of an operation that was rolled back.
impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        let text = describe(&error);
        let code = error.sqlite_error().map(|error| error.extended_code);
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StoreError::Full(text),
            // The shared memory file beside the database could not grow.
            _ if code == Some(ffi::SQLITE_IOERR_SHMSIZE) => StoreError::Full(text),
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::SystemIoFailure
                | ErrorCode::CannotOpen
                | ErrorCode::OutOfMemory
                | ErrorCode::ReadOnly
                | ErrorCode::FileLockingProtocolFailed,
            ) => StoreError::Unavailable(text),
            _ => StoreError::Internal(text),
        }
    }
}

/// Returns the message of the error with SQLite's extended code. It never contains a bound value.
pub(crate) fn describe(error: &Error) -> String {
    match error.sqlite_error() {
        Some(code) => format!("{error} (code {})", code.extended_code),
        None => error.to_string(),
    }
}

/// Starts a thread without which the store cannot be used: the process exits if it panics.
pub(super) fn start_thread(name: &'static str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let guarded = move || {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            let advice = "restart the service; the line before this one has the place in the code";
            exit_process(&format!("the {name} thread panicked"), "panic", advice);
        }
    };
    let started = thread::Builder::new().name(name.to_owned()).spawn(guarded);
    started.unwrap_or_else(|error| {
        exit_process(&format!("cannot start the {name} thread"), &error.to_string(), DISK_ADVICE)
    })
}

/// Logs the reason and the advice, and exits the process. All acknowledged writes are on disk; the outcome of the others is
/// unknown to their clients.
pub(super) fn exit_process(what: &str, detail: &str, advice: &str) -> ! {
    tracing::error!(detail, "{what}: exiting; {advice}");
    std::process::exit(1);
}
