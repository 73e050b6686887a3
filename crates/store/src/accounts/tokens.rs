//! Access tokens.

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::users::{StoredName, timestamp};
use crate::database::Transaction;
use crate::error::StoreError;
use crate::sql::{FromRow, Origin, Parameter, RowSource, Subject, TransactionError};
use crate::store::Store;
use plantstore_model::token::{Scopes, TokenAttributes, TokenCreator, TokenHash, TokenId, TokenLabel, TokenState};
use plantstore_model::user::{UserId, UserName};

/// Maximum number of active tokens of a user who creates one.
pub const TOKENS_MAX: u32 = 100;
/// Maximum number of revoked and expired tokens of a user that are stored when the user creates another one.
const INACTIVE_TOKENS_MAX: i64 = 100;

/// A token, which may be revoked or expired.
#[derive(Clone, Debug, Serialize)]
pub struct StoredToken {
    pub id: TokenId,
    pub user: StoredName,
    #[serde(skip)]
    pub user_id: UserId,
    #[serde(flatten)]
    pub attributes: TokenAttributes,
    pub revoked: Option<Timestamp>,
    /// The day of its last use: its start, or the time of creation if that is later.
    #[serde(serialize_with = "day")]
    pub last_used: Option<Timestamp>,
    /// True if another user shares their plants with this user.
    #[serde(skip)]
    pub shared_with: bool,
}

#[expect(clippy::ref_option, reason = "serde calls it so")]
fn day<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.strftime("%Y-%m-%d").to_string()).serialize(serializer)
}

impl StoredToken {
    pub fn state(&self, now: Timestamp) -> TokenState {
        match self.revoked {
            Some(_) => TokenState::Revoked,
            None if self.attributes.expires.is_some_and(|expires| expires <= now) => TokenState::Expired,
            None => TokenState::Active,
        }
    }
}

impl FromRow for StoredToken {
    fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        let time = |column| Ok(row.field::<Option<i64>>(column)?.map(timestamp));
        let created = timestamp(row.field(5)?);
        let creator: String = row.field(10)?;
        // The store has the start of the day, which may be before the creation.
        let last_used = time(8)?.map(|day| day.max(created));
        Ok(Self {
            id: TokenId::new(row.field(0)?),
            user_id: UserId::new(row.field(1)?),
            user: StoredName::read(row, 2)?,
            attributes: TokenAttributes {
                label: TokenLabel::from_stored(&row.lossy_text(3)?),
                scopes: Scopes::from_names(&row.field::<String>(4)?),
                creator: TokenCreator::parse(&creator)
                    .ok_or_else(|| R::invalid(10, format!("unknown creator {creator}")))?,
                created,
                expires: time(6)?,
            },
            revoked: time(7)?,
            last_used,
            shared_with: row.field(9)?,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateTokenOutcome {
    Created(TokenId),
    /// The user has [`TOKENS_MAX`] active tokens.
    TooMany,
    /// The user was deleted meanwhile, or the requesting token is not active any more.
    NotActive,
}

macro_rules! select_tokens {
    ($($rest:literal)?) => {
        concat!(
            "SELECT token_id, users.user_id, users.name, label, scopes, tokens.created_at, expires_at, revoked_at, last_used_at,
               EXISTS (SELECT 1 FROM shares_by_name WHERE grantee_id = users.user_id), created_by
             FROM tokens JOIN users ON users.user_id = tokens.user_id ",
            $($rest)?
        )
    };
}

impl Store {
    pub async fn find_token(&self, hash: &TokenHash) -> Result<Option<StoredToken>, StoreError> {
        let found = self.read(select_tokens!("WHERE hash = $1"), &[&hash.as_bytes().as_slice()]).await?;
        Ok(found.into_iter().next())
    }

    /// Records in the background that the token was used on `day`. The record may be lost.
    pub fn record_token_use(&self, token: TokenId, day: Timestamp) {
        self.queue().record_token_use(token, day);
    }

    /// Returns all tokens, or those of one user, in ascending order of id.
    pub async fn tokens(&self, user: Option<&UserName>) -> Result<Vec<StoredToken>, StoreError> {
        const ALL: &str = select_tokens!("WHERE CAST($1 AS text) IS NULL OR users.name = $1 ORDER BY token_id");
        self.read(ALL, &[&user.map(UserName::as_str)]).await
    }

    /// Returns the tokens of a user in ascending order of id.
    pub async fn own_tokens(&self, user: UserId) -> Result<Vec<StoredToken>, StoreError> {
        self.read(select_tokens!("WHERE tokens.user_id = $1 ORDER BY token_id"), &[&user.get()]).await
    }

    /// Creates a token, and its user if there is none; [`StoreError::NewUserName`] if that name is not allowed.
    pub async fn create_token(
        &self,
        user: &UserName,
        hash: &TokenHash,
        attributes: &TokenAttributes,
    ) -> Result<TokenId, StoreError> {
        if let Err(fault) = user.check_new()
            && self.find_user(user).await?.is_none()
        {
            return Err(StoreError::NewUserName(fault));
        }
        self.transaction(Origin::Operator, move |transaction| async move {
            let user = transaction.ensure_user(user, attributes.created).await?;
            transaction.create_token(user, hash, attributes).await
        })
        .await
    }

    /// Creates a token that its user requests with another one. The limit on active tokens holds for concurrent requests on all
    /// nodes, and no token is created with one that is revoked or expired. Removes the oldest tokens that are not active
    /// beyond a limit.
    pub fn create_own_token<'a>(
        &'a self,
        user: UserId,
        hash: &'a TokenHash,
        attributes: &'a TokenAttributes,
    ) -> BoxFuture<'a, Result<CreateTokenOutcome, StoreError>> {
        const COUNT: &str = "
            SELECT count(*) FROM tokens
            WHERE user_id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)";
        // In the order in which the tokens became inactive.
        const DELETE_OLD: &str = "
            DELETE FROM tokens WHERE user_id = $1 AND (revoked_at IS NOT NULL OR expires_at <= $2) AND token_id NOT IN (
              SELECT token_id FROM tokens WHERE user_id = $1 AND (revoked_at IS NOT NULL OR expires_at <= $2)
              ORDER BY CASE WHEN revoked_at IS NULL OR expires_at < revoked_at THEN expires_at ELSE revoked_at END DESC,
                token_id DESC
              LIMIT $3)";
        let now = attributes.created.as_second();
        self.transaction(Origin::Request, move |transaction| async move {
            transaction.lock(Subject::User(user)).await?;
            if !transaction.has_user(user).await? || !transaction.is_active(user, attributes.creator, now).await? {
                return Ok(CreateTokenOutcome::NotActive);
            }
            if transaction.count(COUNT, &[&user.get(), &now]).await? >= TOKENS_MAX {
                return Ok(CreateTokenOutcome::TooMany);
            }
            let id = transaction.create_token(user, hash, attributes).await?;
            transaction.execute(DELETE_OLD, &[&user.get(), &now, &INACTIVE_TOKENS_MAX]).await?;
            Ok(CreateTokenOutcome::Created(id))
        })
    }

