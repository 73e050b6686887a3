//! Consistent snapshots of stores, which the engines send through a channel.

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::table::{Chunk, PLANTS, TOKENS, Table, USERS};
use crate::error::StoreError;
use plantstore_model::user::UserName;

/// Capacity of the channel. It bounds the memory of a snapshot.
const CHUNKS_WAITING: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Everything except the data of deleted users.
    Everything,
    Plants,
    PlantsOf(UserName),
}

impl Selection {
    pub(super) fn user(&self) -> Option<&str> {
        match self {
            Self::PlantsOf(user) => Some(user.as_str()),
            Self::Everything | Self::Plants => None,
        }
    }

    pub(super) fn tables(&self) -> impl Iterator<Item = &'static Table> {
        Table::ALL.into_iter().filter(move |table| *self == Self::Everything || table.name == PLANTS.name)
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
    pub(super) fn check(self) -> Result<(), StoreError> {
        for (table, last) in [(&USERS, self.user), (&TOKENS, self.token)] {
            if !(0..i64::MAX).contains(&last) {
                let fault = format!(
                    "table {}, last assigned id {last}: must be at least 0 and less than {}",
                    table.name,
                    i64::MAX
                );
                return Err(StoreError::BadRow(fault));
            }
        }
        Ok(())
    }
}

pub(super) enum SnapshotMessage {
    Start(SnapshotStart),
    /// Chunks come in the order of [`Table::ALL`].
    Rows(Chunk),
    End,
}

/// Sends the messages of a snapshot. An error or [`SnapshotMessage::End`] is the last one.
pub(super) type SnapshotSender = Sender<Result<SnapshotMessage, StoreError>>;

/// Returns the error of a snapshot that its engine or its receiver has closed.
pub(super) fn closed() -> StoreError {
    StoreError::Unavailable("the snapshot was closed because its reader received nothing for a minute".to_owned())
}

/// A consistent snapshot of a store, read on demand in bounded memory. Later writes are neither part of it nor blocked.
pub struct Snapshot {
    messages: Receiver<Result<SnapshotMessage, StoreError>>,
}

impl Snapshot {
    pub(super) fn channel() -> (SnapshotSender, Self) {
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

    /// Returns the next rows; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Chunk>, StoreError> {
        match self.receive().await? {
            SnapshotMessage::Rows(chunk) => Ok(Some(chunk)),
            _ => Ok(None),
        }
    }

    async fn receive(&mut self) -> Result<SnapshotMessage, StoreError> {
        self.messages.recv().await.unwrap_or_else(|| Err(closed()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferProgress {
    pub plants: u64,
    /// Percentage of the whole, if that is known.
    pub percent: Option<u64>,
}

impl TransferProgress {
    pub(super) fn of(plants: u64, done: u64, whole: u64) -> Self {
        Self { plants, percent: done.saturating_mul(100).checked_div(whole).map(|percent| percent.min(100)) }
    }
}
