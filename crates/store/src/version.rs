//! Versions of users.

use jiff::Timestamp;

/// A user's version: moves with every change of what a list of their plants shows, and is never used a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(i64);

impl Version {
    pub const fn new(value: i64) -> Self {
        Self(value)
    }

    pub const fn get(self) -> i64 {
        self.0
    }
}

/// Returns the version after this one. Versions follow the clock where it goes forward, so that none is ever used a second
/// time, not even after a store was put back to an earlier state.
pub(crate) fn next_version(version: i64) -> i64 {
    version.saturating_add(1).max(Timestamp::now().as_microsecond())
}
