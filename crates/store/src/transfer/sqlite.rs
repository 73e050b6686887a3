//! Snapshot of a file, restore into a new file, and import.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Transaction, TransactionBehavior, params, params_from_iter};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, sleep_until};

use super::line::{ImportOutcome, ImportResult, ImportRow};
use super::snapshot::{LastIds, Selection, Snapshot, SnapshotError, SnapshotMessage, SnapshotStart, last_message};
use super::table::{Cell, Chunk, KEYS, PLANTS, SHARES, TOKENS, Table, USERS, names};
use crate::error::{OpenError, RestoreError, StoreError};
use crate::new_file::{NewFile, beside};
use crate::plants::next_version;
use crate::sqlite::{
    Checkpointer, DatabaseFile, Sqlite, change_error, connect_reader, connect_writer, create_schema, describe, examine,
    store_error,
};
use crate::url::StoreUrl;
use plantstore_model::plant::{NewPlant, Tag};
use plantstore_model::user::UserName;

/// Timeout for the receiver to receive a chunk. The WAL cannot be reset during a snapshot, and grows with every write.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two attempts to send a chunk.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// The first schema versions with idempotency keys and shares, with creators of tokens and shares by name, and with one table of
/// shares.
const KEYS_SINCE: i64 = 2;
const SELF_SERVICE_SINCE: i64 = 3;
const ONE_TABLE_SINCE: i64 = 4;

/// The shares of earlier schema versions, as the migrations would store them.
const SHARES_OF_2: &str = "(
    SELECT name AS grantee_name, owner_id, role, shares.created_at, grantee_id, NULL AS declined_at
    FROM shares JOIN users ON user_id = grantee_id) AS shares_by_name WHERE $1 IS NULL";
const SHARES_OF_3: &str = "(
    SELECT grantee_name, owner_id, role, shares_by_name.created_at, user_id AS grantee_id, NULL AS declined_at
    FROM shares_by_name LEFT JOIN users ON name = grantee_name AND user_id <> owner_id
    UNION ALL
    SELECT name, owner_id, role, shares.created_at, grantee_id, NULL FROM shares JOIN users ON user_id = grantee_id
    WHERE (name, owner_id) NOT IN (SELECT grantee_name, owner_id FROM shares_by_name)) AS shares_by_name
    WHERE $1 IS NULL";
/// With the order of the tables, in which nothing has to be sorted.
const OWNED_PLANTS: &str =
    "users CROSS JOIN plants ON plants.user_id = users.user_id WHERE $1 IS NULL OR users.name = $1";

/// Starts reading the file at `path` in a thread and in one transaction.
pub(super) fn snapshot(path: &Path, selection: Selection) -> Result<Snapshot, OpenError> {
    let (connection, schema) = examine(path, selection == Selection::Everything)?;
    let (sender, snapshot) = Snapshot::channel();
    let reading = move || {
        let reader = SnapshotReader { connection, schema, selection, sender };
        if let Some(last) = last_message(reader.read()) {
            drop(reader.send(last));
        }
    };
    let started = thread::Builder::new().name("snapshot".to_owned()).spawn(reading);
    started.map_err(|error| OpenError::Unusable(StoreUrl::Sqlite(path.to_owned()), error.to_string()))?;
    Ok(snapshot)
}

struct SnapshotReader {
    connection: Connection,
    schema: i64,
    selection: Selection,
    sender: Sender<SnapshotMessage>,
}

impl From<rusqlite::Error> for SnapshotError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(store_error(&error))
    }
}

impl SnapshotReader {
    fn read(&self) -> Result<(), SnapshotError> {
        // The snapshot is taken by the first statement.
        let _transaction = self.connection.unchecked_transaction()?;
        let start =
            SnapshotStart { users: self.count(&USERS)?, plants: self.count(&PLANTS)?, last_ids: self.last_ids()? };
        self.send(SnapshotMessage::Start(start))?;
        if self.selection == Selection::Everything {
            let is_known =
                |table: &&Table| self.schema >= KEYS_SINCE || ![SHARES.name, KEYS.name].contains(&table.name);
            for table in [&USERS, &TOKENS, &SHARES, &KEYS].into_iter().filter(is_known) {
                self.check_users(table)?;
                self.send_rows(table)?;
            }
        }
        self.send_rows(&PLANTS)
    }

