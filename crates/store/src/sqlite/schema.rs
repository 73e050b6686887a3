//! Schema of the file: creation, recognition, and forward-only migrations.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::connection::{connect, connect_reader};
use super::database_error::describe;
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
    let url = || StoreUrl::Sqlite(path.to_owned());
    let create = change != SchemaChange::None;
    // Before any connection of this process: closing a file releases all locks that the process has on it.
    // Plants are private, so only the owner can read the file. SQLite gives the WAL and its index the same mode.
    // Opened for writing, so that a read-only file is rejected before SQLite creates a WAL.
    match OpenOptions::new().read(true).write(true).create(create).truncate(false).mode(0o600).open(path) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound && !create => return Err(OpenError::Missing(url())),
        Err(error) => return Err(OpenError::Unusable(url(), error.to_string())),
    }
    let begun = Instant::now();
    loop {
        match connect(path)
            .map_err(SchemaError::from)
            .and_then(|mut connection| migrate(&mut connection, &url(), change))
        {
            // SQLite does not wait when another process is preparing the same file.
            Err(SchemaError::Failed(error)) if is_locked(&error) && begun.elapsed() < LOCKED_TIMEOUT => {
                thread::park_timeout(RETRY_PAUSE);
            }
            prepared => return prepared.map_err(|error| error.into_open_error(path)),
        }
    }
}

fn is_locked(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}

/// Opens a file of this or an earlier release for reading, without migrating it. Also returns its schema version. With
/// `for_copy`, the file must not have objects that would not be copied.
pub(crate) fn examine(path: &Path, for_copy: bool) -> Result<(Connection, i64), OpenError> {
    if !path.exists() {
        return Err(OpenError::Missing(StoreUrl::Sqlite(path.to_owned())));
    }
    let examined = connect_reader(path).map_err(SchemaError::from).and_then(|connection| {
        let version = read_version(&connection)?;
        check_tables(&connection, version)?;
        if for_copy {
            check_no_views_and_triggers(&connection)?;
        }
        Ok((version, connection))
    });
    match examined.map_err(|error| error.into_open_error(path))? {
        (0, _) => Err(OpenError::Missing(StoreUrl::Sqlite(path.to_owned()))),
        (version, connection) => Ok((connection, version)),
    }
}

/// Fails if the file does not have the current schema.
pub(crate) fn check_schema(path: &Path) -> Result<(), OpenError> {
    let (_, version) = examine(path, false)?;
    SchemaChange::None.is_needed(&StoreUrl::Sqlite(path.to_owned()), version, latest()).map(drop)
}

/// Checks that the file has all tables of this schema version. Other tables are ignored. A view in place of a table could be
/// endless, and with a version that is too low tables would not be copied.
fn check_tables(connection: &Connection, version: i64) -> Result<(), SchemaError> {
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
        return Err(SchemaError::Foreign(fault));
    }
    Ok(())
}

/// Rejects views and triggers, because they are not copied.
fn check_no_views_and_triggers(connection: &Connection) -> Result<(), SchemaError> {
    const FIND: &str = "SELECT type, name FROM sqlite_schema WHERE type IN ('view', 'trigger') ORDER BY type, name";
    let found = connection.query_row(FIND, [], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    match found.optional()? {
        Some((kind, name)) => Err(SchemaError::Unfit(format!(
            "it has the {kind} `{}`, which a copy would not have: drop it first",
            Escaped(&name)
        ))),
        None => Ok(()),
    }
}

/// Creates the schema in an empty file that no other process uses.
pub(crate) fn create(connection: &Connection) -> rusqlite::Result<()> {
    MIGRATIONS.iter().try_for_each(|migration| connection.execute_batch(migration))?;
    write_header(connection)
}

/// Error of preparing or examining a schema.
enum SchemaError {
    Rejected(OpenError),
    Foreign(String),
    Unfit(String),
    Unusable(&'static str),
    Newer(i64),
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for SchemaError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<OpenError> for SchemaError {
    fn from(error: OpenError) -> Self {
        Self::Rejected(error)
    }
}

impl SchemaError {
    fn into_open_error(self, path: &Path) -> OpenError {
        let url = StoreUrl::Sqlite(path.to_owned());
        match self {
            Self::Rejected(error) => error,
            Self::Foreign(reason) => OpenError::NotPlantstore(url, reason),
            Self::Unfit(reason) => OpenError::Unfit(url, reason),
            Self::Unusable(reason) => OpenError::Unusable(url, reason.to_owned()),
            Self::Newer(found) => OpenError::Newer(url, found, latest()),
            Self::Failed(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => {
                OpenError::NotPlantstore(url, "it is not an SQLite database".to_owned())
            }
            Self::Failed(error) => OpenError::Unusable(url, describe(&error)),
        }
    }
}

fn latest() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

fn migrate(connection: &mut Connection, url: &StoreUrl, change: SchemaChange) -> Result<bool, SchemaError> {
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        return Err(SchemaError::Unusable("it may only be read"));
    }
    let is_needed = change.is_needed(url, read_version(connection)?, latest())?;
    // Before the transaction, because the journal mode cannot be changed in one.
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(SchemaError::Unusable("its file system does not allow write-ahead logging"));
    }
    if !is_needed {
        return check_writable(connection).map(|()| false);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Checked again under the lock, because another process may have created or migrated it.
    let found = read_version(&transaction)?;
    change.is_needed(url, found, latest())?;
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.execute_batch(migration)?;
    }
    write_header(&transaction)?;
    transaction.commit()?;
    report_migration(url, found, latest());
    Ok(found == 0)
}

/// Stores the application id and the schema version.
fn write_header(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", latest())
}

/// Fails if the database, its WAL or the index of the WAL is read-only.
fn check_writable(connection: &mut Connection) -> Result<(), SchemaError> {
    // Without waiting: a lock that another process holds shows that the file is writable.
    connection.busy_timeout(Duration::ZERO)?;
    match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ReadOnly) => {
            Err(SchemaError::Unusable("it, or a file beside it whose name starts with its own, may only be read"))
        }
        _ => Ok(()),
    }
}

/// Returns the schema version of the file: 0 if it is empty.
fn read_version(connection: &Connection) -> Result<i64, SchemaError> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let version = pragma("user_version")?;
    if pragma("application_id")? != APPLICATION_ID {
        let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if tables > 0 || version != 0 {
            return Err(SchemaError::Foreign("it is an SQLite database of another program".to_owned()));
        }
        return Ok(0);
    }
    match version {
        ..1 => Err(SchemaError::Foreign(format!("its user_version is {version}, which no release wrote"))),
        version if version > latest() => Err(SchemaError::Newer(version)),
        version => Ok(version),
    }
}
