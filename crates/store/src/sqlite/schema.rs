//! Making a file ready: creation, recognition, and forward-only migrations.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::connection::{connect, connect_reader};
use super::database_error::describe;
use crate::error::OpenError;
use crate::url::StoreUrl;

/// Numbered from 1, never changed once released: a change of the schema is another file.
const MIGRATIONS: &[&str] = &[
    include_str!("../../../../migrations/sqlite/0001_plants.sql"),
    include_str!("../../../../migrations/sqlite/0002_keys_and_shares.sql"),
];

/// The tables that each schema adds, from the first on.
const TABLES: &[&[&str]] = &[&["users", "departed_users", "tokens", "plants"], &["idempotency_keys", "shares"]];

/// Marks a file as ours, in its header ("PLNT").
const APPLICATION_ID: i64 = 0x504C_4E54;

/// Timeout for a file that other processes have locked, and the pause between two attempts.
const LOCKED_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Makes the file if there is none and `create` allows it, and brings its schema up to date. True when it is new.
pub(super) fn prepare(path: &Path, create: bool) -> Result<bool, OpenError> {
    let url = || StoreUrl::Sqlite(path.to_owned());
    // Before any connection of this process: closing a file drops all locks that the process has on it.
    // Plants are private: the file is for its owner alone. SQLite gives the files beside it the same mode.
    // Opened for writing, so that one that may only be read is rejected before SQLite puts other files beside it.
    match OpenOptions::new().read(true).write(true).create(create).truncate(false).mode(0o600).open(path) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound && !create => return Err(OpenError::Missing(url())),
        Err(error) => return Err(OpenError::Unusable(url(), error.to_string())),
    }
    let begun = Instant::now();
    loop {
        match connect(path).map_err(Stop::from).and_then(|mut connection| migrate(&mut connection, create)) {
            // Changing the journal of a file that others are making ready, too, is rejected at once instead of waited for.
            Err(Stop::Failed(error)) if is_locked(&error) && begun.elapsed() < LOCKED_TIMEOUT => {
                thread::park_timeout(RETRY_PAUSE);
            }
            prepared => return prepared.map_err(|stop| stop.into_error(path)),
        }
    }
}

fn is_locked(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}

/// A connection that reads a file as it is, of whichever release up to this one; also says which schema it has. For a copy, the
/// file must hold nothing that a copy would not have.
pub(super) fn examine(path: &Path, for_copy: bool) -> Result<(Connection, i64), OpenError> {
    if !path.exists() {
        return Err(OpenError::Missing(StoreUrl::Sqlite(path.to_owned())));
    }
    let recognised = connect_reader(path).map_err(Stop::from).and_then(|connection| {
        let version = recognise(&connection)?;
        check_tables(&connection, version)?;
        if for_copy {
            check_others(&connection)?;
        }
        Ok((version, connection))
    });
    match recognised.map_err(|stop| stop.into_error(path))? {
        (0, _) => Err(OpenError::Missing(StoreUrl::Sqlite(path.to_owned()))),
        (version, connection) => Ok((connection, version)),
    }
}

/// Checks that the tables of this schema are what a release made, and those of later ones are not there: a view in their place could
/// go on for ever, and a version that was set back would leave tables out.
fn check_tables(connection: &Connection, version: i64) -> Result<(), Stop> {
    const FIND: &str = "SELECT type = 'table' AND strict FROM pragma_table_list WHERE schema = 'main' AND name = ?1";
    if version == 0 {
        return Ok(());
    }
    for (since, table) in (1..).zip(TABLES).flat_map(|(since, tables)| tables.iter().map(move |table| (since, table))) {
        let sound: Option<bool> = connection.query_row(FIND, [table], |row| row.get(0)).optional()?;
        let fault = match sound {
            None if since <= version => format!("the table `{table}` is missing"),
            Some(false) => format!("`{table}` is not a table that plantstore made"),
            Some(true) if since > version => {
                format!("its user_version is {version}, which does not fit the table `{table}`")
            }
            None | Some(true) => continue,
        };
        return Err(Stop::Foreign(fault));
    }
    Ok(())
}

/// Rejects views and triggers: they are not copied, and what they were there for would be lost without a word.
fn check_others(connection: &Connection) -> Result<(), Stop> {
    const FIND: &str = "SELECT type, name FROM sqlite_schema WHERE type IN ('view', 'trigger') ORDER BY type, name";
    let found = connection.query_row(FIND, [], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    match found.optional()? {
        Some((kind, name)) => Err(Stop::Unfit(format!(
            "it has the {kind} `{}`, which a copy would not have: drop it first",
            name.escape_debug()
        ))),
        None => Ok(()),
    }
}

/// Makes the schema in an empty file that no other process uses.
pub(super) fn create(connection: &Connection) -> rusqlite::Result<()> {
    MIGRATIONS.iter().try_for_each(|migration| connection.execute_batch(migration))?;
    mark(connection)
}

enum Stop {
    Missing,
    Foreign(String),
    Unfit(String),
    Unusable(&'static str),
    Newer(i64),
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

impl Stop {
    fn into_error(self, path: &Path) -> OpenError {
        let url = StoreUrl::Sqlite(path.to_owned());
        match self {
            Self::Missing => OpenError::Missing(url),
            Self::Foreign(why) => OpenError::Foreign(url, why),
            Self::Unfit(why) => OpenError::Unfit(url, why),
            Self::Unusable(why) => OpenError::Unusable(url, why.to_owned()),
            Self::Newer(found) => OpenError::Newer(url, found, latest()),
            Self::Failed(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => {
                OpenError::Foreign(url, "it is not an SQLite database".to_owned())
            }
            Self::Failed(error) => OpenError::Unusable(url, describe(&error)),
        }
    }
}

fn latest() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

fn migrate(connection: &mut Connection, create: bool) -> Result<bool, Stop> {
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        return Err(Stop::Unusable("it may only be read"));
    }
    let found = recognise(connection)?;
    if found == 0 && !create {
        return Err(Stop::Missing);
    }
    // Before the transaction: the journal mode is a property of the file that no transaction may change.
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(Stop::Unusable("its file system does not allow write-ahead logging"));
    }
    if found == latest() {
        return prove_writable(connection).map(|()| false);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Looked at again under the lock: another process may have come first.
    let found = recognise(&transaction)?;
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.execute_batch(migration)?;
    }
    mark(&transaction)?;
    transaction.commit()?;
    Ok(found == 0)
}

/// Says whose file this is, and of which schema.
fn mark(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", latest())
}

/// Rejects at the start what may not be written: the files beside the database count, too.
fn prove_writable(connection: &mut Connection) -> Result<(), Stop> {
    // Without waiting: another process that is writing at the moment proves it as well.
    connection.busy_timeout(Duration::ZERO)?;
    match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ReadOnly) => {
            Err(Stop::Unusable("it, or a file beside it whose name starts with its own, may only be read"))
        }
        _ => Ok(()),
    }
}

/// The schema version of the file: 0 when it is empty.
fn recognise(connection: &Connection) -> Result<i64, Stop> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let version = pragma("user_version")?;
    if pragma("application_id")? != APPLICATION_ID {
        let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        if tables > 0 || version != 0 {
            return Err(Stop::Foreign("it is an SQLite database of another program".to_owned()));
        }
        return Ok(0);
    }
    match version {
        ..1 => Err(Stop::Foreign(format!("its user_version is {version}, which no release wrote"))),
        version if version > latest() => Err(Stop::Newer(version)),
        version => Ok(version),
    }
}
