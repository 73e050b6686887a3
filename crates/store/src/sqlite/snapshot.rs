//! A file at one moment, read by a thread of its own: one transaction, in bounded memory.
//!
//! As long as it lasts the WAL cannot be reset, and grows by what others write. So it is held for no longer than reading takes,
//! and given up when the reader stops taking chunks.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use super::connection::connect_reader;
use super::database_error::store_error;
use super::schema;
use crate::error::{BadRow, OpenError, StoreError};
use crate::transfer::{
    Chunk, ChunkBuilder, Counts, KeyRecord, LastIds, Message, PlantRecord, Record, Selection, ShareRecord, Snapshot,
    TokenRecord, UserRecord, hex, names,
};
use crate::url::StoreUrl;

/// Timeout of a chunk for the reader.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause between two attempts to send it.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// The first schema with shares and idempotency keys.
const SHARES_SINCE: i64 = 2;

/// The rows of each table that are selected for the user, if there is one. Keys of deleted users are left out, and so are
/// their plants. Plants are found by the index of names, and for each by the key of plants: nothing has to be sorted.
const USERS: &str = "users WHERE ?1 IS NULL OR users.name = ?1";
const TOKENS: &str = "tokens WHERE ?1 IS NULL";
const SHARES: &str = "shares WHERE ?1 IS NULL";
const KEYS: &str = "idempotency_keys JOIN users ON users.user_id = idempotency_keys.user_id WHERE ?1 IS NULL";
const PLANTS: &str = "users CROSS JOIN plants ON plants.user_id = users.user_id WHERE ?1 IS NULL OR users.name = ?1";

/// Begins to read the file at `path`.
pub(crate) fn snapshot(path: &Path, selection: Selection) -> Result<Snapshot, OpenError> {
    let (connection, schema) = schema::examine(path, selection == Selection::Everything)?;
    let (sender, snapshot) = Snapshot::channel();
    let reading = move || {
        let source = Source { connection, schema, selection, sender };
        match source.read() {
            Ok(()) => drop(source.send(Ok(None))),
            Err(Stop::Failed(error)) => drop(source.send(Err(store_error(&error)))),
            Err(Stop::BadRow(row)) => drop(source.send(Err(StoreError::BadRow(row)))),
            Err(Stop::NotWanted) => {}
        }
    };
    let started = thread::Builder::new().name("snapshot".to_owned()).spawn(reading);
    started.map_err(|error| OpenError::Unusable(StoreUrl::Sqlite(path.to_owned()), error.to_string()))?;
    Ok(snapshot)
}

/// Checks that all pages and indices of the file agree with each other.
pub(super) fn check_integrity(path: &Path) -> Result<(), StoreError> {
    let check = || {
        let connection = connect_reader(path)?;
        connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get::<_, String>(0))
    };
    match check().map_err(|error| store_error(&error))?.as_str() {
        "ok" => Ok(()),
        found => Err(StoreError::Internal(format!("the file that was written is not sound: {found}"))),
    }
}

struct Source {
    connection: Connection,
    schema: i64,
    selection: Selection,
    sender: Sender<Message>,
}

enum Stop {
    Failed(rusqlite::Error),
    BadRow(BadRow),
    /// The reader is gone, or has taken nothing for long.
    NotWanted,
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

impl Source {
    fn read(&self) -> Result<(), Stop> {
        // Its first statement decides which moment it is.
        let _moment = self.connection.unchecked_transaction()?;
        self.send_chunk(Chunk::Total(self.count()?))?;
        if self.selection == Selection::Everything {
            self.send_chunk(Chunk::LastIds(self.last_ids()?))?;
            self.rows::<UserRecord>(USERS, "users.name")?;
            self.check_users_of::<TokenRecord>(&["user_id"])?;
            self.rows::<TokenRecord>(TOKENS, "token_id")?;
            if self.schema >= SHARES_SINCE {
                self.check_users_of::<ShareRecord>(&["grantee_id", "owner_id"])?;
                self.rows::<ShareRecord>(SHARES, "grantee_id, owner_id")?;
                self.rows::<KeyRecord>(KEYS, "idempotency_keys.user_id, key")?;
            }
        }
        self.rows::<PlantRecord>(PLANTS, "users.name, plant_id")
    }

