//! Batches of imported plants.

use std::sync::Arc;

use plantstore_model::plant::NewPlant;
use plantstore_model::user::UserName;

/// A plant to import.
#[derive(Clone, Debug)]
pub struct ImportRow {
    /// Created if there is no user of that name.
    pub owner: Arc<UserName>,
    pub plant: NewPlant,
}

/// Outcome of one plant of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportOutcome {
    Stored,
    /// The plant exists already with the same name and tag.
    Same,
    /// The plant exists already with a different name or tag, and is unchanged.
    Different,
}

/// Result of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportResult {
    /// One per plant, in order. If a duplicate id stops the batch, its outcome is the last.
    pub outcomes: Vec<ImportOutcome>,
    pub new_users: u64,
}
