//! Schema of the file: creation, recognition, and forward-only migrations.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior};

use super::connection::{connect, connect_reader, describe};
use crate::error::OpenError;
use crate::options::{SchemaChange, report_migration};
use crate::url::StoreUrl;
use plantstore_model::text::Escaped;

/// Migrations, numbered from 1. A released migration is never changed.
const MIGRATIONS: &[&str] = &[
    include_str!("../../../../migrations/sqlite/0001_plants.sql"),
    include_str!("../../../../migrations/sqlite/0002_keys_and_shares.sql"),
    include_str!("../../../../migrations/sqlite/0003_self_service.sql"),
    include_str!("../../../../migrations/sqlite/0004_one_table_of_shares.sql"),
];

/// The tables, with the schema versions that have them.
const TABLES: &[(&str, RangeInclusive<i64>)] = &[
    ("users", 1..=i64::MAX),
    ("departed_users", 1..=i64::MAX),
    ("tokens", 1..=i64::MAX),
    ("plants", 1..=i64::MAX),
    ("idempotency_keys", 2..=i64::MAX),
    ("shares", 2..=3),
    ("shares_by_name", 3..=i64::MAX),
];

/// Identifies a plantstore file in its header ("PLNT").
const APPLICATION_ID: i64 = 0x504C_4E54;

/// Timeout for a file that another process has locked, and the pause between two attempts.
const LOCKED_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Creates the file, or migrates its schema, if that is needed and allowed. Returns true if it is new.
pub(super) fn prepare(path: &Path, change: SchemaChange) -> Result<bool, OpenError> {
    let url = StoreUrl::Sqlite(path.to_owned());
    let create = change != SchemaChange::None;
    // Before any connection of this process: closing a file releases all locks that the process has on it.
    // Plants are private, so only the owner can read the file. SQLite gives the WAL and its index the same mode.
    // Opened for writing, so that a read-only file is rejected before SQLite creates a WAL.
    match OpenOptions::new().read(true).write(true).create(create).truncate(false).mode(0o600).open(path) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound && !create => return Err(OpenError::Missing(url)),
        Err(error) => return Err(OpenError::Unusable(url, error.to_string())),
    }
    let begun = Instant::now();
    loop {
        let connected = connect(path).map_err(SchemaError::from);
        match connected.and_then(|mut connection| migrate(&mut connection, &url, change)) {
            // SQLite does not wait when another process is preparing the same file.
            Err(SchemaError::Failed(error))
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && begun.elapsed() < LOCKED_TIMEOUT =>
            {
                thread::park_timeout(RETRY_PAUSE);
            }
            prepared => return prepared.map_err(|error| error.into_open_error(&url)),
        }
    }
}

/// A file of this or an earlier release, open for reading.
pub(crate) struct ExaminedFile {
    pub(crate) connection: Connection,
    pub(crate) schema: i64,
    pub(crate) url: StoreUrl,
}

impl ExaminedFile {
    /// Opens the file without migrating it.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let url = StoreUrl::Sqlite(path.to_owned());
        if !path.exists() {
            return Err(OpenError::Missing(url));
        }
        let examine = || {
            let connection = connect_reader(path)?;
            let snapshot = connection.unchecked_transaction()?;
            let schema = read_version(&snapshot, &url)?;
            check_tables(&snapshot, &url, schema)?;
            drop(snapshot);
            Ok((connection, schema))
        };
        match examine().map_err(|error: SchemaError| error.into_open_error(&url))? {
            (_, 0) => Err(OpenError::Missing(url)),
            (connection, schema) => Ok(Self { connection, schema, url }),
        }
    }

    pub(crate) fn check_current(&self) -> Result<(), OpenError> {
        SchemaChange::None.is_needed(&self.url, self.schema, latest()).map(drop)
    }

    /// Rejects views and triggers, because they are not copied.
    pub(crate) fn check_no_views_and_triggers(&self) -> Result<(), OpenError> {
        const FIND: &str = "SELECT type, name FROM sqlite_schema WHERE type IN ('view', 'trigger') ORDER BY type, name";
        let found = self.connection.query_row(FIND, [], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
        match found.optional().map_err(|error| SchemaError::Failed(error).into_open_error(&self.url))? {
            Some((kind, name)) => {
                let name = Escaped(&name);
                let reason = format!("it has the {kind} `{name}`, which a copy would not have: drop it first");
                Err(OpenError::Unfit(self.url.clone(), reason))
            }
            None => Ok(()),
        }
    }
}

