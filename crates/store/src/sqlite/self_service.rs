//! Changes that users make themselves: their tokens and shares. The write lock serializes them, so that limits hold.

use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::engine::Sqlite;
use super::shares::{count_received, delete_by_name};
use crate::accounts::{CreateTokenOutcome, GrantByNameOutcome, GrantedShare, StoredToken};
use crate::error::StoreError;
use crate::limits::{INACTIVE_TOKENS_MAX, SHARES_GRANTED_MAX, SHARES_RECEIVED_MAX, TOKENS_MAX};
use plantstore_model::token::{TokenAttributes, TokenCreator, TokenHash, TokenId};
use plantstore_model::user::{Role, UserId, UserName};

#[expect(clippy::unused_async, reason = "the methods of both engines are asynchronous; reads never wait")]
impl Sqlite {
    pub(crate) async fn create_own_token(
        &self,
        user: UserId,
        hash: &TokenHash,
        attributes: &TokenAttributes,
    ) -> Result<CreateTokenOutcome, StoreError> {
        const CREATE: &str = "
            INSERT INTO tokens (hash, user_id, label, scopes, created_by, created_at, expires_at)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        const DELETE_OLD: &str = "
            DELETE FROM tokens WHERE user_id = ?1 AND (revoked_at IS NOT NULL OR expires_at <= ?2) AND token_id NOT IN (
              SELECT token_id FROM tokens WHERE user_id = ?1 AND (revoked_at IS NOT NULL OR expires_at <= ?2)
              ORDER BY min(coalesce(revoked_at, expires_at), coalesce(expires_at, revoked_at)) DESC, token_id DESC LIMIT ?3)";
        let now = attributes.created.as_second();
        self.change_in_turn(|connection| {
            if !exists(connection, user)? || !is_active(connection, user, attributes.creator, now)? {
                return Ok(CreateTokenOutcome::NotActive);
            }
            if count_active(connection, user, now)? >= TOKENS_MAX {
                return Ok(CreateTokenOutcome::TooMany);
            }
            connection.execute(
                CREATE,
                params![
                    hash.as_bytes().as_slice(),
                    user.get(),
                    attributes.label.as_str(),
                    attributes.scopes.to_string(),
                    attributes.creator.to_string(),
                    now,
                    attributes.expires.map(Timestamp::as_second),
                ],
            )?;
            let id = TokenId::new(connection.last_insert_rowid());
            connection.execute(DELETE_OLD, params![user.get(), now, INACTIVE_TOKENS_MAX])?;
            Ok(CreateTokenOutcome::Created(id))
        })
        .await
    }

    pub(crate) async fn own_tokens(&self, user: UserId) -> Result<Vec<StoredToken>, StoreError> {
        const FIND: &str = "
            SELECT token_id, users.user_id, users.name, label, scopes, tokens.created_at, expires_at, revoked_at,
              last_used_at, false, created_by
            FROM tokens JOIN users USING (user_id) WHERE user_id = ?1 ORDER BY token_id";
        self.read(|connection| {
            let mut statement = connection.prepare_cached(FIND)?;
            statement.query_map([user.get()], |row| StoredToken::read(row))?.collect()
        })
    }

    pub(crate) async fn revoke_own_token(
        &self,
        user: UserId,
        token: TokenId,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        const REVOKE: &str =
            "UPDATE tokens SET revoked_at = ?3 WHERE token_id = ?2 AND user_id = ?1 AND revoked_at IS NULL";
        self.change_in_turn(|connection| {
            Ok(connection.execute(REVOKE, [user.get(), token.get(), now.as_second()])? == 1)
        })
        .await
    }

