//! Snapshots, as the engines send them and callers receive them.

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::records::Chunk;
use crate::error::StoreError;
use plantstore_model::user::UserName;

/// Chunks that wait for the reader: what is in memory is bounded.
const CHUNKS_WAITING: usize = 4;

/// The part of a store that is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All but what deleted users have left behind.
    Everything,
    /// All plants.
    Plants,
    /// The plants of one user.
    PlantsOf(UserName),
}

impl Selection {
    /// Returns the only user whose plants are wanted.
    pub(crate) fn user(&self) -> Option<&str> {
        match self {
            Self::PlantsOf(user) => Some(user.as_str()),
            Self::Everything | Self::Plants => None,
        }
    }
}

/// A message from an engine to the reader of a snapshot; `None` after the last chunk.
pub(crate) type Message = Result<Option<Chunk>, StoreError>;

/// A store at one moment: writes that follow are not in it and do not wait for it. It is read on demand, in bounded memory,
/// until it is dropped.
pub struct Snapshot {
    chunks: Receiver<Message>,
}

impl Snapshot {
    /// Returns a snapshot that receives what the engine sends.
    pub(crate) fn channel() -> (Sender<Message>, Self) {
        let (sender, chunks) = channel(CHUNKS_WAITING);
        (sender, Self { chunks })
    }

    /// Returns the next chunk, in the order of [`Chunk`]; `None` after the last. A reader that takes none for a minute may get
    /// an error instead of the rest.
    pub async fn next(&mut self) -> Result<Option<Chunk>, StoreError> {
        let given_up = || {
            Err(StoreError::Unavailable(
                "nobody has taken what was read for a minute, and a snapshot is not held for longer".to_owned(),
            ))
        };
        self.chunks.recv().await.unwrap_or_else(given_up)
    }
}