    fn count(&self) -> rusqlite::Result<Counts> {
        let count = |rows| {
            let statement = format!("SELECT count(*) FROM {rows}");
            self.connection.query_row(&statement, [self.selection.user()], |row| row.get(0).map(i64::unsigned_abs))
        };
        let later = |rows| if self.schema >= SHARES_SINCE { count(rows) } else { Ok(0) };
        let (shares, keys) = (later(SHARES)?, later(KEYS)?);
        Ok(Counts { users: count(USERS)?, tokens: count(TOKENS)?, shares, keys, plants: count(PLANTS)? })
    }

    /// Reads the ids that SQLite stores for AUTOINCREMENT, and those of deleted users whose plants are still being removed.
    fn last_ids(&self) -> rusqlite::Result<LastIds> {
        const LAST: &str = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?1";
        const DELETED: &str = "SELECT coalesce(max(user_id), 0) FROM departed_users";
        let last = |table| self.connection.query_row(LAST, [table], |row| row.get::<_, i64>(0));
        let deleted = self.connection.query_row(DELETED, [], |row| row.get::<_, i64>(0))?;
        Ok(LastIds { user: last("users")?.max(deleted), token: last("tokens")? })
    }

    /// Checks that the users of all rows exist. Programs that do not enforce foreign keys, as `sqlite3` by default, leave rows
    /// behind whose user is gone.
    fn check_users_of<T: Record>(&self, columns: &[&str]) -> Result<(), Stop> {
        let missing = columns.iter().map(|column| format!("{column} NOT IN (SELECT user_id FROM users)"));
        let (key, missing) = (names(T::TABLE.key()), missing.collect::<Vec<_>>().join(" OR "));
        let mut statement = self.connection.prepare(&format!("SELECT {key} FROM {} WHERE {missing}", T::TABLE.name))?;
        match statement.query([])?.next()? {
            Some(row) => Err(bad_row::<T>(row, "its user does not exist")),
            None => Ok(()),
        }
    }

    fn rows<T: Record>(&self, rows: &str, order: &str) -> Result<(), Stop> {
        let select = format!("SELECT {} FROM {rows} ORDER BY {order}", T::TABLE.select_list());
        let mut statement = self.connection.prepare(&select)?;
        let mut found = statement.query([self.selection.user()])?;
        let mut chunk = ChunkBuilder::<T>::new();
        while let Some(row) = found.next()? {
            chunk.read(row).map_err(|fault| bad_row::<T>(row, &fault.to_string()))?;
            if let Some(full) = chunk.take_full() {
                self.send_chunk(full)?;
            }
        }
        self.send_chunk(chunk.finish())
    }

    fn send_chunk(&self, chunk: Chunk) -> Result<(), Stop> {
        self.send(Ok(Some(chunk)))
    }

    /// Sends a message, and waits for the reader to take those before it.
    fn send(&self, mut message: Message) -> Result<(), Stop> {
        let deadline = Instant::now() + STALL_TIMEOUT;
        loop {
            message = match self.sender.try_send(message) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(message)) if Instant::now() < deadline => message,
                Err(TrySendError::Full(_) | TrySendError::Closed(_)) => return Err(Stop::NotWanted),
            };
            thread::park_timeout(RETRY_PAUSE);
        }
    }
}

/// Names a row whose first columns are those of the table's key.
fn bad_row<T: Record>(row: &Row<'_>, fault: &str) -> Stop {
    let value = |column| match row.get_ref(column) {
        Ok(ValueRef::Integer(number)) => number.to_string(),
        Ok(ValueRef::Blob(bytes)) => hex(bytes),
        _ => "?".to_owned(),
    };
    let values: Vec<_> = (0..T::TABLE.key_columns).map(value).collect();
    Stop::BadRow(T::TABLE.bad_row(&values, fault))
}
