//! Users, tokens and shares, and the removal of what deleted users leave: statements and rules for both engines.

mod shares;
mod sweep;
mod tokens;
mod users;

pub use self::shares::{
    AcceptOutcome, CollectionAccess, GrantOutcome, SHARES_GRANTED_MAX, SHARES_RECEIVED_MAX, ShareState, StoredShare,
};
pub use self::sweep::SWEEP_DELAY;
pub use self::tokens::{CreateTokenOutcome, StoredToken, TOKENS_MAX};
pub use self::users::{StoredName, StoredUser};
