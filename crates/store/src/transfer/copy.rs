//! Copies of whole stores, for `backup`, `restore` and `copy`. All rows are counted and hashed, and the new store is read back
//! and hashed as well. It becomes visible only if both digests are equal.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::export::{Digest, RowHasher};
use super::snapshot::{LastIds, Selection, Snapshot, TransferProgress};
use super::table::{Chunk, PLANTS, Table};
use super::{postgres, sqlite};
use crate::error::{OpenError, RestoreError, StoreError};
use crate::options::SchemaChange;
use crate::sqlite::ExaminedFile;
use crate::store::dispatch;
use crate::url::StoreUrl;

impl Snapshot {
    /// Starts reading the store, which must have the current schema, without changing it.
    pub async fn open(url: &StoreUrl, selection: Selection, timeout: Duration) -> Result<Self, OpenError> {
        match url {
            StoreUrl::Sqlite(path) => {
                let file = ExaminedFile::open(path)?;
                file.check_current()?;
                sqlite::snapshot(file, selection)
            }
            StoreUrl::Postgres(url) => postgres::snapshot(url, selection, timeout).await,
        }
    }

    /// Starts reading all of a backup, which an earlier release may have written, without changing it.
    pub fn open_backup(file: &Path) -> Result<Self, OpenError> {
        sqlite::snapshot(ExaminedFile::open(file)?, Selection::Everything)
    }
}

/// A new store that receives the rows of another one. It is invisible until it is finished; dropping discards it.
pub enum RestoreTarget {
    /// A temporary file that is renamed at the end.
    Sqlite(sqlite::RestoreTarget),
    /// One transaction.
    Postgres(postgres::RestoreTarget),
}

impl RestoreTarget {
    pub async fn begin(url: &StoreUrl, schema_change: SchemaChange, timeout: Duration) -> Result<Self, RestoreError> {
        match url {
            StoreUrl::Sqlite(path) => sqlite::RestoreTarget::begin(path).map(Self::Sqlite),
            StoreUrl::Postgres(url) => {
                postgres::RestoreTarget::begin(url, schema_change, timeout).await.map(Self::Postgres)
            }
        }
    }

    async fn put(&mut self, chunk: &Chunk) -> Result<(), StoreError> {
        dispatch!(Self: self, target => target.put(chunk).await)
    }

    /// Reads the contents back. No more chunks can be stored afterwards.
    async fn contents(&mut self, last_ids: LastIds) -> Result<Snapshot, StoreError> {
        dispatch!(Self: self, target => target.contents(last_ids).await)
    }

    /// Makes the store visible and durable.
    async fn finish(self) -> Result<(), RestoreError> {
        dispatch!(Self: self, target => target.finish().await)
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
    source.last_ids.check().map_err(CopyError::Source)?;
    // Reading back counts as the second half.
    let whole = source.plants.saturating_mul(2);
    let mut sent = ContentHasher::new(source.last_ids);
    while let Some(chunk) = from.next().await.map_err(CopyError::Source)? {
        chunk.check().map_err(CopyError::Source)?;
        sent.add(&chunk);
        to.put(&chunk).await.map_err(RestoreError::Store)?;
        progress(TransferProgress::of(sent.plants(), sent.plants(), whole));
    }
    let mut contents = to.contents(source.last_ids).await.map_err(RestoreError::Store)?;
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

/// Number and digest of the rows of a table. The digest of plants is that of the lines that an export writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableDigest {
    pub title: &'static str,
    pub rows: u64,
    pub digest: Digest,
}

#[derive(Clone, Debug)]
pub struct ContentDigest {
    pub tables: Vec<TableDigest>,
    /// Digest of the versions of plants, which are not part of an export.
    versions: Digest,
    last_ids: LastIds,
}

impl ContentDigest {
    /// Returns true if the contents are the same. The last assigned ids may be higher.
    fn matches(&self, other: &Self) -> bool {
        self.tables == other.tables
            && self.versions == other.versions
            && self.last_ids.user >= other.last_ids.user
            && self.last_ids.token >= other.last_ids.token
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = self.tables.iter().map(|table| format!("{} {} ({})", table.rows, table.title, table.digest));
        formatter.write_str(&tables.collect::<Vec<_>>().join(", "))
    }
}

struct ContentHasher {
    tables: [RowHasher; Table::ALL.len()],
    versions: RowHasher,
    last_ids: LastIds,
}

impl ContentHasher {
    fn new(last_ids: LastIds) -> Self {
        Self { tables: Default::default(), versions: RowHasher::default(), last_ids }
    }

    fn add(&mut self, chunk: &Chunk) {
        let index = Table::ALL.iter().position(|table| table.name == chunk.table.name).unwrap_or_default();
        self.tables[index].add(chunk);
        if chunk.table.name == PLANTS.name {
            self.versions.add_values(chunk, |row| &row[row.len() - 1..]);
        }
    }

    fn plants(&self) -> u64 {
        self.tables[Table::ALL.len() - 1].rows
    }

    fn finish(self) -> ContentDigest {
        let digests = Table::ALL.iter().zip(self.tables);
        let tables = digests.map(|(table, hasher)| TableDigest {
            title: table.title,
            rows: hasher.rows,
            digest: hasher.finish(),
        });
        ContentDigest { tables: tables.collect(), versions: self.versions.finish(), last_ids: self.last_ids }
    }
}
