//! Arguments and results of operations on plants.

use crate::version::Version;
use plantstore_model::user::UserId;

/// The user who writes, and the owner of the plants, who are usually the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteContext {
    pub user: UserId,
    pub owner: UserId,
}

/// Result of a create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    Created,
    /// The owner already has a plant with this id, which is unchanged.
    Duplicate,
    /// The user was deleted meanwhile.
    NoUser,
    /// The owner, who is another user, was deleted meanwhile.
    NoOwner,
}

/// Result of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    Deleted,
    /// The owner has no plant with this id.
    NoPlant,
    /// The user was deleted meanwhile.
    NoUser,
    /// The owner, who is another user, was deleted meanwhile.
    NoOwner,
}

/// Result of one step of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListStep {
    /// True when the ranges hold more.
    pub more: bool,
    /// The version of each owner, from the same snapshot as the plants; `None` for a deleted owner.
    pub versions: Vec<Option<Version>>,
}
