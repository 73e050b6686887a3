//! Export of plants as JSON lines, in the order of their owners' names and of ids.

use std::io::{self, Write};

use super::digest::{Digest, TableHasher};
use super::progress::TransferProgress;
use super::snapshot::Snapshot;
use crate::error::StoreError;

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
    let start = from.start().await?;
    let mut hasher = TableHasher::default();
    let mut owners = 0;
    let mut last_owner = None;
    while let Some(chunk) = from.next().await? {
        output.write_all(hasher.add(&chunk))?;
        for row in chunk.rows() {
            // The plants of an owner are consecutive.
            let owner = Some(row[0].integer());
            owners += u64::from(owner != last_owner);
            last_owner = owner;
        }
        progress(TransferProgress::of(hasher.rows, hasher.rows, start.plants));
    }
    output.flush()?;
    Ok(ExportSummary { plants: hasher.rows, owners, users: start.users, digest: hasher.finish() })
}
