//! Copies of whole stores, for `backup`, `restore` and `copy`. All records are counted and hashed, and the new store is read back
//! and hashed as well. It becomes visible only if both digests are equal.

use super::digest::{ContentDigest, ContentHasher};
use super::engine::RestoreTarget;
use super::progress::TransferProgress;
use crate::error::{RestoreError, StoreError};
use crate::transfer::{Snapshot, SnapshotChunk};

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
    let (mut sent, mut whole) = (ContentHasher::default(), 0);
    while let Some(chunk) = from.next().await.map_err(CopyError::Source)? {
        if let SnapshotChunk::Total(total) = &chunk {
            whole = total.plants;
        }
        chunk.check().map_err(|row| CopyError::Source(StoreError::BadRow(row)))?;
        sent.add(&chunk);
        to.put(&chunk).await.map_err(RestoreError::Store)?;
        // Reading back counts as the second half.
        progress(TransferProgress::of(sent.plants(), sent.plants(), whole.saturating_mul(2)));
    }
    let mut found = ContentHasher::default();
    let mut contents = to.contents().await.map_err(RestoreError::Store)?;
    while let Some(chunk) = contents.next().await.map_err(RestoreError::Store)? {
        found.add(&chunk);
        progress(TransferProgress::of(sent.plants(), sent.plants() + found.plants(), whole.saturating_mul(2)));
    }
    let (sent, found) = (sent.finish(), found.finish());
    if !found.matches(&sent) {
        return Err(CopyError::Different { sent: Box::new(sent), found: Box::new(found) });
    }
    to.finish().await?;
    Ok(found)
}
