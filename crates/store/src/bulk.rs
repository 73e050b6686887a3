//! Bulk operations on either engine: snapshots, stores that are restored, and imports.

use std::time::Duration;

use crate::error::{OpenError, RestoreError, StoreError};
use crate::store::{Store, dispatch};
use crate::transfer::{Chunk, ImportRow, ImportedBatch, Selection, Snapshot};
use crate::url::StoreUrl;
use crate::{postgres, sqlite};
use plantstore_model::user::UserName;

impl Snapshot {
    /// Begins to read the store as it is, without changing anything: a file of an earlier release is not brought up to date.
    pub async fn open(url: &StoreUrl, selection: Selection, timeout: Duration) -> Result<Self, OpenError> {
        match url {
            StoreUrl::Sqlite(path) => sqlite::snapshot(path, selection),
            StoreUrl::Postgres(url) => postgres::snapshot(url, selection, timeout).await,
        }
    }
}

/// A new store that is filled with what another holds, ids and versions included. It is invisible until it is finished;
/// dropped before that, it never was.
pub enum RestoreTarget {
    /// A file that is renamed at the end.
    Sqlite(sqlite::RestoreTarget),
    /// One transaction.
    Postgres(postgres::RestoreTarget),
}

impl RestoreTarget {
    /// Begins to fill a store that is new, or a database that holds nothing.
    pub async fn begin(url: &StoreUrl, timeout: Duration) -> Result<Self, RestoreError> {
        match url {
            StoreUrl::Sqlite(path) => sqlite::RestoreTarget::begin(path).map(Self::Sqlite),
            StoreUrl::Postgres(url) => postgres::RestoreTarget::begin(url, timeout).await.map(Self::Postgres),
        }
    }

    /// Stores a chunk. They come in the order of [`Chunk`].
    pub async fn put(&mut self, chunk: &Chunk) -> Result<(), StoreError> {
        dispatch!(self, target => target.put(chunk).await)
    }

    /// Reads its contents back, as [`Snapshot::open`] would. After this nothing more is put in.
    pub async fn contents(&mut self) -> Result<Snapshot, StoreError> {
        dispatch!(self, target => target.contents().await)
    }

    /// Makes it a store, durably.
    pub async fn finish(self) -> Result<(), RestoreError> {
        dispatch!(self, target => target.finish().await)
    }
}

/// Stores batches of plants beside servers that go on writing.
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

    /// Stores a batch in one commit, with users that are not there yet. The versions of those whose lists change move.
    /// The key of the table alone decides whether an id is taken. With `stop`, the first that is taken ends it.
    pub async fn put(&mut self, batch: &[ImportRow], stop: bool) -> Result<ImportedBatch, StoreError> {
        dispatch!(self, importer => importer.put(batch, stop).await)
    }

    /// Returns whether there is a user of this name.
    pub async fn has_user(&self, name: &UserName) -> Result<bool, StoreError> {
        dispatch!(self, importer => importer.has_user(name).await)
    }

    /// Ends its threads. Nothing that was put waits for it.
    pub fn finish(self) {
        match self {
            Self::Sqlite(importer) => importer.finish(),
            // Its connection ends with it.
            Self::Postgres(_) => {}
        }
    }
}
