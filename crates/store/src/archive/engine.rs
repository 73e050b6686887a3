//! Dispatch of snapshots, restores and imports to the engine of a store.

use std::path::Path;
use std::time::Duration;

use crate::error::{OpenError, RestoreError, StoreError};
use crate::options::SchemaChange;
use crate::store::{Store, dispatch};
use crate::transfer::{ImportResult, ImportRow, Selection, Snapshot, SnapshotChunk};
use crate::url::StoreUrl;
use crate::{postgres, sqlite};

impl Snapshot {
    /// Starts reading the store, which must have the current schema, without changing it.
    pub async fn open(url: &StoreUrl, selection: Selection, timeout: Duration) -> Result<Self, OpenError> {
        match url {
            StoreUrl::Sqlite(path) => {
                sqlite::check_schema(path)?;
                sqlite::snapshot(path, selection)
            }
            StoreUrl::Postgres(url) => postgres::snapshot(url, selection, timeout).await,
        }
    }

    /// Starts reading all of a backup, which an earlier release may have written, without changing it.
    pub fn open_backup(file: &Path) -> Result<Self, OpenError> {
        sqlite::snapshot(file, Selection::Everything)
    }
}

/// A new store that receives the records of another one, including ids and versions. It is invisible until it is finished.
/// Dropping it before that discards it.
pub enum RestoreTarget {
    /// A temporary file that is renamed at the end.
    Sqlite(sqlite::RestoreTarget),
    /// One transaction.
    Postgres(postgres::RestoreTarget),
}

impl RestoreTarget {
    /// Creates a new file, or opens an empty database.
    pub async fn begin(url: &StoreUrl, schema_change: SchemaChange, timeout: Duration) -> Result<Self, RestoreError> {
        match url {
            StoreUrl::Sqlite(path) => sqlite::RestoreTarget::begin(path).map(Self::Sqlite),
            StoreUrl::Postgres(url) => {
                postgres::RestoreTarget::begin(url, schema_change, timeout).await.map(Self::Postgres)
            }
        }
    }

    /// Stores a chunk. Chunks are stored in the order of [`SnapshotChunk`].
    pub async fn put(&mut self, chunk: &SnapshotChunk) -> Result<(), StoreError> {
        dispatch!(self, target => target.put(chunk).await)
    }

    /// Reads the contents back, as [`Snapshot::open`] would. No more chunks can be stored afterwards.
    pub async fn contents(&mut self) -> Result<Snapshot, StoreError> {
        dispatch!(self, target => target.contents().await)
    }

    /// Makes the store visible and durable.
    pub async fn finish(self) -> Result<(), RestoreError> {
        dispatch!(self, target => target.finish().await)
    }
}

/// Stores batches of plants while servers write to the same store.
pub enum Importer {
    Sqlite(sqlite::Importer),
    Postgres(postgres::Importer),
}

impl Importer {
    pub async fn start(store: &Store) -> Result<Self, StoreError> {
        match store {
            Store::Sqlite(engine) => engine.importer().map(Self::Sqlite),
            Store::Postgres(engine) => engine.importer().await.map(Self::Postgres),
        }
    }

    /// Stores a batch in one commit, and creates missing users. Users whose lists change get new versions. The primary key
    /// of the table alone detects duplicate ids. With `stop`, the first duplicate ends the batch.
    pub async fn put(&mut self, batch: &[ImportRow], stop: bool) -> Result<ImportResult, StoreError> {
        dispatch!(self, importer => importer.put(batch, stop).await)
    }

    /// Stops the threads of the importer. All stored batches are already durable.
    pub fn finish(self) {
        match self {
            Self::Sqlite(importer) => importer.finish(),
            // Dropping it closes the connection.
            Self::Postgres(_) => {}
        }
    }
}