    /// Returns the selected rows of a table of this schema version.
    fn rows(&self, table: &Table) -> &'static str {
        match table.name {
            "plants" => OWNED_PLANTS,
            "shares_by_name" if self.schema < SELF_SERVICE_SINCE => SHARES_OF_2,
            "shares_by_name" if self.schema < ONE_TABLE_SINCE => SHARES_OF_3,
            _ => table.rows,
        }
    }

    fn count(&self, table: &Table) -> rusqlite::Result<u64> {
        let count = format!("SELECT count(*) FROM {}", self.rows(table));
        self.connection.query_row(&count, [self.selection.user()], |row| row.get(0).map(i64::unsigned_abs))
    }

    /// Returns the ids that SQLite stores for AUTOINCREMENT, and those of deleted users whose plants are not yet removed.
    fn last_ids(&self) -> rusqlite::Result<LastIds> {
        const LAST: &str = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?1";
        const DELETED: &str = "SELECT coalesce(max(user_id), 0) FROM departed_users";
        let last = |table| self.connection.query_row(LAST, [table], |row| row.get::<_, i64>(0));
        let deleted = self.connection.query_row(DELETED, [], |row| row.get::<_, i64>(0))?;
        Ok(LastIds { user: last("users")?.max(deleted), token: last("tokens")? })
    }

    /// Checks that the users of all rows exist. Programs that do not enforce foreign keys, such as `sqlite3` by default, can leave
    /// rows without a user.
    fn check_users(&self, table: &'static Table) -> Result<(), SnapshotError> {
        if table.users.is_empty() {
            return Ok(());
        }
        let missing = table.users.iter().map(|column| format!("{column} NOT IN (SELECT user_id FROM users)"));
        let rows = format!("{} AND ({})", self.rows(table), missing.collect::<Vec<_>>().join(" OR "));
        let reject = |found: &Chunk| match found.rows().next() {
            Some(row) => Err(table.bad_row(row, "its user does not exist".to_owned()).into()),
            None => Ok(()),
        };
        reject(&self.read_rows(table, &rows, |full| reject(&full))?)
    }

    fn send_rows(&self, table: &'static Table) -> Result<(), SnapshotError> {
        let rows = format!("{} ORDER BY {}", self.rows(table), table.order.join(", "));
        let last = self.read_rows(table, &rows, |full| self.send(SnapshotMessage::Rows(full)))?;
        self.send(SnapshotMessage::Rows(last))
    }

    /// Reads rows, passes full chunks to `each`, and returns the last chunk.
    fn read_rows(
        &self,
        table: &'static Table,
        rows: &str,
        each: impl Fn(Chunk) -> Result<(), SnapshotError>,
    ) -> Result<Chunk, SnapshotError> {
        let mut columns = table.select_list();
        if self.schema < SELF_SERVICE_SINCE {
            columns = columns.replace("tokens.created_by", "'operator'");
        }
        let mut statement = self.connection.prepare(&format!("SELECT {columns} FROM {rows}"))?;
        let mut found = statement.query([self.selection.user()])?;
        let mut chunk = Chunk::new(table);
        while let Some(row) = found.next()? {
            chunk.read(|index, _| row.get_ref(index).map_err(|error| error.to_string()).and_then(cell))?;
            if let Some(full) = chunk.take_full() {
                each(full)?;
            }
        }
        Ok(chunk)
    }

    /// Sends a message. Waits for the receiver if the channel is full.
    fn send(&self, mut message: SnapshotMessage) -> Result<(), SnapshotError> {
        let deadline = Instant::now() + STALL_TIMEOUT;
        loop {
            message = match self.sender.try_send(message) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(message)) if Instant::now() < deadline => message,
                Err(TrySendError::Full(_) | TrySendError::Closed(_)) => return Err(SnapshotError::ReceiverGone),
            };
            thread::park_timeout(RETRY_PAUSE);
        }
    }
}

fn cell(value: ValueRef<'_>) -> Result<Cell, String> {
    match value {
        ValueRef::Null => Ok(Cell::Null),
        ValueRef::Integer(number) => Ok(Cell::Integer(number)),
        ValueRef::Text(text) => {
            str::from_utf8(text).map(|text| Cell::Text(text.into())).map_err(|error| error.to_string())
        }
        ValueRef::Blob(bytes) => Ok(Cell::Bytes(bytes.into())),
        ValueRef::Real(_) => Err("a value is a floating-point number".to_owned()),
    }
}

/// A new file. It has a temporary name until it is complete, and needs no journal, because an incomplete file is discarded.
pub struct RestoreTarget {
    /// Declared before `file`, so that it is closed before the file is removed.
    connection: Option<Connection>,
    file: NewFile,
    path: PathBuf,
}

