//! Progress of copies, exports and imports.

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