    pub(crate) async fn grant_own_share(
        &self,
        owner: UserId,
        to: &UserName,
        role: Role,
        now: Timestamp,
    ) -> Result<GrantByNameOutcome, StoreError> {
        // A share that the operator has granted keeps its `created_at`.
        const GRANT: &str = "
            INSERT INTO shares_by_name (grantee_name, owner_id, role, created_at)
            VALUES (?2, ?1, ?3, coalesce((
              SELECT shares.created_at FROM shares JOIN users ON user_id = grantee_id
              WHERE owner_id = ?1 AND name = ?2), ?4))
            ON CONFLICT (grantee_name, owner_id) DO UPDATE SET role = excluded.role";
        self.change_in_turn(|connection| {
            if !exists(connection, owner)? {
                return Ok(GrantByNameOutcome::NoOwner);
            }
            // A change of a role adds no share.
            if !is_shared(connection, owner, to)? {
                if count_granted(connection, owner)? >= SHARES_GRANTED_MAX {
                    return Ok(GrantByNameOutcome::TooManyGranted);
                }
                if count_received(connection, owner.get(), to)? >= SHARES_RECEIVED_MAX {
                    return Ok(GrantByNameOutcome::TooManyReceived);
                }
            }
            connection.execute(GRANT, params![owner.get(), to.as_str(), role.name(), now.as_second()])?;
            delete_by_id(connection, owner, to)?;
            Ok(GrantByNameOutcome::Granted)
        })
        .await
    }

    pub(crate) async fn granted_shares(&self, owner: UserId) -> Result<Vec<GrantedShare>, StoreError> {
        const FIND: &str = "
            SELECT grantee_name, role, created_at FROM (
              SELECT grantee_name, role, created_at FROM shares_by_name WHERE owner_id = ?1
              UNION ALL
              SELECT name, role, shares.created_at FROM shares JOIN users ON user_id = grantee_id
              WHERE owner_id = ?1 AND name NOT IN (SELECT grantee_name FROM shares_by_name WHERE owner_id = ?1)) AS granted
            ORDER BY grantee_name";
        self.read(|connection| {
            let mut statement = connection.prepare_cached(FIND)?;
            statement.query_map([owner.get()], |row| GrantedShare::read(row))?.collect()
        })
    }

    pub(crate) async fn revoke_own_share(&self, owner: UserId, to: &UserName) -> Result<bool, StoreError> {
        self.change_in_turn(|connection| {
            Ok(delete_by_name(connection, owner.get(), to)? + delete_by_id(connection, owner, to)? > 0)
        })
        .await
    }
}

fn exists(connection: &Connection, user: UserId) -> rusqlite::Result<bool> {
    connection.prepare("SELECT 1 FROM users WHERE user_id = ?1")?.exists([user.get()])
}

/// Checks that the token that another one is created with is neither revoked nor expired.
fn is_active(connection: &Connection, user: UserId, creator: TokenCreator, now: i64) -> rusqlite::Result<bool> {
    const ACTIVE: &str = "
        SELECT 1 FROM tokens
        WHERE token_id = ?2 AND user_id = ?1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?3)";
    match creator {
        TokenCreator::Token(token) => connection.prepare(ACTIVE)?.exists([user.get(), token.get(), now]),
        TokenCreator::Operator | TokenCreator::Issuer => Ok(true),
    }
}

fn count_active(connection: &Connection, user: UserId, now: i64) -> rusqlite::Result<u32> {
    const COUNT: &str = "
        SELECT count(*) FROM tokens
        WHERE user_id = ?1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?2)";
    connection.query_row(COUNT, [user.get(), now], |row| row.get(0))
}

fn is_shared(connection: &Connection, owner: UserId, to: &UserName) -> rusqlite::Result<bool> {
    const FIND: &str = "
        SELECT 1 FROM shares_by_name WHERE owner_id = ?1 AND grantee_name = ?2
        UNION ALL SELECT 1 FROM shares JOIN users ON user_id = grantee_id WHERE owner_id = ?1 AND name = ?2";
    connection.prepare(FIND)?.exists(params![owner.get(), to.as_str()])
}

/// Counts the names that an owner shares with.
fn count_granted(connection: &Connection, owner: UserId) -> rusqlite::Result<u32> {
    const COUNT: &str = "
        SELECT (SELECT count(*) FROM shares_by_name WHERE owner_id = ?1) + (SELECT count(*) FROM shares WHERE owner_id = ?1)";
    connection.query_row(COUNT, [owner.get()], |row| row.get(0))
}

/// Deletes the share that the operator has granted, and returns the number of deleted rows.
fn delete_by_id(connection: &Connection, owner: UserId, to: &UserName) -> rusqlite::Result<usize> {
    const DELETE: &str = "
        DELETE FROM shares WHERE owner_id = ?1 AND grantee_id = (SELECT user_id FROM users WHERE name = ?2)";
    connection.execute(DELETE, params![owner.get(), to.as_str()])
}
