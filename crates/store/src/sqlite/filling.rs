//! A new file, filled with what another store holds. Until it is complete it has another name, and needs no journal: what
//! is interrupted is thrown away.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use super::fault::{describe, store_error};
use super::snapshot::{check_integrity, snapshot};
use super::writer::CACHE_KIB;
use super::{connect, schema};
use crate::new_file::{NewFile, beside};
use crate::transfer::{FillError, Piece, Selection, Snapshot};
use crate::{OpenError, StoreError, StoreUrl};

/// A file that is being filled.
pub struct Filling {
    /// Stands before the file, and so is closed before that is removed.
    connection: Option<Connection>,
    file: NewFile,
    path: PathBuf,
}

impl Filling {
    pub(crate) fn begin(path: &Path) -> Result<Self, FillError> {
        let url = || StoreUrl::Sqlite(path.to_owned());
        refuse_leftovers(path)?;
        let file = NewFile::begin(path, false)?;
        let connection = prepare(file.partial());
        let connection = connection.map_err(|error| OpenError::Unusable(url(), describe(&error)))?;
        Ok(Self { connection: Some(connection), file, path: path.to_owned() })
    }

    pub(crate) fn put(&mut self, piece: &Piece) -> Result<(), StoreError> {
        match &self.connection {
            Some(connection) => insert(connection, piece).map_err(|error| store_error(&error)),
            None => Err(StoreError::Internal("the file is complete already".to_owned())),
        }
    }

    pub(crate) fn contents(&mut self) -> Result<Snapshot, StoreError> {
        if let Some(connection) = self.connection.take() {
            connection.execute_batch("COMMIT").map_err(|error| store_error(&error))?;
            connection.close().map_err(|(_, error)| store_error(&error))?;
        }
        check_integrity(self.file.partial())?;
        snapshot(self.file.partial(), Selection::Everything).map_err(|error| StoreError::Internal(error.to_string()))
    }

    pub(crate) fn finish(self) -> Result<(), FillError> {
        // Somebody may have come meanwhile.
        refuse_leftovers(&self.path)?;
        Ok(self.file.finish()?)
    }
}

/// What is left of another file of this name would be taken for the newest writes to this one.
fn refuse_leftovers(path: &Path) -> Result<(), FillError> {
    if ["-wal", "-journal"].iter().any(|ending| beside(path, ending).exists()) {
        return Err(FillError::Occupied(StoreUrl::Sqlite(path.to_owned()), "a write-ahead log or journal beside it"));
    }
    Ok(())
}

fn prepare(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connect(path)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update_and_check(None, "journal_mode", "OFF", |_| Ok(()))?;
    // Synced as a whole before it gets its name.
    connection.pragma_update(None, "synchronous", "OFF")?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    schema::create(&connection)?;
    Ok(connection)
}

fn insert(connection: &Connection, piece: &Piece) -> rusqlite::Result<()> {
    // The row of a table in `sqlite_sequence` moves only forward from here, with the rows that follow.
    const NUMBER: &str = "INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)";
    const USER: &str = "INSERT INTO users (user_id, name, version, created_at) VALUES (?1, ?2, ?3, ?4)";
    const TOKEN: &str = "
        INSERT INTO tokens (token_id, hash, user_id, label, scopes, created_at, expires_at, revoked_at, last_used_at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    const SHARE: &str = "INSERT INTO shares (grantee_id, owner_id, role, created_at) VALUES (?1, ?2, ?3, ?4)";
    const KEY: &str = "
        INSERT INTO idempotency_keys (user_id, key, fingerprint, outcome, message, expires_at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    const PLANT: &str = "INSERT INTO plants (user_id, plant_id, name, tag, version) VALUES (?1, ?2, ?3, ?4, ?5)";
    let put = |statement, values: &[&dyn rusqlite::ToSql]| connection.prepare_cached(statement)?.execute(values);
    let done = |_| ();
    match piece {
        Piece::Total(_) => Ok(()),
        Piece::Numbers(numbers) => [("users", numbers.user), ("tokens", numbers.token)]
            .iter()
            .try_for_each(|(table, last)| put(NUMBER, params![table, last]).map(done)),
        Piece::Users(rows) => {
            rows.iter().try_for_each(|row| put(USER, params![row.id, row.name, row.version, row.created_at]).map(done))
        }
        Piece::Tokens(rows) => rows.iter().try_for_each(|row| {
            let (created, expires) = (row.created_at, row.expires_at);
            let (revoked, last_used) = (row.revoked_at, row.last_used_at);
            let (id, hash, owner) = (row.id, &row.hash, row.user_id);
            let values = params![id, hash, owner, row.label, row.scopes, created, expires, revoked, last_used];
            put(TOKEN, values).map(done)
        }),
        Piece::Shares(rows) => rows
            .iter()
            .try_for_each(|row| put(SHARE, params![row.grantee_id, row.owner_id, row.role, row.created_at]).map(done)),
        Piece::Keys(rows) => rows.iter().try_for_each(|row| {
            let (key, fingerprint) = (&row.key, &row.fingerprint);
            put(KEY, params![row.user_id, key, fingerprint, row.outcome, row.message, row.expires_at]).map(done)
        }),
        Piece::Plants(rows) => rows
            .iter()
            .try_for_each(|row| put(PLANT, params![row.user_id, row.id, row.name, row.tag, row.version]).map(done)),
    }
}
