//! Plants as lines of JSON, in the order of their owners' names and of ids.

use std::io::{self, Write};

use super::digest::{Digest, Hasher};
use super::progress::Progress;
use crate::error::StoreError;
use crate::transfer::{Chunk, PlantRecord, Snapshot};

/// Result of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Lines, each a plant.
    pub plants: u64,
    /// Users who have plants.
    pub owners: u64,
    /// Users in the selection.
    pub users: u64,
    /// Of all bytes that were written.
    pub digest: Digest,
}

/// Reasons why an export ended early.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("reading failed")]
    Store(#[from] StoreError),
    /// The output failed, a reader who has seen enough included.
    #[error("cannot write")]
    Output(#[from] io::Error),
}

/// Writes the plants of a snapshot.
pub async fn export(
    mut from: Snapshot,
    output: &mut impl Write,
    mut progress: impl FnMut(Progress),
) -> Result<Exported, ExportError> {
    let mut hasher = Hasher::default();
    let (mut plants, mut owners, mut users, mut whole) = (0, Owners::default(), 0, 0);
    while let Some(chunk) = from.next().await? {
        match chunk {
            Chunk::Total(total) => (users, whole) = (total.users, total.plants),
            Chunk::Plants(rows) => {
                output.write_all(hasher.lines(&rows))?;
                plants += rows.len() as u64;
                owners.count(&rows);
                progress(Progress::of(plants, plants, whole));
            }
            Chunk::LastIds(_) | Chunk::Users(_) | Chunk::Tokens(_) | Chunk::Shares(_) | Chunk::Keys(_) => {}
        }
    }
    output.flush()?;
    Ok(Exported { plants, owners: owners.count, users, digest: hasher.finish() })
}

/// Counts owners, whose plants follow each other.
#[derive(Default)]
struct Owners {
    count: u64,
    last: Option<i64>,
}

impl Owners {
    fn count(&mut self, rows: &[PlantRecord]) {
        for row in rows {
            if self.last.replace(row.user_id) != Some(row.user_id) {
                self.count += 1;
            }
        }
    }
}
