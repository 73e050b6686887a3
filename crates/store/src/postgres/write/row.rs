//! The row by which a writer finds out if a commit has succeeded.

use std::time::Duration;

use jiff::Timestamp;

use crate::postgres::citus::Shards;

/// Time without a commit after which the writer creates another row, because its row may have been removed.
const ROW_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// Number of random ids of which one is on the server, for up to hundreds of servers.
const ROW_TRIES: usize = 10_000;

/// The writer's row in the database. Another one is used after an unknown outcome.
pub(super) struct WriterRow {
    pub(super) id: i64,
    /// Id of the last commit, which the row must contain; 0 before the first commit creates the row.
    pub(super) last: i64,
}

impl WriterRow {
    pub(super) fn new(shards: &Shards) -> Self {
        // The system's random source does not fail after boot.
        let random = || getrandom::u64().expect("the system's random source").cast_signed() | i64::MIN;
        // A row on another server would be right, too.
        let id = std::iter::repeat_with(random).take(ROW_TRIES).find(|id| shards.may_contain(*id));
        Self { id: id.unwrap_or_else(random), last: 0 }
    }

    /// Chooses another row if this one is on another server now, or may have been removed because it is old. A commit id is the
    /// time in microseconds.
    pub(super) fn renew_if_needed(&mut self, shards: &Shards) {
        let age = Timestamp::now().as_microsecond().abs_diff(self.last);
        let is_old = self.last > 0 && u128::from(age) > ROW_LIFETIME.as_micros();
        if is_old || !shards.may_contain(self.id) {
            *self = Self::new(shards);
        }
    }
}