impl RestoreTarget {
    pub(super) fn begin(path: &Path) -> Result<Self, RestoreError> {
        let url = || StoreUrl::Sqlite(path.to_owned());
        // First, because an existing store may have a write-ahead log as well.
        let file = NewFile::begin(path, false)?;
        reject_leftovers(path)?;
        let connection = prepare(file.partial());
        let connection = connection.map_err(|error| OpenError::Unusable(url(), describe(&error)))?;
        Ok(Self { connection: Some(connection), file, path: path.to_owned() })
    }

    pub(super) fn put(&mut self, chunk: &Chunk) -> Result<(), StoreError> {
        match &self.connection {
            Some(connection) => insert(connection, chunk).map_err(|error| store_error(&error)),
            None => Err(StoreError::Internal("the file is complete already".to_owned())),
        }
    }

    pub(super) fn contents(&mut self, last_ids: LastIds) -> Result<Snapshot, StoreError> {
        if let Some(connection) = self.connection.take() {
            store_last_ids(&connection, last_ids).map_err(|error| store_error(&error))?;
            connection.execute_batch("COMMIT").map_err(|error| store_error(&error))?;
            connection.close().map_err(|(_, error)| store_error(&error))?;
        }
        check_integrity(self.file.partial())?;
        snapshot(self.file.partial(), Selection::Everything).map_err(|error| StoreError::Internal(error.to_string()))
    }

    pub(super) fn finish(self) -> Result<(), RestoreError> {
        // Another process may have created them meanwhile.
        reject_leftovers(&self.path)?;
        Ok(self.file.finish()?)
    }
}

/// Rejects a log or journal of another file of this name, because SQLite would apply it to the new file.
fn reject_leftovers(path: &Path) -> Result<(), RestoreError> {
    if ["-wal", "-journal"].iter().any(|suffix| beside(path, suffix).exists()) {
        let found = "a write-ahead log or journal beside it";
        return Err(RestoreError::Occupied(StoreUrl::Sqlite(path.to_owned()), found));
    }
    Ok(())
}

fn prepare(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connect_writer(path)?;
    connection.pragma_update_and_check(None, "journal_mode", "OFF", |_| Ok(()))?;
    // The whole file is synced before it is renamed.
    connection.pragma_update(None, "synchronous", "OFF")?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    create_schema(&connection)?;
    Ok(connection)
}

fn insert(connection: &Connection, chunk: &Chunk) -> rusqlite::Result<()> {
    let table = chunk.table;
    let values = (1..=table.stored_columns().count()).map(|number| format!("?{number}")).collect::<Vec<_>>().join(", ");
    let insert = format!("INSERT INTO {} ({}) VALUES ({values})", table.name, names(table.stored_columns()));
    let mut statement = connection.prepare_cached(&insert)?;
    chunk.rows().try_for_each(|row| {
        let stored = row.iter().zip(table.columns).filter(|(_, column)| !column.is_joined());
        statement.execute(params_from_iter(stored.map(|(cell, _)| cell))).map(|_| ())
    })
}

/// Stores the ids that must not be assigned again. SQLite has increased its own with the inserted rows.
fn store_last_ids(connection: &Connection, ids: LastIds) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM sqlite_sequence WHERE name IN ('users', 'tokens')", [])?;
    let mut statement = connection.prepare("INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)")?;
    [("users", ids.user), ("tokens", ids.token)].into_iter().try_for_each(|last| statement.execute(last).map(|_| ()))
}

/// Checks that all pages and indexes of the file are consistent.
fn check_integrity(path: &Path) -> Result<(), StoreError> {
    let check = || {
        let connection = connect_reader(path)?;
        connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get::<_, String>(0))
    };
    match check().map_err(|error| store_error(&error))?.as_str() {
        "ok" => Ok(()),
        found => Err(StoreError::Internal(format!("the new file is corrupt: {found}"))),
    }
}

/// After a batch, the importer pauses for the time that it held the write lock divided by this. A waiting process polls the
/// lock and must find it free at some point.
const LOCK_PAUSE_DIVISOR: u32 = 4;

/// Importer with its own connection and checkpoint thread.
pub(super) struct Importer {
    connection: Connection,
    file: Arc<DatabaseFile>,
    checkpointer: Checkpointer,
    not_before: Instant,
}