    /// Revokes a token permanently; false if there is none of this id. A revoked token keeps its time of revocation.
    pub fn revoke_token(&self, token: TokenId, now: Timestamp) -> BoxFuture<'_, Result<bool, StoreError>> {
        const REVOKE: &str = "UPDATE tokens SET revoked_at = coalesce(revoked_at, $2) WHERE token_id = $1";
        self.transaction(Origin::Operator, move |transaction| async move {
            let user = transaction.find("SELECT user_id FROM tokens WHERE token_id = $1", &[&token.get()]).await?;
            let Some(user) = user.map(UserId::new) else { return Ok(false) };
            transaction.lock(Subject::User(user)).await?;
            transaction.move_version(user).await?;
            Ok(transaction.execute(REVOKE, &[&token.get(), &now.as_second()]).await? == 1)
        })
    }

    /// Revokes a token of this user permanently; false if the user has none of this id, or it is revoked already.
    pub fn revoke_own_token(
        &self,
        user: UserId,
        token: TokenId,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        const REVOKE: &str =
            "UPDATE tokens SET revoked_at = $3 WHERE token_id = $2 AND user_id = $1 AND revoked_at IS NULL";
        self.transaction(Origin::Request, move |transaction| async move {
            transaction.lock(Subject::User(user)).await?;
            transaction.move_version(user).await?;
            Ok(transaction.execute(REVOKE, &[&user.get(), &token.get(), &now.as_second()]).await? == 1)
        })
    }
}

impl Transaction {
    async fn create_token(
        &self,
        user: UserId,
        hash: &TokenHash,
        attributes: &TokenAttributes,
    ) -> Result<TokenId, TransactionError> {
        const CREATE: &str = "
            INSERT INTO tokens (hash, user_id, label, scopes, created_by, created_at, expires_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING token_id";
        let values: [&dyn Parameter; 7] = [
            &hash.as_bytes().as_slice(),
            &user.get(),
            &attributes.label.as_str(),
            &attributes.scopes.to_string(),
            &attributes.creator.to_string(),
            &attributes.created.as_second(),
            &attributes.expires.map(Timestamp::as_second),
        ];
        Ok(TokenId::new(self.find(CREATE, &values).await?.unwrap_or_default()))
    }

    /// Checks that the token that another one is created with is neither revoked nor expired.
    async fn is_active(&self, user: UserId, creator: TokenCreator, now: i64) -> Result<bool, TransactionError> {
        const ACTIVE: &str = "
            SELECT token_id FROM tokens
            WHERE token_id = $2 AND user_id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $3)";
        let TokenCreator::Token(token) = creator else { return Ok(true) };
        let found: Option<i64> = self.find(ACTIVE, &[&user.get(), &token.get(), &now]).await?;
        Ok(found.is_some())
    }
}
