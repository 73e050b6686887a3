//! Consistent snapshots of stores, which the engines send through a channel.

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::table::{Chunk, TOKENS, USERS};
use crate::error::{BadRow, StoreError};
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
    pub(super) fn user(&self) -> Option<&str> {
        match self {
            Self::PlantsOf(user) => Some(user.as_str()),
            Self::Everything | Self::Plants => None,
        }
    }
}

/// The first message of a snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SnapshotStart {
    /// Users in the selection.
    pub(super) users: u64,
    pub(super) plants: u64,
    pub(super) last_ids: LastIds,
}

/// The highest ids that a store has assigned, 0 for none. They include deleted users and tokens, because ids are never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LastIds {
    pub(super) user: i64,
    pub(super) token: i64,
}

impl LastIds {
    /// The maximum id must not be in use, because there would be none for the next user or token.
    pub(super) fn check(self) -> Result<(), BadRow> {
        for (table, last) in [(&USERS, self.user), (&TOKENS, self.token)] {
            if !(0..i64::MAX).contains(&last) {
                let fault = format!("must be at least 0 and less than {}", i64::MAX);
                return Err(BadRow::new(table.name, format!("last assigned id {last}"), fault));
            }
        }
        Ok(())
    }
}

/// Message from an engine to the receiver of a snapshot.
pub(super) enum SnapshotMessage {
    Start(SnapshotStart),
    /// Chunks come in the order of [`Table::ALL`](super::table::Table::ALL).
    Rows(Chunk),
    End,
    Failed(StoreError),
}

/// Error that ends the reading of a snapshot.
pub(super) enum SnapshotError {
    Failed(StoreError),
    /// The receiver was dropped, or did not receive anything for too long.
    ReceiverGone,
}

impl From<StoreError> for SnapshotError {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

impl From<BadRow> for SnapshotError {
    fn from(row: BadRow) -> Self {
        Self::Failed(StoreError::BadRow(row))
    }
}

/// Returns the last message of a snapshot, unless its receiver is gone.
pub(super) fn last_message(read: Result<(), SnapshotError>) -> Option<SnapshotMessage> {
    match read {
        Ok(()) => Some(SnapshotMessage::End),
        Err(SnapshotError::Failed(error)) => Some(SnapshotMessage::Failed(error)),
        Err(SnapshotError::ReceiverGone) => None,
    }
}

/// A consistent snapshot of a store. Later writes are not part of it, and are not blocked by it. It is read on demand, in bounded
/// memory.
pub struct Snapshot {
    messages: Receiver<SnapshotMessage>,
}

impl Snapshot {
    /// Returns a snapshot and the sender for its messages.
    pub(super) fn channel() -> (Sender<SnapshotMessage>, Self) {
        let (sender, messages) = channel(CHUNKS_WAITING);
        (sender, Self { messages })
    }

    /// Returns the sizes. Call it first.
    pub(super) async fn start(&mut self) -> Result<SnapshotStart, StoreError> {
        match self.receive().await? {
            SnapshotMessage::Start(start) => Ok(start),
            _ => Err(StoreError::Internal("a snapshot without a start".to_owned())),
        }
    }

    /// Returns the next rows; `None` after the last. If nothing is received for a minute, the engine may close the snapshot, which is
    /// an error.
    pub(super) async fn next(&mut self) -> Result<Option<Chunk>, StoreError> {
        match self.receive().await? {
            SnapshotMessage::Rows(chunk) => Ok(Some(chunk)),
            _ => Ok(None),
        }
    }

    async fn receive(&mut self) -> Result<SnapshotMessage, StoreError> {
        match self.messages.recv().await {
            Some(SnapshotMessage::Failed(error)) => Err(error),
            Some(message) => Ok(message),
            None => Err(StoreError::Unavailable(
                "the snapshot was closed because its reader received nothing for a minute".to_owned(),
            )),
        }
    }
}
