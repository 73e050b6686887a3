//! Plants that come in batches.

use std::sync::Arc;

use plantstore_model::plant::NewPlant;
use plantstore_model::user::UserName;

/// A plant to be stored.
#[derive(Clone, Debug)]
pub struct ImportRow {
    /// A user who is made if there is none of that name.
    pub owner: Arc<UserName>,
    pub plant: NewPlant,
}

/// Result for one plant of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportOutcome {
    Stored,
    /// There is a plant of that id with the same name and tag.
    Same,
    /// There is a plant of that id with another name or tag; it is untouched.
    Different,
}

/// Result of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportedBatch {
    /// For each plant in turn. Where a taken id stops the batch, the outcome of that plant is the last, and what would have
    /// followed was not done.
    pub outcomes: Vec<ImportOutcome>,
    pub new_users: u64,
}
