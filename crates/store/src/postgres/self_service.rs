//! Changes that users make themselves: their tokens and shares. Advisory locks serialize the changes of one user, and the grants
//! to one name, so that limits hold among all nodes.

use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error};

use super::engine::Postgres;
use super::shares::{count_received, delete_by_name, lock, lock_name};
use crate::accounts::{CreateTokenOutcome, GrantByNameOutcome, GrantedShare, StoredToken};
use crate::error::StoreError;
use crate::limits::{INACTIVE_TOKENS_MAX, SHARES_GRANTED_MAX, SHARES_RECEIVED_MAX, TOKENS_MAX};
use plantstore_model::token::{TokenAttributes, TokenCreator, TokenHash, TokenId};
use plantstore_model::user::{Role, UserId, UserName};

impl Postgres {
    pub(crate) async fn create_own_token(
        &self,
        user: UserId,
        hash: &TokenHash,
        attributes: &TokenAttributes,
    ) -> Result<CreateTokenOutcome, StoreError> {
        const CREATE: &str = "
            INSERT INTO plantstore.tokens (hash, user_id, label, scopes, created_by, created_at, expires_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING token_id";
        const DELETE_OLD: &str = "
            DELETE FROM plantstore.tokens
            WHERE user_id = $1 AND (revoked_at IS NOT NULL OR expires_at <= $2) AND token_id NOT IN (
              SELECT token_id FROM plantstore.tokens WHERE user_id = $1 AND (revoked_at IS NOT NULL OR expires_at <= $2)
              ORDER BY least(revoked_at, expires_at) DESC, token_id DESC LIMIT $3)";
        let (now, expires) = (attributes.created.as_second(), attributes.expires.map(Timestamp::as_second));
        let (user, hash, label) = (user.get(), hash.as_bytes().as_slice(), attributes.label.as_str());
        let (scopes, creator) = (&attributes.scopes.to_string(), &attributes.creator.to_string());
        self.run_request_transaction(|client| async move {
            let client = &*client;
            lock_user(client, user).await?;
            if !exists(client, user).await? || !is_active(client, user, attributes.creator, now).await? {
                return Ok(CreateTokenOutcome::NotActive);
            }
            if count_active(client, user, now).await? >= i64::from(TOKENS_MAX) {
                return Ok(CreateTokenOutcome::TooMany);
            }
            let values: [&(dyn ToSql + Sync); 7] = [&hash, &user, &label, scopes, creator, &now, &expires];
            let id = client.query_one(CREATE, &values).await?.try_get(0)?;
            client.execute(DELETE_OLD, &[&user, &now, &i64::from(INACTIVE_TOKENS_MAX)]).await?;
            Ok(CreateTokenOutcome::Created(TokenId::new(id)))
        })
        .await
    }

    pub(crate) async fn own_tokens(&self, user: UserId) -> Result<Vec<StoredToken>, StoreError> {
        let found = self.readers.rows(|session| &session.statements.own_tokens, [user.get()]).await?;
        found.iter().map(StoredToken::read).collect()
    }

    pub(crate) async fn revoke_own_token(
        &self,
        user: UserId,
        token: TokenId,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        const REVOKE: &str = "
            UPDATE plantstore.tokens SET revoked_at = $3 WHERE token_id = $2 AND user_id = $1 AND revoked_at IS NULL";
        let values: &[&(dyn ToSql + Sync)] = &[&user.get(), &token.get(), &now.as_second()];
        self.run_request_transaction(|client| async move { Ok(client.execute(REVOKE, values).await? == 1) }).await
    }

    pub(crate) async fn grant_own_share(
        &self,
        owner: UserId,
        to: &UserName,
        role: Role,
        now: Timestamp,
    ) -> Result<GrantByNameOutcome, StoreError> {
        // A share that the operator has granted keeps its `created_at`.
        const SINCE: &str = "
            SELECT shares.created_at FROM plantstore.shares JOIN plantstore.users ON users.user_id = grantee_id
            WHERE owner_id = $1 AND users.name = $2";
        const GRANT: &str = "
            INSERT INTO plantstore.shares_by_name (grantee_name, owner_id, role, created_at) VALUES ($1, $2, $3, $4)
            ON CONFLICT (grantee_name, owner_id) DO UPDATE SET role = excluded.role";
        let owner = owner.get();
        self.run_request_transaction(|client| async move {
            let client = &*client;
            lock_user(client, owner).await?;
            lock_name(client, to).await?;
            if !exists(client, owner).await? {
                return Ok(GrantByNameOutcome::NoOwner);
            }
            // A change of a role adds no share.
            if !is_shared(client, owner, to).await? {
                if count_granted(client, owner).await? >= i64::from(SHARES_GRANTED_MAX) {
                    return Ok(GrantByNameOutcome::TooManyGranted);
                }
                if count_received(client, owner, to).await? >= i64::from(SHARES_RECEIVED_MAX) {
                    return Ok(GrantByNameOutcome::TooManyReceived);
                }
            }
            let since =
                client.query_opt(SINCE, &[&owner, &to.as_str()]).await?.map(|row| row.try_get(0)).transpose()?;
            let since: i64 = since.unwrap_or(now.as_second());
            client.execute(GRANT, &[&to.as_str(), &owner, &role.name(), &since]).await?;
            delete_by_id(client, owner, to).await?;
            Ok(GrantByNameOutcome::Granted)
        })
        .await
    }

    pub(crate) async fn granted_shares(&self, owner: UserId) -> Result<Vec<GrantedShare>, StoreError> {
        let found = self.readers.rows(|session| &session.statements.granted_shares, [owner.get()]).await?;
        found.iter().map(GrantedShare::read).collect()
    }

    pub(crate) async fn revoke_own_share(&self, owner: UserId, to: &UserName) -> Result<bool, StoreError> {
        let owner = owner.get();
        self.run_request_transaction(|client| async move {
            let client = &*client;
            // A concurrent grant moves the share from one table to the other.
            lock_name(client, to).await?;
            Ok(delete_by_name(client, owner, to).await? + delete_by_id(client, owner, to).await? > 0)
        })
        .await
    }
}

/// Locks the tokens and shares of a user until the end of the transaction.
async fn lock_user(client: &Client, user: i64) -> Result<(), Error> {
    lock(client, "changes of", &user.to_be_bytes()).await
}

/// Checks that the user exists. The lock prevents that the user is deleted before the transaction ends.
async fn exists(client: &Client, user: i64) -> Result<bool, Error> {
    const FIND: &str = "SELECT 1 FROM plantstore.users WHERE user_id = $1 FOR KEY SHARE";
    Ok(client.query_opt(FIND, &[&user]).await?.is_some())
}

/// Checks that the token that another one is created with is neither revoked nor expired. The lock prevents that it is revoked
/// before the transaction ends.
async fn is_active(client: &Client, user: i64, creator: TokenCreator, now: i64) -> Result<bool, Error> {
    const ACTIVE: &str = "
        SELECT 1 FROM plantstore.tokens
        WHERE token_id = $2 AND user_id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $3)
        FOR SHARE";
    match creator {
        TokenCreator::Token(token) => Ok(client.query_opt(ACTIVE, &[&user, &token.get(), &now]).await?.is_some()),
        TokenCreator::Operator | TokenCreator::Issuer => Ok(true),
    }
}

