//! Users, tokens and shares, as the store returns them.

use std::fmt;

use jiff::Timestamp;

use crate::error::StoreError;
use crate::row::RowSource;
use plantstore_model::token::{Grant, Scopes, TokenId, TokenLabel};
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
    fn read<R: RowSource>(row: &R, column: usize) -> Result<Self, R::Error> {
        row.lossy_text(column).map(|text| Self::from_stored(&text))
    }

    fn from_stored(text: &str) -> Self {
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

/// A token, which may be revoked or expired.
#[derive(Clone, Debug)]
pub struct StoredToken {
    pub id: TokenId,
    pub user: StoredName,
    pub user_id: UserId,
    pub grant: Grant,
    pub revoked: Option<Timestamp>,
    /// The day it was last used, if it was.
    pub last_used: Option<Timestamp>,
    /// True when another user shares their plants with that user.
    pub shared_with: bool,
}

impl StoredToken {
    pub(crate) fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        let time = |column| Ok(row.field::<Option<i64>>(column)?.map(timestamp));
        Ok(Self {
            id: TokenId::new(row.field(0)?),
            user_id: UserId::new(row.field(1)?),
            user: StoredName::read(row, 2)?,
            grant: Grant {
                label: TokenLabel::from_stored(&row.lossy_text(3)?),
                scopes: Scopes::from_names(&row.field::<String>(4)?),
                created: timestamp(row.field(5)?),
                expires: time(6)?,
            },
            revoked: time(7)?,
            last_used: time(8)?,
            shared_with: row.field(9)?,
        })
    }
}

/// A user, with the numbers of their tokens and plants.
#[derive(Clone, Debug)]
pub struct StoredUser {
    pub name: StoredName,
    /// When they were first given a token, or first came with one of an issuer.
    pub created: Timestamp,
    /// Tokens that are not revoked.
    pub tokens: u64,
    pub plants: u64,
}

impl StoredUser {
    pub(crate) fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        Ok(Self {
            name: StoredName::read(row, 0)?,
            created: timestamp(row.field(1)?),
            tokens: row.field::<i64>(2)?.unsigned_abs(),
            plants: row.field::<i64>(3)?.unsigned_abs(),
        })
    }
}

/// All plants of one owner, as a user sees them who may at least read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    pub owner: UserName,
    pub owner_id: UserId,
    /// The rights of that user.
    pub role: Role,
}

impl Collection {
    pub(crate) fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        let owner = UserName::parse(&row.field::<String>(0)?).map_err(|fault| R::invalid(0, fault.to_string()))?;
        Ok(Self { owner, owner_id: UserId::new(row.field(1)?), role: role(row, 2)? })
    }
}

/// A share as operators see it.
#[derive(Clone, Debug)]
pub struct StoredShare {
    pub owner: StoredName,
    pub grantee: StoredName,
    pub role: Role,
    pub created: Timestamp,
}

impl StoredShare {
    pub(crate) fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        Ok(Self {
            owner: StoredName::read(row, 0)?,
            grantee: StoredName::read(row, 1)?,
            role: role(row, 2)?,
            created: timestamp(row.field(3)?),
        })
    }

    /// Both names, as shares are ordered.
    pub(crate) fn names(&self) -> (&str, &str) {
        (self.owner.as_str(), self.grantee.as_str())
    }
}

/// Result of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantOutcome {
    /// The plants are shared, in this role.
    Granted,
    NoOwner,
    NoGrantee,
    /// [`SHARES_MAX`](crate::SHARES_MAX) owners share with them already.
    TooMany,
}

fn role<R: RowSource>(row: &R, column: usize) -> Result<Role, R::Error> {
    let name: String = row.field(column)?;
    Role::from_name(&name).ok_or_else(|| R::invalid(column, format!("unknown role {name}")))
}

/// Returns the time with this stored value, or the furthest that there is in its direction.
fn timestamp(seconds: i64) -> Timestamp {
    let furthest = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_second(seconds).unwrap_or(furthest)
}
