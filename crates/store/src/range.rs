//! Ranges of plants that a list reads.

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
    /// Plants that the next merge step reads of this range; 0 before the first step.
    pub(crate) fetch_size: usize,
}

impl PlantRange {
    pub fn all_of(owner: UserId) -> Self {
        Self { owner, from: i64::MIN, through: i64::MAX, as_of: i64::MAX, fetch_size: 0 }
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

    /// Returns the range without the plants created after `version`; an empty range without a version.
    #[must_use]
    pub fn as_of(self, version: Option<Version>) -> Self {
        version.map_or_else(|| self.emptied(), |version| Self { as_of: version.get(), ..self })
    }

    /// Returns the range without any plants.
    #[must_use]
    pub(crate) fn emptied(self) -> Self {
        Self { from: i64::MAX, through: i64::MIN, ..self }
    }

    /// Returns true if the range is known to be empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.from > self.through
    }

    /// Returns true if the range may end before the owner's last plant.
    pub(crate) fn is_bounded(&self) -> bool {
        self.through < i64::MAX || self.as_of < i64::MAX
    }
}

/// Ends all ranges after the plant `id` of the range with the index `last`.
pub fn end_ranges_after(ranges: &mut [PlantRange], (id, last): (PlantId, usize)) {
    for (index, range) in ranges.iter_mut().enumerate() {
        // A plant with the same id in a later range comes after it.
        *range = if index <= last { range.through(id) } else { range.before(id) };
    }
}