impl Importer {
    pub(super) fn start(engine: &Sqlite) -> Result<Self, StoreError> {
        let start = || {
            let connection = connect_writer(&engine.path)?;
            connection.busy_timeout(engine.admin_timeout)?;
            let checkpointer = Checkpointer::start(&engine.path, &engine.file, &connection, &engine.metrics)?;
            Ok(Self { connection, file: Arc::clone(&engine.file), checkpointer, not_before: Instant::now() })
        };
        start().map_err(|error| change_error(&error))
    }

    pub(super) async fn put(&mut self, batch: &[ImportRow], stop: bool) -> Result<ImportResult, StoreError> {
        sleep_until(self.not_before).await;
        let (imported, held) = self.commit(batch, stop).map_err(|error| change_error(&error))?;
        self.file.verify_or_exit(&self.connection)?;
        self.checkpointer.after_commit(&self.connection);
        self.not_before = Instant::now() + held / LOCK_PAUSE_DIVISOR;
        Ok(imported)
    }

    pub(super) fn finish(self) {
        self.checkpointer.finish();
    }

    /// Also returns for how long the write lock was held.
    fn commit(&mut self, batch: &[ImportRow], stop: bool) -> rusqlite::Result<(ImportResult, Duration)> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let start = Instant::now();
        let mut owners = BatchOwners::default();
        let mut imported = ImportResult { outcomes: Vec::with_capacity(batch.len()), new_users: 0 };
        for ImportRow { owner, plant } in batch {
            let owner = owners.find(&transaction, owner)?;
            let outcome = store(&transaction, owner, plant)?;
            owner.changed |= outcome == ImportOutcome::Stored;
            imported.outcomes.push(outcome);
            if stop && outcome != ImportOutcome::Stored {
                break;
            }
        }
        imported.new_users = owners.store_versions(&transaction)?;
        transaction.commit()?;
        Ok((imported, start.elapsed()))
    }
}

fn store(transaction: &Transaction<'_>, owner: &BatchOwner, plant: &NewPlant) -> rusqlite::Result<ImportOutcome> {
    const STORE: &str = "
        INSERT INTO plants (user_id, plant_id, name, tag, version) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING";
    const SAME: &str = "SELECT name = ?3 AND tag IS ?4 FROM plants WHERE user_id = ?1 AND plant_id = ?2";
    let (name, tag) = (plant.name.as_str(), plant.tag.as_ref().map(Tag::as_str));
    let stored =
        transaction.prepare_cached(STORE)?.execute(params![owner.id, plant.id.get(), name, tag, owner.next_version])?;
    if stored == 1 {
        return Ok(ImportOutcome::Stored);
    }
    let mut same = transaction.prepare_cached(SAME)?;
    let same = same.query_row(params![owner.id, plant.id.get(), name, tag], |row| row.get(0))?;
    Ok(if same { ImportOutcome::Same } else { ImportOutcome::Different })
}

/// The owners of the plants of a batch.
#[derive(Default)]
struct BatchOwners<'a>(HashMap<&'a UserName, BatchOwner>);

struct BatchOwner {
    id: i64,
    next_version: i64,
    changed: bool,
    new: bool,
}

impl<'a> BatchOwners<'a> {
    /// Returns the owner of this name, who is created if there is none.
    fn find(&mut self, transaction: &Transaction<'_>, name: &'a UserName) -> rusqlite::Result<&mut BatchOwner> {
        Ok(match self.0.entry(name) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(ensure_owner(transaction, name)?),
        })
    }

    /// Stores the new versions, and returns the number of new users.
    fn store_versions(&self, transaction: &Transaction<'_>) -> rusqlite::Result<u64> {
        for owner in self.0.values().filter(|owner| owner.changed) {
            transaction
                .prepare_cached("UPDATE users SET version = ?2 WHERE user_id = ?1")?
                .execute([owner.id, owner.next_version])?;
        }
        Ok(self.0.values().filter(|owner| owner.new).count() as u64)
    }
}

fn ensure_owner(transaction: &Transaction<'_>, name: &UserName) -> rusqlite::Result<BatchOwner> {
    let created = transaction
        .prepare_cached("INSERT INTO users (name, created_at) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING")?
        .execute(params![name.as_str(), Timestamp::now().as_second()])?;
    transaction.prepare_cached("SELECT user_id, version FROM users WHERE name = ?1")?.query_row(
        [name.as_str()],
        |row| {
            Ok(BatchOwner {
                id: row.get(0)?,
                next_version: next_version(row.get(1)?),
                changed: false,
                new: created == 1,
            })
        },
    )
}
