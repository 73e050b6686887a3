//! Limits that callers of the store use.

use std::time::Duration;

/// Delay between the deletion of a user and the removal of their plants. It is longer than a server caches a token.
pub const SWEEP_DELAY: Duration = Duration::from_secs(3);

/// Maximum number of owners who share their plants with one user. It bounds the work of one step of a list.
pub const SHARES_MAX: u32 = 100;
