//! What the store tells of tokens, users and shares.

use jiff::Timestamp;

use crate::token::{Grant, TokenId};
use crate::user::{Role, UserId, UserName};

/// A token as the store knows it, revoked and expired ones included.
#[derive(Clone, Debug)]
pub struct StoredToken {
    /// The number operators name it by.
    pub id: TokenId,
    /// Whom it acts for.
    pub user: UserName,
    /// The store's number of that user.
    pub user_id: UserId,
    /// Label, scopes and times.
    pub grant: Grant,
    /// When it was revoked, if it was.
    pub revoked: Option<Timestamp>,
    /// The day it was last used, if it was.
    pub last_used: Option<Timestamp>,
    /// Whether somebody shares their plants with that user.
    pub shared_with: bool,
}

/// A user and what they have.
#[derive(Clone, Debug)]
pub struct StoredUser {
    /// Their name.
    pub name: UserName,
    /// When they were first given a token, or first came with one of an issuer.
    pub created: Timestamp,
    /// Tokens that are not revoked.
    pub tokens: u64,
    /// Plants.
    pub plants: u64,
}

/// All plants of one owner, as somebody sees them who may at least read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Whose they are.
    pub owner: UserName,
    /// The store's number of the owner.
    pub owner_id: UserId,
    /// What that somebody may do with them.
    pub role: Role,
}

/// A share as operators see it.
#[derive(Clone, Debug)]
pub struct StoredShare {
    /// Whose plants are shared.
    pub owner: UserName,
    /// With whom.
    pub grantee: UserName,
    /// What they may do.
    pub role: Role,
    /// Since when they are shared.
    pub created: Timestamp,
}

/// What became of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granting {
    /// The plants are shared, in this role.
    Granted,
    /// There is no such owner.
    NoOwner,
    /// There is nobody of the other name.
    NoGrantee,
    /// [`super::SHARES_MAX`] owners share with them already.
    TooMany,
}
