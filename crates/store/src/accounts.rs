//! Users, tokens and shares, as the store returns them.

use std::fmt;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use crate::error::StoreError;
use crate::row::RowSource;
use plantstore_model::text::Escaped;
use plantstore_model::token::{Scopes, TokenAttributes, TokenCreator, TokenId, TokenLabel, TokenState};
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
            Self::Invalid(text) => Err(StoreError::Internal(format!("`{}` is no user name", Escaped(&text)))),
        }
    }
}

impl Serialize for StoredName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Escapes an invalid name, so that it stays on one line.
impl fmt::Display for StoredName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Valid(name) => name.fmt(formatter),
            Self::Invalid(text) => write!(formatter, "{} (invalid)", Escaped(text)),
        }
    }
}

/// A token, which may be revoked or expired.
#[derive(Clone, Debug)]
pub struct StoredToken {
    pub id: TokenId,
    pub user: StoredName,
    pub user_id: UserId,
    pub attributes: TokenAttributes,
    pub revoked: Option<Timestamp>,
    /// The day of its last use: its start, or the time of creation if that is later.
    pub last_used: Option<Timestamp>,
    /// True if another user shares their plants with this user.
    pub shared_with: bool,
}

impl StoredToken {
    pub fn state(&self, now: Timestamp) -> TokenState {
        match self.revoked {
            Some(_) => TokenState::Revoked,
            None if self.attributes.is_expired(now) => TokenState::Expired,
            None => TokenState::Active,
        }
    }

    pub(crate) fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        let time = |column| Ok(row.field::<Option<i64>>(column)?.map(timestamp));
        let created = timestamp(row.field(5)?);
        // The store has the start of the day, which may be before the creation.
        let last_used = time(8)?.map(|day| day.max(created));
        Ok(Self {
            id: TokenId::new(row.field(0)?),
            user_id: UserId::new(row.field(1)?),
            user: StoredName::read(row, 2)?,
            attributes: TokenAttributes {
                label: TokenLabel::from_stored(&row.lossy_text(3)?),
                scopes: Scopes::from_names(&row.field::<String>(4)?),
                creator: creator(row, 10)?,
                created,
                expires: time(6)?,
            },
            revoked: time(7)?,
            last_used,
            shared_with: row.field(9)?,
        })
    }
}

/// A user, with the numbers of their tokens and plants.
#[derive(Clone, Debug, Serialize)]
pub struct StoredUser {
    pub name: StoredName,
    /// Tokens that are not revoked.
    pub tokens: u64,
    pub plants: u64,
    /// Time of the first token, or of the first request with an issuer's token.
    pub created: Timestamp,
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

/// Access of a user to the plants of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionAccess {
    pub owner: UserName,
    pub owner_id: UserId,
    /// Role of the user.
    pub role: Role,
}

impl CollectionAccess {
    pub(crate) fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        let owner = UserName::parse(&row.field::<String>(0)?).map_err(|fault| R::invalid(0, fault.to_string()))?;
        Ok(Self { owner, owner_id: UserId::new(row.field(1)?), role: role(row, 2)? })
    }
}

/// A share, with the names of both users.
#[derive(Clone, Debug, Serialize)]
pub struct StoredShare {
    pub owner: StoredName,
    #[serde(rename = "to")]
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
    /// [`SHARES_RECEIVED_MAX`](crate::SHARES_RECEIVED_MAX) owners already share with the grantee.
    TooMany,
}

/// A share as its owner sees it.
#[derive(Clone, Debug)]
pub struct GrantedShare {
    pub grantee: StoredName,
    pub role: Role,
    pub created: Timestamp,
}

impl GrantedShare {
    pub(crate) fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        Ok(Self { grantee: StoredName::read(row, 0)?, role: role(row, 1)?, created: timestamp(row.field(2)?) })
    }
}

/// Result of a user's own request for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateTokenOutcome {
    Created(TokenId),
    /// The user has [`TOKENS_MAX`](crate::TOKENS_MAX) active tokens.
    TooMany,
    /// The user was deleted meanwhile, or the requesting token is not active any more.
    NotActive,
}

/// Result of an owner's own grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantByNameOutcome {
    Granted,
    /// The owner shares with [`SHARES_GRANTED_MAX`](crate::SHARES_GRANTED_MAX) other users.
    TooManyGranted,
    /// [`SHARES_RECEIVED_MAX`](crate::SHARES_RECEIVED_MAX) other owners share with this name.
    TooManyReceived,
    /// The owner was deleted meanwhile.
    NoOwner,
}

fn role<R: RowSource>(row: &R, column: usize) -> Result<Role, R::Error> {
    let name: String = row.field(column)?;
    Role::from_name(&name).ok_or_else(|| R::invalid(column, format!("unknown role {name}")))
}

fn creator<R: RowSource>(row: &R, column: usize) -> Result<TokenCreator, R::Error> {
    let text: String = row.field(column)?;
    TokenCreator::parse(&text).ok_or_else(|| R::invalid(column, format!("unknown creator {text}")))
}

/// Converts stored seconds to a time, limited to the range of [`Timestamp`].
fn timestamp(seconds: i64) -> Timestamp {
    let nearest = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_second(seconds).unwrap_or(nearest)
}
