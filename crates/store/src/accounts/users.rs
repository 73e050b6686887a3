//! Users.

use std::collections::HashMap;
use std::fmt;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde::Serialize;

use crate::database::Transaction;
use crate::error::StoreError;
use crate::sql::{FromRow, Origin, RowSource, Subject, TransactionError};
use crate::store::{Database, Store};
use plantstore_model::text::Escaped;
use plantstore_model::user::{UserId, UserName};

/// A stored user name. A name that another program wrote may be invalid; it is shown, so that an operator can correct it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StoredName {
    Valid(UserName),
    Invalid(String),
}

impl StoredName {
    pub(super) fn read<R: RowSource>(row: &R, column: usize) -> Result<Self, R::Error> {
        let text = row.lossy_text(column)?;
        Ok(UserName::parse(&text).map_or_else(|_| Self::Invalid(text.into_owned()), Self::Valid))
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Valid(name) => name.as_str(),
            Self::Invalid(text) => text,
        }
    }

    pub fn into_valid(self) -> Result<UserName, StoreError> {
        match self {
            Self::Valid(name) => Ok(name),
            Self::Invalid(text) => Err(StoreError::Internal(format!("`{}` is no user name", Escaped(&text)))),
        }
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

#[derive(Clone, Debug, Serialize)]
pub struct StoredUser {
    pub name: StoredName,
    /// Tokens that are not revoked.
    pub tokens: u64,
    pub plants: u64,
    /// Time of the first token, or of the first request with an issuer's token.
    pub created: Timestamp,
    #[serde(skip)]
    id: i64,
}

/// The plants are counted separately.
impl FromRow for StoredUser {
    fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        Ok(Self {
            name: StoredName::read(row, 0)?,
            created: timestamp(row.field(1)?),
            tokens: row.field::<i64>(2)?.unsigned_abs(),
            plants: 0,
            id: row.field(3)?,
        })
    }
}

struct PlantCount {
    user: i64,
    plants: u64,
}

impl FromRow for PlantCount {
    fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        Ok(Self { user: row.field(0)?, plants: row.field::<i64>(1)?.unsigned_abs() })
    }
}

impl Store {
    /// Returns the id of the user of this name. Creates a user without tokens and plants if there is none. Concurrent calls on
    /// several nodes create one user, and a call can always be repeated. [`StoreError::NewUserName`] if there is no such user
    /// and the name is not allowed for new users.
    pub async fn ensure_user(&self, name: &UserName) -> Result<UserId, StoreError> {
        if let Some(user) = self.find_user(name).await? {
            return Ok(user);
        }
        name.check_new().map_err(StoreError::NewUserName)?;
        self.queue().create_user(name.clone(), Timestamp::now()).await
    }

    pub(crate) async fn find_user(&self, name: &UserName) -> Result<Option<UserId>, StoreError> {
        let found = self.read(FIND_ID, &[&name.as_str()]).await?;
        Ok(found.into_iter().next().map(UserId::new))
    }

    /// Returns all users, or the one of this name, in the order of their names.
    pub async fn users(&self, name: Option<&UserName>) -> Result<Vec<StoredUser>, StoreError> {
        const ALL: &str = "
            SELECT name, created_at,
              (SELECT count(*) FROM tokens WHERE tokens.user_id = users.user_id AND revoked_at IS NULL), user_id
            FROM users WHERE CAST($1 AS text) IS NULL OR name = $1";
        // Separately, because plants and users may be on different servers.
        const PLANTS: &str = "SELECT user_id, count(*) FROM plants GROUP BY user_id";
        const PLANTS_OF: &str = "SELECT user_id, count(*) FROM plants WHERE user_id = $1 GROUP BY user_id";
        let mut users: Vec<StoredUser> = self.read(ALL, &[&name.map(UserName::as_str)]).await?;
        let counts: Vec<PlantCount> = match (&*users, name) {
            ([], _) => Vec::new(),
            ([user], Some(_)) => self.read(PLANTS_OF, &[&user.id]).await?,
            _ => self.read(PLANTS, &[]).await?,
        };
        let counts: HashMap<i64, u64> = counts.into_iter().map(|count| (count.user, count.plants)).collect();
        users.sort_by(|one, other| one.name.as_str().cmp(other.name.as_str()));
        for user in &mut users {
            user.plants = counts.get(&user.id).copied().unwrap_or(0);
        }
        Ok(users)
    }

