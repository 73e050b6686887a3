//! Arguments and results of operations on plants.

use crate::version::Version;
use plantstore_model::user::UserId;

/// The user who writes, and the owner of the plants that change: nearly always the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    pub user: UserId,
    pub owner: UserId,
}

/// Result of a create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    Created,
    /// The owner has a plant of this id already; it is untouched.
    Duplicate,
    /// The user was deleted meanwhile.
    NoUser,
    /// Another owner was deleted meanwhile.
    NoOwner,
}

/// Result of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    Deleted,
    /// The owner has no plant of this id.
    NoPlant,
    /// The user was deleted meanwhile.
    NoUser,
    /// Another owner was deleted meanwhile.
    NoOwner,
}

/// Result of one step of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListStep {
    /// True when the ranges hold more.
    pub more: bool,
    /// The version of each owner, from the same moment as the plants; `None` for one who was deleted.
    pub versions: Vec<Option<Version>>,
}
