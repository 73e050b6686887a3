//! Tracks the plants that a run creates and has to delete, and generates ids and names that no other client uses.

use serde_json::json;

use crate::response::ListedPlant;

/// A plant for a check to create, with an id and a name that no other client uses.
#[derive(Clone, Debug)]
pub(crate) struct TestPlant {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) tag: Option<String>,
}

impl TestPlant {
    pub(crate) fn with_tag(self, tag: &str) -> Self {
        Self { tag: Some(tag.to_owned()), ..self }
    }

    pub(crate) fn json(&self) -> String {
        match &self.tag {
            Some(tag) => json!({ "id": self.id, "name": self.name, "tag": tag }).to_string(),
            None => json!({ "id": self.id, "name": self.name }).to_string(),
        }
    }

    /// Checks that a response shows this plant, with its id if it shows ids.
    pub(crate) fn is_shown_as(&self, shown: &ListedPlant) -> bool {
        shown.id.is_none_or(|id| id == self.id) && shown.name == self.name && shown.tag == self.tag
    }
}

/// A plant that this run may have created on the server.
#[derive(Clone, Debug)]
struct TrackedPlant {
    id: i64,
    /// The server has confirmed the create; otherwise the outcome is unknown.
    confirmed: bool,
}

pub(crate) struct CleanupTracker {
    /// Part of every name of this run.
    pub(crate) marker: String,
    first: i64,
    taken: i64,
    created: Vec<TrackedPlant>,
}

impl CleanupTracker {
    /// Returns `None` without randomness. The ids are random, and so low that these plants come first in most lists.
    pub(crate) fn new() -> Option<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        let number = u128::from_le_bytes(bytes);
        let low = i64::try_from(number >> 66).ok()?;
        let marker = format!("plantstore check {:016x}", number & u128::from(u64::MAX));
        // Between -2^63 and -2^62, with some room at both ends.
        Some(Self { marker, first: i64::MIN + (1 << 32) + low - (low >> 16), taken: 0, created: Vec::new() })
    }

    pub(crate) fn new_id(&mut self) -> i64 {
        self.taken += 1;
        self.first + self.taken
    }

    pub(crate) fn name(&self, word: &str) -> String {
        format!("{} {word}", self.marker)
    }

    pub(crate) fn new_plant(&mut self, word: &str) -> TestPlant {
        TestPlant { id: self.new_id(), name: self.name(word), tag: None }
    }

    /// Tracks an id before its create is sent, whatever the outcome will be.
    pub(crate) fn creating(&mut self, id: i64) {
        self.created.push(TrackedPlant { id, confirmed: false });
    }

    pub(crate) fn create_responded(&mut self, id: i64, status: u16) {
        match status {
            200..300 => {
                self.created.iter_mut().filter(|created| created.id == id).for_each(|created| created.confirmed = true);
            }
            // The plant exists only if an earlier create was confirmed.
            400..500 => {
                if let Some(at) = self.created.iter().position(|created| created.id == id && !created.confirmed) {
                    self.created.remove(at);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn deleted(&mut self, id: i64) {
        self.created.retain(|created| created.id != id);
    }

    /// Forgets a confirmed plant that the server no longer has. A pending create may still take effect.
    pub(crate) fn not_found(&mut self, id: i64) {
        self.created.retain(|created| created.id != id || !created.confirmed);
    }

    pub(crate) fn is_pending(&self, id: i64) -> bool {
        self.created.iter().any(|created| created.id == id && !created.confirmed)
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.created.iter().any(|created| !created.confirmed)
    }

    /// Returns true if all plants that may be left are pending.
    pub(crate) fn has_only_pending(&self) -> bool {
        self.created.iter().all(|created| !created.confirmed)
    }

    /// Returns the ids that may be deleted: confirmed ones, and those that only this run uses.
    pub(crate) fn deletable(&self) -> Vec<i64> {
        let generated = self.first..=self.first + self.taken;
        let ours = |created: &&TrackedPlant| created.confirmed || generated.contains(&created.id);
        let mut ids: Vec<i64> = self.created.iter().filter(ours).map(|created| created.id).collect();
        ids.dedup();
        ids
    }

    pub(crate) fn remaining(&self) -> Vec<i64> {
        self.created.iter().map(|created| created.id).collect()
    }
}
