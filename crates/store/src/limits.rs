//! Limits that callers of the store use.

use std::time::Duration;

/// Delay between the deletion of a user and the removal of their plants. It is longer than a server caches a token.
pub const SWEEP_DELAY: Duration = Duration::from_secs(3);

/// Maximum number of active tokens of a user who creates one.
pub const TOKENS_MAX: u32 = 100;

/// Maximum number of revoked and expired tokens of a user that are stored when the user creates another one.
pub(crate) const INACTIVE_TOKENS_MAX: u32 = 100;

/// Maximum number of users that an owner can share with.
pub const SHARES_GRANTED_MAX: u32 = 100;

/// Maximum number of owners who share their plants with one user. It bounds the work of one step of a list.
pub const SHARES_RECEIVED_MAX: u32 = 100;
