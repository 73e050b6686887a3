//! Users and tokens, as operators manage them.

use jiff::Timestamp;
use rusqlite::{OptionalExtension, params};

use super::engine::Sqlite;
use super::rows::find_user;
use crate::accounts::{StoredToken, StoredUser};
use crate::error::StoreError;
use plantstore_model::token::{TokenAttributes, TokenHash, TokenId};
use plantstore_model::user::{UserId, UserName};

#[expect(clippy::unused_async, reason = "the methods of both engines are asynchronous; this one never waits")]
impl Sqlite {
    pub(crate) async fn find_token(&self, hash: &TokenHash) -> Result<Option<StoredToken>, StoreError> {
        const FIND: &str = "
            SELECT token_id, users.user_id, users.name, label, scopes, tokens.created_at, expires_at, revoked_at,
              last_used_at, EXISTS (SELECT 1 FROM shares WHERE grantee_id = users.user_id)
                OR EXISTS (SELECT 1 FROM shares_by_name WHERE grantee_name = users.name), created_by
            FROM tokens JOIN users USING (user_id) WHERE hash = ?1";
        self.read(|connection| {
            connection
                .prepare_cached(FIND)?
                .query_row([hash.as_bytes().as_slice()], |row| StoredToken::read(row))
                .optional()
        })
    }

    pub(crate) async fn create_token(
        &self,
        user: &UserName,
        hash: &TokenHash,
        attributes: &TokenAttributes,
    ) -> Result<TokenId, StoreError> {
        self.change(|connection| {
            connection.execute(
                "INSERT INTO users (name, created_at) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING",
                params![user.as_str(), attributes.created.as_second()],
            )?;
            connection.execute(
                "INSERT INTO tokens (hash, user_id, label, scopes, created_by, created_at, expires_at)
                 SELECT ?1, user_id, ?2, ?3, ?4, ?5, ?6 FROM users WHERE name = ?7",
                params![
                    hash.as_bytes().as_slice(),
                    attributes.label.as_str(),
                    attributes.scopes.to_string(),
                    attributes.creator.to_string(),
                    attributes.created.as_second(),
                    attributes.expires.map(Timestamp::as_second),
                    user.as_str()
                ],
            )?;
            Ok(TokenId::new(connection.last_insert_rowid()))
        })
    }

    pub(crate) async fn tokens(&self, user: Option<&UserName>) -> Result<Vec<StoredToken>, StoreError> {
        const ALL: &str = "
            SELECT token_id, users.user_id, users.name, label, scopes, tokens.created_at, expires_at, revoked_at,
              last_used_at, EXISTS (SELECT 1 FROM shares WHERE grantee_id = users.user_id)
                OR EXISTS (SELECT 1 FROM shares_by_name WHERE grantee_name = users.name), created_by
            FROM tokens JOIN users USING (user_id) WHERE ?1 IS NULL OR users.name = ?1 ORDER BY token_id";
        self.read(|connection| {
            let mut statement = connection.prepare_cached(ALL)?;
            statement.query_map([user.map(UserName::as_str)], |row| StoredToken::read(row))?.collect()
        })
    }

    pub(crate) async fn revoke_token(&self, token: TokenId, now: Timestamp) -> Result<bool, StoreError> {
        self.change(|connection| {
            let revoked = connection.execute(
                "UPDATE tokens SET revoked_at = coalesce(revoked_at, ?2) WHERE token_id = ?1",
                [token.get(), now.as_second()],
            )?;
            Ok(revoked == 1)
        })
    }

    pub(crate) async fn find_user(&self, name: &UserName) -> Result<Option<UserId>, StoreError> {
        self.read(|connection| find_user(connection, name))
    }

    pub(crate) async fn users(&self, name: Option<&UserName>) -> Result<Vec<StoredUser>, StoreError> {
        const ALL: &str = "
            SELECT name, created_at,
              (SELECT count(*) FROM tokens WHERE tokens.user_id = users.user_id AND revoked_at IS NULL),
              (SELECT count(*) FROM plants WHERE plants.user_id = users.user_id)
            FROM users WHERE ?1 IS NULL OR name = ?1 ORDER BY name";
        self.read(|connection| {
            let mut statement = connection.prepare_cached(ALL)?;
            statement.query_map([name.map(UserName::as_str)], |row| StoredUser::read(row))?.collect()
        })
    }

    pub(crate) async fn is_unused(&self) -> Result<bool, StoreError> {
        // SQLite stores the highest assigned id here.
        const UNUSED: &str = "SELECT NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'users')";
        self.read(|connection| connection.query_row(UNUSED, [], |row| row.get(0)))
    }

    pub(crate) async fn delete_user(&self, name: &UserName) -> Result<bool, StoreError> {
        self.change(|connection| {
            connection.execute(
                "INSERT INTO departed_users (user_id) SELECT user_id FROM users WHERE name = ?1",
                [name.as_str()],
            )?;
            connection.execute("DELETE FROM shares_by_name WHERE grantee_name = ?1", [name.as_str()])?;
            // Tokens and other shares are deleted by their foreign keys.
            let deleted = connection.execute("DELETE FROM users WHERE name = ?1", [name.as_str()])?;
            Ok(deleted == 1)
        })
    }
}
