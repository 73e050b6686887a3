//! Users, tokens and shares, as the store returns them.

use std::fmt;

use jiff::Timestamp;

use crate::error::StoreError;
use crate::row::RowSource;
use plantstore_model::token::{Grant, Scopes, TokenId, TokenLabel};
use plantstore_model::user::{Role, UserId, UserName};

/// A stored user name. A name that another program wrote may be invalid; it is shown, so that an operator can correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredName {
    Valid(UserName),
    Invalid(String),
}

impl StoredName {
    fn read<R: RowSource>(row: &R, column: usize) -> Result<Self, R::Error> {
        row.lossy_text(column).map(|text| Self::from_stored(&text))
    }

    fn from_stored(text: &str) -> Self {
        UserName::parse(text).map_or_else(|_| Self::Invalid(text.to_owned()), Self::Valid)
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Valid(name) => name.as_str(),
            Self::Invalid(text) => text,
        }
    }

    /// Returns the name if it is valid.
    pub fn into_valid(self) -> Result<UserName, StoreError> {
        match self {
            Self::Valid(name) => Ok(name),
            Self::Invalid(text) => Err(StoreError::Internal(format!("`{}` is no user name", text.escape_debug()))),
        }
    }
}

/// Escapes an invalid name, so that it stays on one line.
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
    /// The day of its last use.
    pub last_used: Option<Timestamp>,
    /// True if another user shares their plants with this user.
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
    /// Time of the first token, or of the first request with an issuer's token.
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

/// The plants of one owner that are shared with a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    pub owner: UserName,
    pub owner_id: UserId,
    /// Role of that user.
    pub role: Role,
}

impl Collection {
    pub(crate) fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        let owner = UserName::parse(&row.field::<String>(0)?).map_err(|fault| R::invalid(0, fault.to_string()))?;
        Ok(Self { owner, owner_id: UserId::new(row.field(1)?), role: role(row, 2)? })
    }
}

/// A share, with the names of both users.
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
}

/// Result of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantOutcome {
    Granted,
    NoOwner,
    NoGrantee,
    /// [`SHARES_MAX`](crate::SHARES_MAX) owners already share with the grantee.
    TooMany,
}

fn role<R: RowSource>(row: &R, column: usize) -> Result<Role, R::Error> {
    let name: String = row.field(column)?;
    Role::from_name(&name).ok_or_else(|| R::invalid(column, format!("unknown role {name}")))
}

/// Converts stored seconds to a time, limited to the range of [`Timestamp`].
fn timestamp(seconds: i64) -> Timestamp {
    let nearest = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_second(seconds).unwrap_or(nearest)
}
