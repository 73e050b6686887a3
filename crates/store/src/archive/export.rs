//! Plants as lines of JSON, in the order of their owners' names and of ids.

use std::io::{self, Write};

use super::Progress;
use super::tally::{Digest, Hasher};
use crate::{Piece, PlantRecord, Snapshot, StoreError};

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Lines, each a plant.
    pub plants: u64,
    /// Users who have plants.
    pub owners: u64,
    /// Users there are among those asked for.
    pub users: u64,
    /// Of all the bytes that were written.
    pub digest: Digest,
}

/// Why an export ended early.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The store failed.
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
    while let Some(piece) = from.next().await? {
        match piece {
            Piece::Total(total) => (users, whole) = (total.users, total.plants),
            Piece::Plants(rows) => {
                output.write_all(hasher.lines(&rows))?;
                plants += rows.len() as u64;
                owners.count(&rows);
                progress(Progress::of(plants, plants, whole));
            }
            Piece::Numbers(_) | Piece::Users(_) | Piece::Tokens(_) | Piece::Shares(_) | Piece::Keys(_) => {}
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
