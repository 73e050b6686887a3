//! Copies of whole stores, for `backup`, `restore` and `copy`. All rows are counted and hashed, and the new store is read back
//! and hashed as well. It becomes visible only if both digests are equal.

use std::path::Path;
use std::time::Duration;

use super::digest::{ContentDigest, ContentHasher};
use super::progress::TransferProgress;
use super::snapshot::{Selection, Snapshot, SnapshotStart};
use super::table::Chunk;
use super::{postgres, sqlite};
use crate::error::{OpenError, RestoreError, StoreError};
use crate::options::SchemaChange;
use crate::sqlite::check_schema;
use crate::url::StoreUrl;

impl Snapshot {
    /// Starts reading the store, which must have the current schema, without changing it.
    pub async fn open(url: &StoreUrl, selection: Selection, timeout: Duration) -> Result<Self, OpenError> {
        match url {
            StoreUrl::Sqlite(path) => {
                check_schema(path)?;
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

/// A new store that receives the rows of another one, including ids and versions. It is invisible until it is finished. Dropping it
/// before that discards it.
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

    async fn put(&mut self, chunk: &Chunk) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(target) => target.put(chunk),
            Self::Postgres(target) => target.put(chunk).await,
        }
    }

    /// Reads the contents back. No more chunks can be stored afterwards.
    async fn contents(&mut self, source: &SnapshotStart) -> Result<Snapshot, StoreError> {
        match self {
            Self::Sqlite(target) => target.contents(source.last_ids),
            Self::Postgres(target) => target.contents(source.last_ids).await,
        }
    }

    /// Makes the store visible and durable.
    async fn finish(self) -> Result<(), RestoreError> {
        match self {
            Self::Sqlite(target) => target.finish(),
            Self::Postgres(target) => target.finish().await,
        }
    }
}

/// Errors of copying a store. The new store does not exist afterwards, unless the outcome is unknown.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("reading failed")]
    Source(#[source] StoreError),
    #[error("writing failed")]
    Target(#[from] RestoreError),
    #[error("the copy differs from its source: sent {sent}, found {found}; the new store was discarded")]
    Different { sent: Box<ContentDigest>, found: Box<ContentDigest> },
}

/// Copies a snapshot into a new store, reads it back, and finishes the new store if nothing differs.
pub async fn copy(
    mut from: Snapshot,
    mut to: RestoreTarget,
    mut progress: impl FnMut(TransferProgress),
) -> Result<ContentDigest, CopyError> {
    let source = from.start().await.map_err(CopyError::Source)?;
    let invalid = |row| CopyError::Source(StoreError::BadRow(row));
    source.last_ids.check().map_err(invalid)?;
    // Reading back counts as the second half.
    let whole = source.plants.saturating_mul(2);
    let mut sent = ContentHasher::new(source.last_ids);
    while let Some(chunk) = from.next().await.map_err(CopyError::Source)? {
        chunk.check().map_err(invalid)?;
        sent.add(&chunk);
        to.put(&chunk).await.map_err(RestoreError::Store)?;
        progress(TransferProgress::of(sent.plants(), sent.plants(), whole));
    }
    let mut contents = to.contents(&source).await.map_err(RestoreError::Store)?;
    let mut found = ContentHasher::new(contents.start().await.map_err(RestoreError::Store)?.last_ids);
    while let Some(chunk) = contents.next().await.map_err(RestoreError::Store)? {
        found.add(&chunk);
        progress(TransferProgress::of(sent.plants(), sent.plants() + found.plants(), whole));
    }
    let sent = sent.finish();
    let found = found.finish();
    if !found.matches(&sent) {
        return Err(CopyError::Different { sent: Box::new(sent), found: Box::new(found) });
    }
    to.finish().await?;
    Ok(found)
}
