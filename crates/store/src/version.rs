//! Versions of users.

use jiff::Timestamp;

/// The version of a user. It increases at least with each change of the user's plants. It is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(i64);

impl Version {
    pub const fn new(value: i64) -> Self {
        Self(value)
    }

    pub const fn get(self) -> i64 {
        self.0
    }
}

/// Returns the next version: the current time in microseconds, or the version plus one if the clock is behind. The time makes
/// sure that no version is reused after a store was restored to an earlier state.
pub(crate) fn next_version(version: i64) -> i64 {
    version.saturating_add(1).max(Timestamp::now().as_microsecond())
}
