//! Ranges of plants, as lists read them.

use crate::version::Version;
use plantstore_model::plant::PlantId;
use plantstore_model::user::UserId;

/// A range of one owner's plants in the order of their ids.
#[derive(Clone, Copy, Debug)]
pub struct PlantRange {
    pub(crate) owner: UserId,
    pub(crate) from: i64,
    pub(crate) through: i64,
    pub(crate) as_of: i64,
    /// Plants that the next step of a merge reads of this range; 0 before the first.
    pub(crate) page_size: usize,
}

impl PlantRange {
    pub fn all_of(owner: UserId) -> Self {
        Self { owner, from: i64::MIN, through: i64::MAX, as_of: i64::MAX, page_size: 0 }
    }

    /// Returns the range without the plants before `id`.
    #[must_use]
    pub fn starting_at(self, id: PlantId) -> Self {
        Self { from: self.from.max(id.get()), ..self }
    }

    /// Returns the range without the plants up to `id`.
    #[must_use]
    pub fn past(self, id: PlantId) -> Self {
        match id.get().checked_add(1) {
            Some(from) => Self { from: self.from.max(from), ..self },
            None => self.emptied(),
        }
    }

    /// Returns the range without the plants after `id`.
    #[must_use]
    pub fn through(self, id: PlantId) -> Self {
        Self { through: self.through.min(id.get()), ..self }
    }

    /// Returns the range without the plants from `id` on.
    #[must_use]
    pub fn before(self, id: PlantId) -> Self {
        match id.get().checked_sub(1) {
            Some(through) => Self { through: self.through.min(through), ..self },
            None => self.emptied(),
        }
    }

    /// Returns the range without the plants created after `version`; without any when there was no owner.
    #[must_use]
    pub fn as_of(self, version: Option<Version>) -> Self {
        version.map_or_else(|| self.emptied(), |version| Self { as_of: version.get(), ..self })
    }

    /// Returns the range without any plants.
    #[must_use]
    pub(crate) fn emptied(self) -> Self {
        Self { from: i64::MAX, through: i64::MIN, ..self }
    }

    /// Returns whether it is known to hold nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.from > self.through
    }

    /// Returns whether it ends anywhere but with the owner's last plant.
    pub(crate) fn is_bounded(&self) -> bool {
        self.through < i64::MAX || self.as_of < i64::MAX
    }
}

/// Ends the ranges after a plant of the one at `place`.
pub fn end_ranges_after(ranges: &mut [PlantRange], (id, place): (PlantId, usize)) {
    for (index, range) in ranges.iter_mut().enumerate() {
        // In the order of a list, a plant of the same id in a later range comes after it.
        *range = if index <= place { range.through(id) } else { range.before(id) };
    }
}
