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
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep_until};

use super::line::{ImportOutcome, ImportResult, ImportRow, OnDuplicate};
use super::snapshot::{LastIds, Selection, Snapshot, SnapshotMessage, SnapshotSender, SnapshotStart, closed};
use super::table::{Cell, Chunk, KEYS, PLANTS, SHARES, Table, USERS, names};
use crate::error::{OpenError, RestoreError, StoreError};
use crate::new_file::{Existing, NewFile, beside};
use crate::plants::{JobOutcome, WriteContext, WriteOutcome};
use crate::sqlite::{
    Changes, Checkpointer, DatabaseFile, ExaminedFile, Sqlite, change_error, connect_reader, connect_writer,
    create_schema, create_user, describe,
};
use crate::url::StoreUrl;
use plantstore_model::plant::{NewPlant, Tag};
use plantstore_model::user::{UserId, UserName};

/// Timeout for the receiver to receive a chunk. The WAL cannot be reset during a snapshot, and grows with every write.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
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

/// Starts reading the file in a thread and in one transaction.
pub(super) fn snapshot(file: ExaminedFile, selection: Selection) -> Result<Snapshot, OpenError> {
    if selection == Selection::Everything {
        file.check_no_views_and_triggers()?;
    }
    let url = file.url.clone();
    let (sender, snapshot) = Snapshot::channel();
    // A runtime of its own: that of a command advances no timers while the command writes its output.
    let runtime = Builder::new_current_thread().enable_time().build();
    let started = runtime.and_then(|runtime| {
        let reader = SnapshotReader { file, selection, sender, runtime };
        thread::Builder::new().name("snapshot".to_owned()).spawn(move || {
            let last = reader.read().map(|()| SnapshotMessage::End);
            // Fails if the receiver is gone.
            let _ = reader.send(last);
        })
    });
    started.map_err(|error| OpenError::Unusable(url, error.to_string()))?;
    Ok(snapshot)
}

struct SnapshotReader {
    file: ExaminedFile,
    selection: Selection,
    sender: SnapshotSender,
    runtime: Runtime,
}

impl SnapshotReader {
    fn read(&self) -> Result<(), StoreError> {
        // The snapshot is taken by the first statement.
        let _transaction = self.file.connection.unchecked_transaction()?;
        let start =
            SnapshotStart { users: self.count(&USERS)?, plants: self.count(&PLANTS)?, last_ids: self.last_ids()? };
        self.send(Ok(SnapshotMessage::Start(start)))?;
        let is_known =
            |table: &Table| self.file.schema >= KEYS_SINCE || ![SHARES.name, KEYS.name].contains(&table.name);
        for table in self.selection.tables().filter(|table| is_known(table)) {
            self.check_users(table)?;
            self.send_rows(table)?;
        }
        Ok(())
    }

