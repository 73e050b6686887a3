//! Snapshots, which the engines send through a channel.

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::records::SnapshotChunk;
use crate::error::StoreError;
use plantstore_model::user::UserName;

/// Capacity of the channel. It bounds the memory of a snapshot.
const CHUNKS_WAITING: usize = 4;

/// The part of a store that a snapshot contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Everything except the data of deleted users.
    Everything,
    /// All plants.
    Plants,
    /// The plants of one user.
    PlantsOf(UserName),
}

impl Selection {
    /// Returns the user that the snapshot is limited to.
    pub(crate) fn user(&self) -> Option<&str> {
        match self {
            Self::PlantsOf(user) => Some(user.as_str()),
            Self::Everything | Self::Plants => None,
        }
    }
}

/// Message from an engine to the receiver of a snapshot; `None` after the last chunk.
pub(crate) type SnapshotMessage = Result<Option<SnapshotChunk>, StoreError>;

/// Error that ends the reading of a snapshot.
pub(crate) enum SnapshotError {
    Failed(StoreError),
    /// The receiver was dropped, or did not receive anything for too long.
    ReceiverGone,
}

impl From<StoreError> for SnapshotError {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

/// A consistent snapshot of a store. Later writes are not part of it, and are not blocked by it. It is read on demand, in bounded
/// memory.
pub struct Snapshot {
    chunks: Receiver<SnapshotMessage>,
}

impl Snapshot {
    /// Returns a snapshot and the sender for its chunks.
    pub(crate) fn channel() -> (Sender<SnapshotMessage>, Self) {
        let (sender, chunks) = channel(CHUNKS_WAITING);
        (sender, Self { chunks })
    }

    /// Returns the next chunk; `None` after the last. If no chunk is received for a minute, the engine may close the snapshot,
    /// which is an error.
    pub async fn next(&mut self) -> Result<Option<SnapshotChunk>, StoreError> {
        let closed = || {
            Err(StoreError::Unavailable(
                "the snapshot was closed because its reader received nothing for a minute".to_owned(),
            ))
        };
        self.chunks.recv().await.unwrap_or_else(closed)
    }
}
