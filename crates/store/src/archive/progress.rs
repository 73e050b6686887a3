//! Progress, as callers see it.

/// Progress of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub plants: u64,
    /// Of the whole, where that is known.
    pub percent: Option<u64>,
}

impl Progress {
    pub(super) fn of(plants: u64, done: u64, whole: u64) -> Self {
        Self { plants, percent: done.saturating_mul(100).checked_div(whole).map(|percent| percent.min(100)) }
    }
}
