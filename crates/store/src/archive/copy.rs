//! Copies of whole stores: what backups, restores and moves have in common. Rows are counted and digested on the way; what has
//! arrived is read back, counted and digested, too; and only if both agree does the new store come into being.

use super::digest::{ContentDigest, ContentHasher};
use super::progress::Progress;
use crate::bulk::RestoreTarget;
use crate::error::{RestoreError, StoreError};
use crate::transfer::{Chunk, Snapshot};

/// Reasons why a store was not copied. The new one does not exist then, unless its outcome is unknown.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("reading failed")]
    Source(#[source] StoreError),
    #[error("writing failed")]
    Target(#[from] RestoreError),
    #[error("what was written is not what was read: sent {sent}, found {found}; the new store was given up")]
    Different { sent: Box<ContentDigest>, found: Box<ContentDigest> },
}

/// Fills a new store with all that another held at one moment, reads it back, and finishes it if nothing differs.
pub async fn copy(
    mut from: Snapshot,
    mut to: RestoreTarget,
    mut progress: impl FnMut(Progress),
) -> Result<ContentDigest, CopyError> {
    let (mut sent, mut whole) = (ContentHasher::default(), 0);
    while let Some(chunk) = from.next().await.map_err(CopyError::Source)? {
        if let Chunk::Total(total) = &chunk {
            whole = total.plants;
        }
        chunk.check().map_err(|row| CopyError::Source(StoreError::BadRow(row)))?;
        sent.add(&chunk);
        to.put(&chunk).await.map_err(RestoreError::Store)?;
        // What is read back counts for the other half.
        progress(Progress::of(sent.plants(), sent.plants(), whole.saturating_mul(2)));
    }
    let mut found = ContentHasher::default();
    let mut contents = to.contents().await.map_err(RestoreError::Store)?;
    while let Some(chunk) = contents.next().await.map_err(RestoreError::Store)? {
        found.add(&chunk);
        progress(Progress::of(sent.plants(), sent.plants() + found.plants(), whole.saturating_mul(2)));
    }
    let (sent, found) = (sent.finish(), found.finish());
    if !found.holds(&sent) {
        return Err(CopyError::Different { sent: Box::new(sent), found: Box::new(found) });
    }
    to.finish().await?;
    Ok(found)
}
