//! A file at one moment, read by a thread of its own: one transaction, in bounded memory.
//!
//! As long as it lasts the WAL cannot be started afresh, and grows by what others write. So it is held for no longer than
//! reading takes, and given up when nobody takes what was read.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, named_params};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Sender, channel};

use super::fault::store_error;
use super::schema;
use crate::transfer::{
    BadRow, Counts, Handed, KEYS, KeyRecord, Numbers, PIECE_BYTES, PIECE_ROWS, PIECES_WAITING, PLANTS, Piece,
    PlantRecord, SHARES, Selection, ShareRecord, Snapshot, TOKENS, Table, TokenRecord, USERS, UserRecord, hex,
};
use crate::{OpenError, StoreError, StoreUrl};

/// How long a piece waits to be taken.
const STALL_MAX: Duration = Duration::from_secs(60);
/// The pause between two looks whether there is room for it.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// The first schema with shares and idempotency keys.
const SHARES_SINCE: i64 = 2;

/// Begins to read the file at `path`.
pub(crate) fn snapshot(path: &Path, selection: Selection) -> Result<Snapshot, OpenError> {
    let (connection, schema) = schema::examine(path, selection == Selection::Everything)?;
    let (sender, pieces) = channel(PIECES_WAITING);
    let reading = move || {
        let source = Source { connection, schema, selection, sender };
        match source.read() {
            Ok(()) => drop(source.hand(Ok(None))),
            Err(Stop::Failed(error)) => drop(source.hand(Err(store_error(&error)))),
            Err(Stop::BadRow(row)) => drop(source.hand(Err(StoreError::BadRow(row)))),
            Err(Stop::NotWanted) => {}
        }
    };
    let started = thread::Builder::new().name("snapshot".to_owned()).spawn(reading);
    started.map_err(|error| OpenError::Unusable(StoreUrl::Sqlite(path.to_owned()), error.to_string()))?;
    Ok(Snapshot::new(pieces))
}

