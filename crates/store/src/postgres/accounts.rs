//! Users and tokens, as operators manage them.

use std::collections::HashMap;

use jiff::Timestamp;
use tokio_postgres::types::ToSql;

use super::engine::Postgres;
use super::rows::get;
use crate::accounts::{StoredToken, StoredUser};
use crate::error::StoreError;
use plantstore_model::token::{TokenAttributes, TokenHash, TokenId};
use plantstore_model::user::{UserId, UserName};

/// Attempts to create a token while its user is deleted concurrently.
const TOKEN_TRIES: usize = 3;

impl Postgres {
    pub(crate) async fn find_token(&self, hash: &TokenHash) -> Result<Option<StoredToken>, StoreError> {
        let hash = hash.as_bytes().to_vec();
        let found = self.readers.rows(|session| &session.statements.find_token, [hash]).await?;
        found.first().map(StoredToken::read).transpose()
    }

    pub(crate) async fn create_token(
        &self,
        user: &UserName,
        hash: &TokenHash,
        attributes: &TokenAttributes,
    ) -> Result<TokenId, StoreError> {
        const CREATE_USER: &str = "
            INSERT INTO plantstore.users (name, created_at) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
        const CREATE_COLLECTION: &str = "
            INSERT INTO plantstore.collections (user_id)
            SELECT user_id FROM plantstore.users WHERE name = $1 ON CONFLICT (user_id) DO NOTHING";
        const CREATE_TOKEN: &str = "
            INSERT INTO plantstore.tokens (hash, user_id, label, scopes, created_by, created_at, expires_at)
            SELECT $1, user_id, $2, $3, $4, $5, $6 FROM plantstore.users WHERE name = $7 RETURNING token_id";
        let (created, expires) = (attributes.created.as_second(), attributes.expires.map(Timestamp::as_second));
        let (hash, label) = (hash.as_bytes().as_slice(), attributes.label.as_str());
        let (scopes, creator) = (attributes.scopes.to_string(), attributes.creator.to_string());
        for _ in 0..TOKEN_TRIES {
            let creation = self.run_admin_transaction(async |client| {
                client.execute(CREATE_USER, &[&user.as_str(), &created]).await?;
                client.execute(CREATE_COLLECTION, &[&user.as_str()]).await?;
                let values: [&(dyn ToSql + Sync); 7] =
                    [&hash, &label, &scopes, &creator, &created, &expires, &user.as_str()];
                client.query_opt(CREATE_TOKEN, &values).await?.map(|row| row.try_get(0)).transpose()
            });
            // None if the user was deleted in between.
            if let Some(id) = creation.await? {
                return Ok(TokenId::new(id));
            }
        }
        Err(StoreError::Unavailable("the user is deleted concurrently".to_owned()))
    }

    pub(crate) async fn tokens(&self, user: Option<&UserName>) -> Result<Vec<StoredToken>, StoreError> {
        const ALL: &str = "
            SELECT token_id, users.user_id, users.name, label, scopes, tokens.created_at, expires_at, revoked_at,
              last_used_at, EXISTS (SELECT 1 FROM plantstore.shares WHERE grantee_id = users.user_id)
                OR EXISTS (SELECT 1 FROM plantstore.shares_by_name WHERE grantee_name = users.name), created_by
            FROM plantstore.tokens JOIN plantstore.users ON users.user_id = tokens.user_id
            WHERE $1::text IS NULL OR users.name = $1 ORDER BY token_id";
        let user = user.map(UserName::as_str);
        self.run_admin_transaction(async |client| client.query(ALL, &[&user]).await)
            .await?
            .iter()
            .map(StoredToken::read)
            .collect()
    }

    pub(crate) async fn revoke_token(&self, token: TokenId, now: Timestamp) -> Result<bool, StoreError> {
        const REVOKE: &str = "UPDATE plantstore.tokens SET revoked_at = coalesce(revoked_at, $2) WHERE token_id = $1";
        let revoked = self
            .run_admin_transaction(async |client| client.execute(REVOKE, &[&token.get(), &now.as_second()]).await)
            .await?;
        Ok(revoked == 1)
    }

    pub(crate) async fn find_user(&self, name: &UserName) -> Result<Option<UserId>, StoreError> {
        let found = self.readers.rows(|session| &session.statements.find_user, [name.as_str()]).await?;
        found.first().map(|row| get(row, 0).map(UserId::new)).transpose()
    }

    pub(crate) async fn users(&self, name: Option<&UserName>) -> Result<Vec<StoredUser>, StoreError> {
        const ALL: &str = "
            SELECT name, created_at,
              (SELECT count(*) FROM plantstore.tokens WHERE tokens.user_id = users.user_id AND revoked_at IS NULL),
              0::bigint, user_id
            FROM plantstore.users WHERE $1::text IS NULL OR name = $1 ORDER BY name COLLATE \"C\"";
        // Separately, because plants and users may be on different servers.
        const PLANTS: &str = "
            SELECT user_id, count(*) FROM plantstore.plants WHERE $1::bigint IS NULL OR user_id = $1 GROUP BY user_id";
        let name = name.map(UserName::as_str);
        let (users, counts) = self
            .run_admin_transaction(async |client| {
                let users = client.query(ALL, &[&name]).await?;
                let only = users.first().filter(|_| name.is_some()).map(|row| row.try_get::<_, i64>(4)).transpose()?;
                let counts = if users.is_empty() { Vec::new() } else { client.query(PLANTS, &[&only]).await? };
                Ok((users, counts))
            })
            .await?;
        let counts = counts.iter().map(|row| Ok((get(row, 0)?, get::<i64>(row, 1)?.unsigned_abs())));
        let counts = counts.collect::<Result<HashMap<i64, u64>, StoreError>>()?;
        let user = |row| {
            let plants = counts.get(&get(row, 4)?).copied().unwrap_or(0);
            Ok(StoredUser { plants, ..StoredUser::read(row)? })
        };
        users.iter().map(user).collect()
    }

    pub(crate) async fn is_unused(&self) -> Result<bool, StoreError> {
        const UNUSED: &str = "
            SELECT NOT EXISTS (SELECT 1 FROM plantstore.users) AND NOT EXISTS (SELECT 1 FROM plantstore.departed_users)";
        get(&self.run_admin_transaction(async |client| client.query_one(UNUSED, &[]).await).await?, 0)
    }

    pub(crate) async fn delete_user(&self, name: &UserName) -> Result<bool, StoreError> {
        const RECORD: &str = "
            INSERT INTO plantstore.departed_users (user_id) SELECT user_id FROM plantstore.users WHERE name = $1
            ON CONFLICT (user_id) DO NOTHING";
        const DELETE_COLLECTION: &str = "
            DELETE FROM plantstore.collections
            WHERE user_id = (SELECT user_id FROM plantstore.users WHERE name = $1)";
        const DELETE_SHARES: &str = "DELETE FROM plantstore.shares_by_name WHERE grantee_name = $1";
        // Tokens and other shares are deleted by their foreign keys.
        const DELETE: &str = "DELETE FROM plantstore.users WHERE name = $1";
        self.run_admin_transaction(async |client| {
            client.execute(RECORD, &[&name.as_str()]).await?;
            client.execute(DELETE_COLLECTION, &[&name.as_str()]).await?;
            client.execute(DELETE_SHARES, &[&name.as_str()]).await?;
            Ok(client.execute(DELETE, &[&name.as_str()]).await? == 1)
        })
        .await
    }
}
