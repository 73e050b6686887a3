//! Restore into a new file. The file has a temporary name until it is complete, and needs no journal, because an incomplete
//! file is discarded.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params_from_iter};

use super::connection::connect_writer;
use super::database_error::{describe, store_error};
use super::schema;
use super::snapshot::{check_integrity, snapshot};
use crate::error::{OpenError, RestoreError, StoreError};
use crate::new_file::{NewFile, beside};
use crate::transfer::{Record, Selection, Snapshot, SnapshotChunk, names};
use crate::url::StoreUrl;

pub struct RestoreTarget {
    /// Declared before `file`, so that it is closed before the file is removed.
    connection: Option<Connection>,
    file: NewFile,
    path: PathBuf,
}

#[expect(clippy::unused_async, reason = "the methods of both engines are asynchronous; this one never waits")]
impl RestoreTarget {
    pub(crate) fn begin(path: &Path) -> Result<Self, RestoreError> {
        let url = || StoreUrl::Sqlite(path.to_owned());
        // First, because an existing store may have a write-ahead log as well.
        let file = NewFile::begin(path, false)?;
        reject_leftovers(path)?;
        let connection = prepare(file.partial());
        let connection = connection.map_err(|error| OpenError::Unusable(url(), describe(&error)))?;
        Ok(Self { connection: Some(connection), file, path: path.to_owned() })
    }

    pub(crate) async fn put(&mut self, chunk: &SnapshotChunk) -> Result<(), StoreError> {
        match &self.connection {
            Some(connection) => insert(connection, chunk).map_err(|error| store_error(&error)),
            None => Err(StoreError::Internal("the file is complete already".to_owned())),
        }
    }

    pub(crate) async fn contents(&mut self) -> Result<Snapshot, StoreError> {
        if let Some(connection) = self.connection.take() {
            connection.execute_batch("COMMIT").map_err(|error| store_error(&error))?;
            connection.close().map_err(|(_, error)| store_error(&error))?;
        }
        check_integrity(self.file.partial())?;
        snapshot(self.file.partial(), Selection::Everything).map_err(|error| StoreError::Internal(error.to_string()))
    }

    pub(crate) async fn finish(self) -> Result<(), RestoreError> {
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
    schema::create(&connection)?;
    Ok(connection)
}

fn insert(connection: &Connection, chunk: &SnapshotChunk) -> rusqlite::Result<()> {
    match chunk {
        SnapshotChunk::Total(_) => Ok(()),
        SnapshotChunk::LastIds(ids) => {
            // SQLite only increases these values when rows are inserted.
            let mut statement = connection.prepare("INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)")?;
            [("users", ids.user), ("tokens", ids.token)]
                .into_iter()
                .try_for_each(|last| statement.execute(last).map(|_| ()))
        }
        SnapshotChunk::Users(rows) => insert_rows(connection, rows),
        SnapshotChunk::Tokens(rows) => insert_rows(connection, rows),
        SnapshotChunk::Shares(rows) => insert_rows(connection, rows),
        SnapshotChunk::Keys(rows) => insert_rows(connection, rows),
        SnapshotChunk::Plants(rows) => insert_rows(connection, rows),
    }
}

fn insert_rows<T: Record>(connection: &Connection, rows: &[T]) -> rusqlite::Result<()> {
    let columns = T::TABLE.columns;
    let values = (1..=columns.len()).map(|number| format!("?{number}")).collect::<Vec<_>>().join(", ");
    let insert = format!("INSERT INTO {} ({}) VALUES ({values})", T::TABLE.name, names(columns));
    let mut statement = connection.prepare_cached(&insert)?;
    rows.iter().try_for_each(|row| statement.execute(params_from_iter(row.values())).map(|_| ()))
}