    fn rows(&self, table: &Table) -> &'static str {
        match table.name {
            "plants" => OWNED_PLANTS,
            "shares_by_name" if self.file.schema < SELF_SERVICE_SINCE => SHARES_OF_2,
            "shares_by_name" if self.file.schema < ONE_TABLE_SINCE => SHARES_OF_3,
            _ => table.rows,
        }
    }

    fn count(&self, table: &Table) -> rusqlite::Result<u64> {
        let count = format!("SELECT count(*) FROM {}", self.rows(table));
        self.file.connection.query_row(&count, [self.selection.user()], |row| row.get(0).map(i64::unsigned_abs))
    }

    /// Returns the ids that SQLite stores for AUTOINCREMENT, and those of deleted users whose plants are not yet removed.
    fn last_ids(&self) -> rusqlite::Result<LastIds> {
        const LAST: &str = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?1";
        const DELETED: &str = "SELECT coalesce(max(user_id), 0) FROM departed_users";
        let last = |table| self.file.connection.query_row(LAST, [table], |row| row.get::<_, i64>(0));
        let deleted = self.file.connection.query_row(DELETED, [], |row| row.get::<_, i64>(0))?;
        Ok(LastIds { user: last("users")?.max(deleted), token: last("tokens")? })
    }

    /// Checks that the users of all rows exist: programs that do not enforce foreign keys can leave rows without one.
    fn check_users(&self, table: &'static Table) -> Result<(), StoreError> {
        if table.users.is_empty() {
            return Ok(());
        }
        let missing = table.users.iter().map(|column| format!("{column} NOT IN (SELECT user_id FROM users)"));
        let rows = format!("{} AND ({}) LIMIT 1", self.rows(table), missing.collect::<Vec<_>>().join(" OR "));
        match self.read_rows(table, &rows)?.rows().next() {
            Some(row) => Err(table.bad_row(row, "its user does not exist")),
            None => Ok(()),
        }
    }

    fn send_rows(&self, table: &'static Table) -> Result<(), StoreError> {
        let rows = format!("{} ORDER BY {}", self.rows(table), table.order.join(", "));
        let last = self.read_rows(table, &rows)?;
        self.send(Ok(SnapshotMessage::Rows(last)))
    }

    /// Reads rows, sends full chunks, and returns the last chunk.
    fn read_rows(&self, table: &'static Table, rows: &str) -> Result<Chunk, StoreError> {
        let mut columns = table.select_list();
        if self.file.schema < SELF_SERVICE_SINCE {
            columns = columns.replace("tokens.created_by", "'operator'");
        }
        let mut statement = self.file.connection.prepare(&format!("SELECT {columns} FROM {rows}"))?;
        let mut found = statement.query([self.selection.user()])?;
        let mut chunk = Chunk::new(table);
        while let Some(row) = found.next()? {
            chunk.read(|index, _| row.get_ref(index).map_err(|error| error.to_string()).and_then(cell))?;
            if let Some(full) = chunk.take_full() {
                self.send(Ok(SnapshotMessage::Rows(full)))?;
            }
        }
        Ok(chunk)
    }

    /// Sends a message. Fails if the receiver receives nothing until the timeout.
    fn send(&self, message: Result<SnapshotMessage, StoreError>) -> Result<(), StoreError> {
        self.runtime.block_on(self.sender.send_timeout(message, STALL_TIMEOUT)).map_err(|_| closed())
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

#[expect(clippy::unused_async, reason = "the methods of both engines are asynchronous; these never wait")]
impl RestoreTarget {
    pub(super) fn begin(path: &Path) -> Result<Self, RestoreError> {
        // First, because an existing store may have a write-ahead log as well.
        let file = NewFile::begin(path, Existing::Keep)?;
        reject_leftovers(path)?;
        let connection = prepare(file.partial())
            .map_err(|error| OpenError::Unusable(StoreUrl::Sqlite(path.to_owned()), describe(&error)))?;
        Ok(Self { connection: Some(connection), file, path: path.to_owned() })
    }

    pub(super) async fn put(&mut self, chunk: &Chunk) -> Result<(), StoreError> {
        match &self.connection {
            Some(connection) => Ok(insert(connection, chunk)?),
            None => Err(StoreError::Internal("the file is complete already".to_owned())),
        }
    }

    pub(super) async fn contents(&mut self, last_ids: LastIds) -> Result<Snapshot, StoreError> {
        if let Some(connection) = self.connection.take() {
            store_last_ids(&connection, last_ids)?;
            connection.execute_batch("COMMIT")?;
            connection.close().map_err(|(_, error)| error)?;
        }
        check_integrity(self.file.partial())?;
        let file = ExaminedFile::open(self.file.partial());
        file.and_then(|file| snapshot(file, Selection::Everything))
            .map_err(|error| StoreError::Internal(error.to_string()))
    }

    pub(super) async fn finish(self) -> Result<(), RestoreError> {
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

fn check_integrity(path: &Path) -> Result<(), StoreError> {
    let connection = connect_reader(path)?;
    match connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get::<_, String>(0))?.as_str() {
        "ok" => Ok(()),
        found => Err(StoreError::Internal(format!("the new file is corrupt: {found}"))),
    }
}

/// The importer pauses for the time it held the write lock divided by this, so that a process that polls can get it.
const LOCK_PAUSE_DIVISOR: u32 = 4;

/// Importer with its own connection and checkpoint thread.
pub(super) struct Importer {
    connection: Connection,
    file: Arc<DatabaseFile>,
    checkpointer: Checkpointer,
    /// Duration of the last transaction.
    lock_held: Duration,
    not_before: Instant,
}

impl Importer {
    pub(super) fn start(engine: &Sqlite) -> Result<Self, StoreError> {
        let start = || {
            let connection = connect_writer(&engine.path)?;
            connection.busy_timeout(engine.admin_timeout)?;
            let checkpointer = Checkpointer::start(&engine.path, &engine.file, &connection, &engine.wal_metrics)?;
            let file = Arc::clone(&engine.file);
            Ok(Self { connection, file, checkpointer, lock_held: Duration::ZERO, not_before: Instant::now() })
        };
        start().map_err(change_error)
    }

    pub(super) async fn put(
        &mut self,
        batch: &[ImportRow],
        on_duplicate: OnDuplicate,
    ) -> Result<ImportResult, StoreError> {
        sleep_until(self.not_before).await;
        let result = self.commit(batch, on_duplicate).map_err(change_error)?;
        self.file.verify_or_exit(&self.connection)?;
        self.checkpointer.after_commit(&self.connection);
        self.not_before = Instant::now() + self.lock_held / LOCK_PAUSE_DIVISOR;
        Ok(result)
    }

    fn commit(&mut self, batch: &[ImportRow], on_duplicate: OnDuplicate) -> rusqlite::Result<ImportResult> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let begun = Instant::now();
        let mut owners = HashMap::new();
        let mut changes = Changes::prepare(&transaction)?;
        let mut result = ImportResult { outcomes: Vec::with_capacity(batch.len()), ..ImportResult::default() };
        for ImportRow { owner, plant, .. } in batch {
            let user = match owners.entry(owner) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(unknown) => {
                    result.new_users += u64::from(!has_user(&transaction, owner)?);
                    *unknown.insert(create_user(&transaction, owner, Timestamp::now())?)
                }
            };
            let outcome = match changes.create(WriteContext { user, owner: user }, plant)? {
                JobOutcome::Write(WriteOutcome::Done) => ImportOutcome::Stored,
                _ => compare_with_stored(&transaction, user, plant)?,
            };
            if on_duplicate == OnDuplicate::Stop && outcome != ImportOutcome::Stored {
                break;
            }
            result.outcomes.push(outcome);
        }
        changes.finish()?;
        drop(changes);
        transaction.commit()?;
        self.lock_held = begun.elapsed();
        Ok(result)
    }
}

fn has_user(transaction: &Transaction<'_>, name: &UserName) -> rusqlite::Result<bool> {
    transaction.prepare_cached("SELECT user_id FROM users WHERE name = ?1")?.exists([name.as_str()])
}

fn compare_with_stored(
    transaction: &Transaction<'_>,
    user: UserId,
    plant: &NewPlant,
) -> rusqlite::Result<ImportOutcome> {
    const SAME: &str = "SELECT name = ?3 AND tag IS ?4 FROM plants WHERE user_id = ?1 AND plant_id = ?2";
    let tag = plant.tag.as_ref().map(Tag::as_str);
    let values = params![user.get(), plant.id.get(), plant.name.as_str(), tag];
    let is_same = transaction.prepare_cached(SAME)?.query_row(values, |row| row.get(0))?;
    Ok(if is_same { ImportOutcome::Same } else { ImportOutcome::Different })
}
