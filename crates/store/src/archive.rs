//! Data in and out: plants as lines of JSON, and whole stores on the move from one place, or engine, to another. All of it is
//! streamed: what is in memory is bounded, however much there is.
//!
//! [`copy`] is what backups, restores and moves have in common. Whatever passes is counted and digested on the way; what has
//! arrived is read back, counted and digested, too; and only if both agree does the new store come into being.

mod export;
mod import;
mod line;
mod tally;

use crate::{FillError, Filling, Piece, Snapshot, StoreError};

pub use self::export::{ExportError, Exported, export};
pub use self::import::{Input, Note, Stop, Summary, check, import};
pub use self::tally::{Digest, Tallied, Tally};

/// How far something has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Plants so far.
    pub plants: u64,
    /// Hundredths of the whole, where it is known.
    pub percent: Option<u64>,
}

impl Progress {
    fn of(plants: u64, done: u64, whole: u64) -> Self {
        Self { plants, percent: done.saturating_mul(100).checked_div(whole).map(|percent| percent.min(100)) }
    }
}

/// Why a store was not copied. The new one does not exist then, unless its outcome is unknown.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The store that is read failed.
    #[error("reading failed")]
    Source(#[source] StoreError),
    /// The new store failed.
    #[error("writing failed")]
    Target(#[from] FillError),
    /// What has arrived is not what was sent.
    #[error("what was written is not what was read: sent {sent}, found {found}; the new store was given up")]
    Different {
        /// What was sent.
        sent: Box<Tallied>,
        /// What was found.
        found: Box<Tallied>,
    },
}

/// Fills a new store with all that another held at one moment, reads it back, and finishes it if nothing differs.
pub async fn copy(
    mut from: Snapshot,
    mut to: Filling,
    mut progress: impl FnMut(Progress),
) -> Result<Tallied, CopyError> {
    let (mut sent, mut whole) = (Tally::default(), 0);
    while let Some(piece) = from.next().await.map_err(CopyError::Source)? {
        if let Piece::Total(total) = &piece {
            whole = total.plants;
        }
        piece.check().map_err(|row| CopyError::Source(StoreError::BadRow(row)))?;
        sent.add(&piece);
        to.put(&piece).await.map_err(FillError::Store)?;
        // What is read back counts for the other half.
        progress(Progress::of(sent.plants(), sent.plants(), whole.saturating_mul(2)));
    }
    let mut found = Tally::default();
    let mut contents = to.contents().await.map_err(FillError::Store)?;
    while let Some(piece) = contents.next().await.map_err(FillError::Store)? {
        found.add(&piece);
        progress(Progress::of(sent.plants(), sent.plants() + found.plants(), whole.saturating_mul(2)));
    }
    let (sent, found) = (sent.finish(), found.finish());
    if !found.holds(&sent) {
        return Err(CopyError::Different { sent: Box::new(sent), found: Box::new(found) });
    }
    to.finish().await?;
    Ok(found)
}
