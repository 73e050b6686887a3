//! Snapshot of a file: a thread reads it in one transaction.
//!
//! The WAL cannot be reset during the transaction, and grows with every write. So the transaction ends as soon as possible: also
//! if the receiver does not receive chunks for a minute.

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
use crate::error::{OpenError, StoreError};
use crate::transfer::{
    ChunkBuilder, Counts, KeyRecord, LastIds, PlantRecord, Record, Selection, ShareRecord, Snapshot, SnapshotChunk,
    SnapshotError, SnapshotMessage, TokenRecord, UserRecord, hex, names,
};
use crate::url::StoreUrl;
use plantstore_model::text::Escaped;

/// Timeout for the receiver to receive a chunk.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two attempts to send a chunk.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// The first schema version with shares and idempotency keys.
const SHARES_SINCE: i64 = 2;
/// The first schema version with creators of tokens and shares by name.
const SELF_SERVICE_SINCE: i64 = 3;
/// The first schema version with one table of shares.
const ONE_TABLE_SINCE: i64 = 4;

/// The selected rows of each table. The parameter limits them to one user. Keys and plants of deleted users are left out.
/// Plants are read with the index of user names and the primary key of plants, so that nothing has to be sorted.
const USERS: &str = "users WHERE ?1 IS NULL OR users.name = ?1";
const TOKENS: &str = "tokens WHERE ?1 IS NULL";
const SHARES: &str = "shares_by_name WHERE ?1 IS NULL";
/// The shares of earlier releases, as the migrations would store them.
const SHARES_OF_2: &str = "(
    SELECT name AS grantee_name, owner_id, role, shares.created_at, grantee_id, NULL AS declined_at
    FROM shares JOIN users ON user_id = grantee_id) AS shares_by_name WHERE ?1 IS NULL";
const SHARES_OF_3: &str = "(
    SELECT grantee_name, owner_id, role, shares_by_name.created_at, user_id AS grantee_id, NULL AS declined_at
    FROM shares_by_name LEFT JOIN users ON name = grantee_name AND user_id <> owner_id
    UNION ALL
    SELECT name, owner_id, role, shares.created_at, grantee_id, NULL FROM shares JOIN users ON user_id = grantee_id
    WHERE (name, owner_id) NOT IN (SELECT grantee_name, owner_id FROM shares_by_name)) AS shares_by_name
    WHERE ?1 IS NULL";
const KEYS: &str = "idempotency_keys JOIN users ON users.user_id = idempotency_keys.user_id WHERE ?1 IS NULL";
const PLANTS: &str = "users CROSS JOIN plants ON plants.user_id = users.user_id WHERE ?1 IS NULL OR users.name = ?1";

/// Starts reading the file at `path`.
pub(crate) fn snapshot(path: &Path, selection: Selection) -> Result<Snapshot, OpenError> {
    let (connection, schema) = schema::examine(path, selection == Selection::Everything)?;
    let (sender, snapshot) = Snapshot::channel();
    let reading = move || {
        let reader = SnapshotReader { connection, schema, selection, sender };
        let last = match reader.read() {
            Ok(()) => Ok(None),
            Err(SnapshotError::Failed(error)) => Err(error),
            Err(SnapshotError::ReceiverGone) => return,
        };
        drop(reader.send(last));
    };
    let started = thread::Builder::new().name("snapshot".to_owned()).spawn(reading);
    started.map_err(|error| OpenError::Unusable(StoreUrl::Sqlite(path.to_owned()), error.to_string()))?;
    Ok(snapshot)
}

/// Checks that all pages and indexes of the file are consistent.
pub(super) fn check_integrity(path: &Path) -> Result<(), StoreError> {
    let check = || {
        let connection = connect_reader(path)?;
        connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get::<_, String>(0))
    };
    match check().map_err(|error| store_error(&error))?.as_str() {
        "ok" => Ok(()),
        found => Err(StoreError::Internal(format!("the new file is corrupt: {found}"))),
    }
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
        self.send_chunk(SnapshotChunk::Total(self.count()?))?;
        if self.selection == Selection::Everything {
            self.send_chunk(SnapshotChunk::LastIds(self.last_ids()?))?;
            self.rows::<UserRecord>(USERS, "users.name")?;
            self.check_users_of::<TokenRecord>(TOKENS, &["user_id"])?;
            self.rows::<TokenRecord>(TOKENS, "token_id")?;
            if self.schema >= SHARES_SINCE {
                self.check_users_of::<ShareRecord>(self.shares(), &["owner_id", "grantee_id"])?;
                self.rows::<ShareRecord>(self.shares(), "grantee_name, owner_id")?;
                self.rows::<KeyRecord>(KEYS, "idempotency_keys.user_id, key")?;
            }
        }
        self.rows::<PlantRecord>(PLANTS, "users.name, plant_id")
    }

    /// Returns the shares of this schema version.
    fn shares(&self) -> &'static str {
        match self.schema {
            ..SELF_SERVICE_SINCE => SHARES_OF_2,
            SELF_SERVICE_SINCE..ONE_TABLE_SINCE => SHARES_OF_3,
            ONE_TABLE_SINCE.. => SHARES,
        }
    }

    fn count(&self) -> rusqlite::Result<Counts> {
        let count = |rows| {
            let statement = format!("SELECT count(*) FROM {rows}");
            self.connection.query_row(&statement, [self.selection.user()], |row| row.get(0).map(i64::unsigned_abs))
        };
        let later = |rows, since| if self.schema >= since { count(rows) } else { Ok(0) };
        Ok(Counts {
            users: count(USERS)?,
            tokens: count(TOKENS)?,
            shares: later(self.shares(), SHARES_SINCE)?,
            keys: later(KEYS, SHARES_SINCE)?,
            plants: count(PLANTS)?,
        })
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
    fn check_users_of<T: Record>(&self, rows: &str, columns: &[&str]) -> Result<(), SnapshotError> {
        let missing = columns.iter().map(|column| format!("{column} NOT IN (SELECT user_id FROM users)"));
        let (key, missing) = (names(T::TABLE.key()), missing.collect::<Vec<_>>().join(" OR "));
        let mut statement = self.connection.prepare(&format!("SELECT {key} FROM {rows} AND ({missing})"))?;
        match statement.query([self.selection.user()])?.next()? {
            Some(row) => Err(bad_row::<T>(row, "its user does not exist")),
            None => Ok(()),
        }
    }

    fn rows<T: Record>(&self, rows: &str, order: &str) -> Result<(), SnapshotError> {
        let mut columns = T::TABLE.select_list();
        if self.schema < SELF_SERVICE_SINCE {
            columns = columns.replace("tokens.created_by", "'operator'");
        }
        let select = format!("SELECT {columns} FROM {rows} ORDER BY {order}");
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

    fn send_chunk(&self, chunk: SnapshotChunk) -> Result<(), SnapshotError> {
        self.send(Ok(Some(chunk)))
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

/// Returns the error for a row whose first columns are the primary key.
fn bad_row<T: Record>(row: &Row<'_>, fault: &str) -> SnapshotError {
    let value = |column| match row.get_ref(column) {
        Ok(ValueRef::Integer(number)) => number.to_string(),
        Ok(ValueRef::Blob(bytes)) => hex(bytes),
        Ok(ValueRef::Text(text)) => Escaped(&String::from_utf8_lossy(text)).to_string(),
        _ => "?".to_owned(),
    };
    let values: Vec<_> = (0..T::TABLE.key_columns).map(value).collect();
    SnapshotError::Failed(StoreError::BadRow(T::TABLE.bad_row(&values, fault)))
}
