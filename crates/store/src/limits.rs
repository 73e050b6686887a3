//! Limits that callers of the store know.

use std::time::Duration;

/// Time between the deletion of a user and that of their plants, longer than a server caches a token.
pub const SWEEP_DELAY: Duration = Duration::from_secs(3);

/// Owners who may share their plants with one user: bounds what a list of all of them reads at a time.
pub const SHARES_MAX: u32 = 100;
