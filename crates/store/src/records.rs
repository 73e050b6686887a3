//! What the store tells of tokens, users and shares.

use std::fmt;

use jiff::Timestamp;

use super::StoreError;
use plantstore_model::token::{Grant, TokenId};
use plantstore_model::user::{Role, UserId, UserName};

/// A user name as it is stored. One that another program wrote may break the rules; it is shown, so that it can be corrected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredName {
    /// A name that the service can use.
    Valid(UserName),
    /// A text that is no user name.
    Invalid(String),
}

impl StoredName {
    pub(super) fn from_stored(text: &str) -> Self {
        UserName::parse(text).map_or_else(|_| Self::Invalid(text.to_owned()), Self::Valid)
    }

    /// The text as it is stored.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Valid(name) => name.as_str(),
            Self::Invalid(text) => text,
        }
    }

    /// The name, if the service can use it.
    pub fn into_valid(self) -> Result<UserName, StoreError> {
        match self {
            Self::Valid(name) => Ok(name),
            Self::Invalid(text) => Err(StoreError::Internal(format!("`{}` is no user name", text.escape_debug()))),
        }
    }
}

/// On one line, whatever is stored.
impl fmt::Display for StoredName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Valid(name) => name.fmt(formatter),
            Self::Invalid(text) => write!(formatter, "{} (invalid)", text.escape_debug()),
        }
    }
}

/// A token as the store knows it, revoked and expired ones included.
#[derive(Clone, Debug)]
pub struct StoredToken {
    /// The number operators name it by.
    pub id: TokenId,
    /// Whom it acts for.
    pub user: StoredName,
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
    pub name: StoredName,
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
    pub owner: StoredName,
    /// With whom.
    pub grantee: StoredName,
    /// What they may do.
    pub role: Role,
    /// Since when they are shared.
    pub created: Timestamp,
}

impl StoredShare {
    /// Both names, as shares are ordered.
    pub(super) fn names(&self) -> (&str, &str) {
        (self.owner.as_str(), self.grantee.as_str())
    }
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