    /// Returns true if the store never had a user. With PostgreSQL, users who were deleted and swept do not count.
    pub async fn is_unused(&self) -> Result<bool, StoreError> {
        let unused = match self.database {
            // SQLite stores the highest assigned id here.
            Database::Sqlite(_) => "SELECT NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'users')",
            Database::Postgres(_) => {
                "SELECT NOT EXISTS (SELECT 1 FROM users) AND NOT EXISTS (SELECT 1 FROM departed_users)"
            }
        };
        Ok(self.read(unused, &[]).await?.contains(&true))
    }

    /// Deletes a user with their tokens and shares in one transaction; false if there is none of this name. What others share with the
    /// name are offers from then on. The user's plants are inaccessible, and [`Store::sweep_deleted_users`] removes them.
    pub fn delete_user<'a>(&'a self, name: &'a UserName) -> BoxFuture<'a, Result<bool, StoreError>> {
        const RECORD: &str = "
            INSERT INTO departed_users (user_id, departed_at) VALUES ($1, $2) ON CONFLICT (user_id) DO NOTHING";
        const DELETE_COLLECTION: &str = "DELETE FROM collections WHERE user_id = $1";
        const OFFER_AGAIN: &str = "UPDATE shares_by_name SET declined_at = NULL WHERE grantee_name = $1";
        // Foreign keys delete tokens and shares, and end acceptances.
        const DELETE: &str = "DELETE FROM users WHERE user_id = $1";
        self.transaction(Origin::Operator, move |transaction| async move {
            transaction.lock(Subject::Name(name)).await?;
            let Some(user) = transaction.find_user(name).await? else { return Ok(false) };
            transaction.lock(Subject::User(user)).await?;
            let now = transaction.now().await?;
            transaction.execute(RECORD, &[&user.get(), &now]).await?;
            if transaction.has_collections() {
                transaction.execute(DELETE_COLLECTION, &[&user.get()]).await?;
            }
            transaction.execute(OFFER_AGAIN, &[&name.as_str()]).await?;
            transaction.execute(DELETE, &[&user.get()]).await?;
            Ok(true)
        })
    }
}

const FIND_ID: &str = "SELECT user_id FROM users WHERE name = $1";

impl Transaction {
    pub(super) async fn find_user(&self, name: &UserName) -> Result<Option<UserId>, TransactionError> {
        Ok(self.find(FIND_ID, &[&name.as_str()]).await?.map(UserId::new))
    }

    pub(super) async fn has_user(&self, user: UserId) -> Result<bool, TransactionError> {
        let found: Option<i64> = self.find("SELECT user_id FROM users WHERE user_id = $1", &[&user.get()]).await?;
        Ok(found.is_some())
    }

    /// Returns the user of this name, who is created if there is none.
    pub(super) async fn ensure_user(&self, name: &UserName, now: Timestamp) -> Result<UserId, TransactionError> {
        const CREATE: &str = "INSERT INTO users (name, created_at) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
        const CREATE_COLLECTION: &str = "
            INSERT INTO collections (user_id) VALUES ($1) ON CONFLICT (user_id) DO NOTHING";
        self.lock(Subject::Name(name)).await?;
        self.execute(CREATE, &[&name.as_str(), &now.as_second()]).await?;
        let user = self.find_user(name).await?;
        let user =
            user.ok_or_else(|| TransactionError::Failed(StoreError::Internal("the new user is missing".to_owned())))?;
        if self.has_collections() {
            self.execute(CREATE_COLLECTION, &[&user.get()]).await?;
        }
        Ok(user)
    }
}

/// Converts stored seconds to a time, limited to the range of [`Timestamp`].
pub(super) fn timestamp(seconds: i64) -> Timestamp {
    let nearest = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_second(seconds).unwrap_or(nearest)
}