/// Whether all pages and indices of the file agree with each other.
pub(super) fn check_integrity(path: &Path) -> Result<(), StoreError> {
    let check = || {
        let connection = super::reader(path)?;
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
    sender: Sender<Handed>,
}

enum Stop {
    Failed(rusqlite::Error),
    BadRow(BadRow),
    /// Nobody is there any more, or nobody has taken anything for long.
    NotWanted,
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

impl Source {
    fn read(&self) -> Result<(), Stop> {
        const ALL_USERS: &str = "SELECT user_id, name, version, created_at FROM users ORDER BY name";
        const ALL_TOKENS: &str = "
            SELECT token_id, hash, user_id, label, scopes, created_at, expires_at, revoked_at, last_used_at
            FROM tokens ORDER BY token_id";
        const ALL_SHARES: &str =
            "SELECT grantee_id, owner_id, role, created_at FROM shares ORDER BY grantee_id, owner_id";
        const ALL_KEYS: &str = "
            SELECT user_id, key, fingerprint, outcome, message, expires_at
            FROM idempotency_keys JOIN users USING (user_id) ORDER BY user_id, key";
        // Its first statement decides which moment it is.
        let _moment = self.connection.unchecked_transaction()?;
        self.hand(Ok(Some(Piece::Total(self.count()?))))?;
        if self.selection == Selection::Everything {
            self.hand(Ok(Some(Piece::Numbers(self.numbers()?))))?;
            self.rows(&USERS, ALL_USERS, user, Piece::Users)?;
            self.check_users_of(
                &TOKENS,
                "SELECT token_id FROM tokens WHERE user_id NOT IN (SELECT user_id FROM users)",
            )?;
            self.rows(&TOKENS, ALL_TOKENS, token, Piece::Tokens)?;
            if self.schema >= SHARES_SINCE {
                const ORPHANS: &str = "
                    SELECT grantee_id, owner_id FROM shares WHERE grantee_id NOT IN (SELECT user_id FROM users)
                      OR owner_id NOT IN (SELECT user_id FROM users)";
                self.check_users_of(&SHARES, ORPHANS)?;
                self.rows(&SHARES, ALL_SHARES, share, Piece::Shares)?;
                self.rows(&KEYS, ALL_KEYS, key, Piece::Keys)?;
            }
        }
        self.plants()
    }

    fn count(&self) -> rusqlite::Result<Counts> {
        const USERS: &str = "SELECT count(*) FROM users WHERE ?1 IS NULL OR name = ?1";
        const TOKENS: &str = "SELECT count(*) FROM tokens WHERE ?1 IS NULL";
        const SHARES: &str = "SELECT count(*) FROM shares WHERE ?1 IS NULL";
        const KEYS: &str = "SELECT count(*) FROM idempotency_keys JOIN users USING (user_id) WHERE ?1 IS NULL";
        const PLANTS: &str =
            "SELECT count(*) FROM users JOIN plants USING (user_id) WHERE ?1 IS NULL OR users.name = ?1";
        let user = self.selection.user();
        let count = |statement| self.connection.query_row(statement, [user], |row| row.get(0).map(i64::unsigned_abs));
        let later = |statement| if self.schema >= SHARES_SINCE { count(statement) } else { Ok(0) };
        Ok(Counts {
            users: count(USERS)?,
            tokens: count(TOKENS)?,
            shares: later(SHARES)?,
            keys: later(KEYS)?,
            plants: count(PLANTS)?,
        })
    }

    /// The numbers that SQLite remembers for AUTOINCREMENT, and those of users whose plants are still being removed.
    fn numbers(&self) -> rusqlite::Result<Numbers> {
        const LAST: &str = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?1";
        const DEPARTED: &str = "SELECT coalesce(max(user_id), 0) FROM departed_users";
        let last = |table| self.connection.query_row(LAST, [table], |row| row.get::<_, i64>(0));
        let departed = self.connection.query_row(DEPARTED, [], |row| row.get::<_, i64>(0))?;
        Ok(Numbers { user: last("users")?.max(departed), token: last("tokens")? })
    }

    /// Programs that do not enforce foreign keys, as `sqlite3` by default, leave rows behind whose user is gone.
    fn check_users_of(&self, table: &Table, orphans: &str) -> Result<(), Stop> {
        let mut statement = self.connection.prepare(orphans)?;
        match statement.query([])?.next()? {
            Some(row) => Err(bad_row(table, row, "its user does not exist")),
            None => Ok(()),
        }
    }

    fn rows<T>(
        &self,
        table: &Table,
        statement: &str,
        record: fn(&Row<'_>) -> rusqlite::Result<T>,
        piece: fn(Vec<T>) -> Piece,
    ) -> Result<(), Stop> {
        let mut statement = self.connection.prepare(statement)?;
        let mut found = statement.query([])?;
        let mut rows = Vec::new();
        while let Some(row) = found.next()? {
            rows.push(record(row).map_err(|fault| bad_row(table, row, &fault.to_string()))?);
            if rows.len() == PIECE_ROWS {
                self.hand(Ok(Some(piece(std::mem::take(&mut rows)))))?;
            }
        }
        self.hand(Ok(Some(piece(rows))))
    }

    fn plants(&self) -> Result<(), Stop> {
        // By the index of names, and for each by the key of plants: nothing has to be sorted.
        const ALL_PLANTS: &str = "
            SELECT users.user_id, plant_id, users.name, plants.name, tag, plants.version
            FROM users CROSS JOIN plants ON plants.user_id = users.user_id
            WHERE :user IS NULL OR users.name = :user ORDER BY users.name, plant_id";
        let mut statement = self.connection.prepare(ALL_PLANTS)?;
        let mut found = statement.query(named_params! { ":user": self.selection.user() })?;
        let (mut rows, mut bytes) = (Vec::with_capacity(PIECE_ROWS), 0);
        let mut last: Option<(i64, Arc<str>)> = None;
        while let Some(row) = found.next()? {
            let plant = plant(row, &mut last).map_err(|fault| bad_row(&PLANTS, row, &fault.to_string()))?;
            bytes += plant.bytes();
            rows.push(plant);
            if rows.len() == PIECE_ROWS || bytes >= PIECE_BYTES {
                bytes = 0;
                self.hand(Ok(Some(Piece::Plants(std::mem::replace(&mut rows, Vec::with_capacity(PIECE_ROWS))))))?;
            }
        }
        self.hand(Ok(Some(Piece::Plants(rows))))
    }

    /// Hands something over, and waits for somebody to take what was handed over before.
    fn hand(&self, mut handed: Handed) -> Result<(), Stop> {
        let deadline = Instant::now() + STALL_MAX;
        loop {
            handed = match self.sender.try_send(handed) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(handed)) if Instant::now() < deadline => handed,
                Err(TrySendError::Full(_) | TrySendError::Closed(_)) => return Err(Stop::NotWanted),
            };
            thread::park_timeout(LOOK_AGAIN);
        }
    }
}

/// Names a row whose first columns are those of the table's key.
fn bad_row(table: &Table, row: &Row<'_>, fault: &str) -> Stop {
    let value = |column| match row.get_ref(column) {
        Ok(ValueRef::Integer(number)) => number.to_string(),
        Ok(ValueRef::Blob(bytes)) => hex(bytes),
        _ => "?".to_owned(),
    };
    let values: Vec<_> = (0..table.key_columns()).map(value).collect();
    Stop::BadRow(table.bad_row(&values, fault))
}

/// Reads a plant; `last` is the owner of the one before, with their name.
fn plant(row: &Row<'_>, last: &mut Option<(i64, Arc<str>)>) -> rusqlite::Result<PlantRecord> {
    let user_id = row.get(0)?;
    let owner = match last {
        Some((known, owner)) if *known == user_id => Arc::clone(owner),
        _ => Arc::clone(&last.insert((user_id, row.get(2)?)).1),
    };
    Ok(PlantRecord { user_id, owner, id: row.get(1)?, name: row.get(3)?, tag: row.get(4)?, version: row.get(5)? })
}

fn user(row: &Row<'_>) -> rusqlite::Result<UserRecord> {
    Ok(UserRecord { id: row.get(0)?, name: row.get(1)?, version: row.get(2)?, created_at: row.get(3)? })
}

fn token(row: &Row<'_>) -> rusqlite::Result<TokenRecord> {
    Ok(TokenRecord {
        id: row.get(0)?,
        hash: row.get(1)?,
        user_id: row.get(2)?,
        label: row.get(3)?,
        scopes: row.get(4)?,
        created_at: row.get(5)?,
        expires_at: row.get(6)?,
        revoked_at: row.get(7)?,
        last_used_at: row.get(8)?,
    })
}

fn share(row: &Row<'_>) -> rusqlite::Result<ShareRecord> {
    Ok(ShareRecord { grantee_id: row.get(0)?, owner_id: row.get(1)?, role: row.get(2)?, created_at: row.get(3)? })
}

fn key(row: &Row<'_>) -> rusqlite::Result<KeyRecord> {
    Ok(KeyRecord {
        user_id: row.get(0)?,
        key: row.get(1)?,
        fingerprint: row.get(2)?,
        outcome: row.get(3)?,
        message: row.get(4)?,
        expires_at: row.get(5)?,
    })
}
