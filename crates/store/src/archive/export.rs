//! Export of plants as JSON lines, in the order of their owners' names and of ids.

use std::io::{self, Write};

use super::digest::{Digest, Hasher};
use super::progress::TransferProgress;
use crate::error::StoreError;
use crate::transfer::{PlantRecord, Snapshot, SnapshotChunk};

/// Result of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportSummary {
    pub plants: u64,
    /// Users with plants.
    pub owners: u64,
    /// Users in the selection.
    pub users: u64,
    /// Digest of the whole output.
    pub digest: Digest,
}

/// Errors of an export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("reading failed")]
    Store(#[from] StoreError),
    /// The output failed, or its reader has closed it.
    #[error("cannot write")]
    Output(#[from] io::Error),
}

/// Writes the plants of a snapshot to `output`.
pub async fn export(
    mut from: Snapshot,
    output: &mut impl Write,
    mut progress: impl FnMut(TransferProgress),
) -> Result<ExportSummary, ExportError> {
    let mut hasher = Hasher::default();
    let (mut plants, mut owners, mut users, mut whole) = (0, OwnerCounter::default(), 0, 0);
    while let Some(chunk) = from.next().await? {
        match chunk {
            SnapshotChunk::Total(total) => (users, whole) = (total.users, total.plants),
            SnapshotChunk::Plants(rows) => {
                output.write_all(hasher.lines(&rows))?;
                plants += rows.len() as u64;
                owners.count(&rows);
                progress(TransferProgress::of(plants, plants, whole));
            }
            SnapshotChunk::LastIds(_)
            | SnapshotChunk::Users(_)
            | SnapshotChunk::Tokens(_)
            | SnapshotChunk::Shares(_)
            | SnapshotChunk::Keys(_) => {}
        }
    }
    output.flush()?;
    Ok(ExportSummary { plants, owners: owners.count, users, digest: hasher.finish() })
}

/// Counts the owners of plants. The plants of an owner are consecutive.
#[derive(Default)]
struct OwnerCounter {
    count: u64,
    last: Option<i64>,
}

impl OwnerCounter {
    fn count(&mut self, rows: &[PlantRecord]) {
        for row in rows {
            if self.last.replace(row.user_id) != Some(row.user_id) {
                self.count += 1;
            }
        }
    }
}