/// Checks that the file has all tables of this schema version. Other tables are ignored. A view in place of a table could be
/// endless, and with a version that is too low tables would not be copied.
fn check_tables(connection: &Connection, url: &StoreUrl, version: i64) -> Result<(), SchemaError> {
    const FIND: &str = "SELECT type = 'table' AND strict FROM pragma_table_list WHERE schema = 'main' AND name = ?1";
    if version == 0 {
        return Ok(());
    }
    for (table, versions) in TABLES {
        let is_table: Option<bool> = connection.query_row(FIND, [table], |row| row.get(0)).optional()?;
        let fault = match is_table {
            None if versions.contains(&version) => format!("the table `{table}` is missing"),
            Some(false) => format!("`{table}` is not a table that plantstore created"),
            Some(true) if !versions.contains(&version) => {
                format!("its user_version is {version}, which does not fit the table `{table}`")
            }
            None | Some(true) => continue,
        };
        return Err(OpenError::NotPlantstore(url.clone(), fault).into());
    }
    Ok(())
}

/// Creates the schema in an empty file that no other process uses.
pub(crate) fn create(connection: &Connection) -> rusqlite::Result<()> {
    MIGRATIONS.iter().try_for_each(|migration| connection.execute_batch(migration))?;
    write_header(connection)
}

/// Error of preparing or examining a schema.
#[derive(thiserror::Error, Debug)]
#[error(transparent)]
enum SchemaError {
    Rejected(#[from] OpenError),
    Failed(#[from] rusqlite::Error),
}

impl SchemaError {
    fn into_open_error(self, url: &StoreUrl) -> OpenError {
        match self {
            Self::Rejected(error) => error,
            Self::Failed(error) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
                OpenError::NotPlantstore(url.clone(), "it is not an SQLite database".to_owned())
            }
            Self::Failed(error) => OpenError::Unusable(url.clone(), describe(&error)),
        }
    }
}

fn latest() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

fn migrate(connection: &mut Connection, url: &StoreUrl, change: SchemaChange) -> Result<bool, SchemaError> {
    let unusable = |reason: &str| SchemaError::Rejected(OpenError::Unusable(url.clone(), reason.to_owned()));
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        return Err(unusable("it may only be read"));
    }
    let is_needed = change.is_needed(url, read_version(&connection.transaction()?, url)?, latest())?;
    // Before the transaction, because the journal mode cannot be changed in one.
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(unusable("its file system does not allow write-ahead logging"));
    }
    if !is_needed {
        if !is_writable(connection)? {
            return Err(unusable("it, or a file beside it whose name starts with its own, may only be read"));
        }
        return Ok(false);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Checked again under the lock, because another process may have created or migrated it.
    let found = read_version(&transaction, url)?;
    change.is_needed(url, found, latest())?;
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.execute_batch(migration)?;
    }
    write_header(&transaction)?;
    transaction.commit()?;
    report_migration(url, found, latest());
    Ok(found == 0)
}

fn write_header(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", latest())
}

/// Returns false if the database, its WAL or the index of the WAL is read-only.
fn is_writable(connection: &mut Connection) -> rusqlite::Result<bool> {
    // Without waiting: a lock that another process holds shows that the file is writable.
    connection.busy_timeout(Duration::ZERO)?;
    let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    Ok(!begun.is_err_and(|error| error.sqlite_error_code() == Some(ErrorCode::ReadOnly)))
}

/// Returns the schema version of the file: 0 if it is empty. In a transaction, because another process may create the
/// schema between two reads.
fn read_version(transaction: &Transaction<'_>, url: &StoreUrl) -> Result<i64, SchemaError> {
    let foreign = |reason: String| Err(OpenError::NotPlantstore(url.clone(), reason).into());
    let pragma = |name| transaction.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let version = pragma("user_version")?;
    if pragma("application_id")? != APPLICATION_ID {
        let tables: i64 = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if tables > 0 || version != 0 {
            return foreign("it is an SQLite database of another program".to_owned());
        }
        return Ok(0);
    }
    match version {
        ..1 => foreign(format!("its user_version is {version}, which no release wrote")),
        version if version > latest() => Err(OpenError::Newer(url.clone(), version, latest()).into()),
        version => Ok(version),
    }
}