async fn count_active(client: &Client, user: i64, now: i64) -> Result<i64, Error> {
    const COUNT: &str = "
        SELECT count(*) FROM plantstore.tokens
        WHERE user_id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)";
    client.query_one(COUNT, &[&user, &now]).await?.try_get(0)
}

async fn is_shared(client: &Client, owner: i64, to: &UserName) -> Result<bool, Error> {
    const FIND: &str = "
        SELECT 1 FROM plantstore.shares_by_name WHERE owner_id = $1 AND grantee_name = $2
        UNION ALL SELECT 1 FROM plantstore.shares JOIN plantstore.users ON users.user_id = grantee_id
          WHERE owner_id = $1 AND users.name = $2";
    Ok(!client.query(FIND, &[&owner, &to.as_str()]).await?.is_empty())
}

/// Counts the names that an owner shares with.
async fn count_granted(client: &Client, owner: i64) -> Result<i64, Error> {
    const COUNT: &str = "
        SELECT (SELECT count(*) FROM plantstore.shares_by_name WHERE owner_id = $1)
          + (SELECT count(*) FROM plantstore.shares WHERE owner_id = $1)";
    client.query_one(COUNT, &[&owner]).await?.try_get(0)
}

/// Deletes the share that the operator has granted, and returns the number of deleted rows.
async fn delete_by_id(client: &Client, owner: i64, to: &UserName) -> Result<u64, Error> {
    const DELETE: &str = "
        DELETE FROM plantstore.shares
        WHERE owner_id = $1 AND grantee_id = (SELECT user_id FROM plantstore.users WHERE name = $2)";
    client.execute(DELETE, &[&owner, &to.as_str()]).await
}
