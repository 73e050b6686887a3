//! Shares: access of users to the plants of others.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::engine::Sqlite;
use crate::accounts::{CollectionAccess, GrantOutcome, StoredShare};
use crate::error::StoreError;
use crate::limits::SHARES_RECEIVED_MAX;
use crate::version::next_version;
use plantstore_model::user::{Role, UserId, UserName};

#[expect(clippy::unused_async, reason = "the methods of both engines are asynchronous; this one never waits")]
impl Sqlite {
    pub(crate) async fn shared_with(&self, user: UserId) -> Result<Vec<CollectionAccess>, StoreError> {
        const FIND: &str = "
            WITH grantee AS (SELECT user_id, name FROM users WHERE user_id = ?1),
            by_name AS (
              SELECT owner_id, role FROM shares_by_name JOIN grantee ON grantee_name = name WHERE owner_id <> user_id)
            SELECT name, owner_id, role FROM (
              SELECT owner_id, role FROM by_name
              UNION ALL
              SELECT owner_id, role FROM shares
              WHERE grantee_id = ?1 AND owner_id NOT IN (SELECT owner_id FROM by_name)) AS received
            JOIN users ON users.user_id = owner_id ORDER BY name";
        self.read(|connection| {
            let mut statement = connection.prepare_cached(FIND)?;
            statement.query_map([user.get()], |row| CollectionAccess::read(row))?.collect()
        })
    }

    pub(crate) async fn grant_share(
        &self,
        owner: &UserName,
        to: &UserName,
        role: Role,
        now: Timestamp,
    ) -> Result<GrantOutcome, StoreError> {
        const GRANT: &str = "
            INSERT INTO shares (grantee_id, owner_id, role, created_at) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT (grantee_id, owner_id) DO UPDATE SET role = excluded.role";
        self.change(|connection| {
            let Some(grantee) = user_id(connection, to)? else {
                return Ok(GrantOutcome::NoGrantee);
            };
            let Some(owner) = user_id(connection, owner)? else {
                return Ok(GrantOutcome::NoOwner);
            };
            if count_received(connection, owner, to)? >= SHARES_RECEIVED_MAX {
                return Ok(GrantOutcome::TooMany);
            }
            delete_by_name(connection, owner, to)?;
            connection.execute(GRANT, params![grantee, owner, role.name(), now.as_second()])?;
            advance_version(connection, grantee)?;
            Ok(GrantOutcome::Granted)
        })
    }

    pub(crate) async fn shares(
        &self,
        owner: Option<&UserName>,
        to: Option<&UserName>,
    ) -> Result<Vec<StoredShare>, StoreError> {
        const ALL: &str = "
            SELECT owners.name, grantee_name, role, all_shares.created_at
            FROM (
              SELECT owner_id, grantee_name, role, created_at FROM shares_by_name
              UNION ALL
              SELECT owner_id, grantees.name, role, shares.created_at
              FROM shares JOIN users AS grantees ON grantees.user_id = grantee_id
              WHERE (grantees.name, owner_id) NOT IN (SELECT grantee_name, owner_id FROM shares_by_name)) AS all_shares
            JOIN users AS owners ON owners.user_id = owner_id
            WHERE (?1 IS NULL OR owners.name = ?1) AND (?2 IS NULL OR grantee_name = ?2)
            ORDER BY owners.name, grantee_name";
        self.read(|connection| {
            let mut statement = connection.prepare_cached(ALL)?;
            let names = [owner, to].map(|name| name.map(UserName::as_str));
            statement.query_map(names, |row| StoredShare::read(row))?.collect()
        })
    }

    pub(crate) async fn revoke_share(&self, owner: &UserName, to: &UserName) -> Result<bool, StoreError> {
        const REVOKE: &str = "DELETE FROM shares WHERE grantee_id = ?1 AND owner_id = ?2";
        self.change(|connection| {
            let Some(owner) = user_id(connection, owner)? else {
                return Ok(false);
            };
            let mut revoked = delete_by_name(connection, owner, to)?;
            if let Some(grantee) = user_id(connection, to)? {
                revoked += connection.execute(REVOKE, [grantee, owner])?;
                if revoked > 0 {
                    advance_version(connection, grantee)?;
                }
            }
            Ok(revoked > 0)
        })
    }
}

/// Counts the other owners who share with this name.
pub(super) fn count_received(connection: &Connection, owner: i64, to: &UserName) -> rusqlite::Result<u32> {
    const COUNT: &str = "
        SELECT (SELECT count(*) FROM shares_by_name WHERE grantee_name = ?2 AND owner_id <> ?1)
          + (SELECT count(*) FROM shares JOIN users ON user_id = grantee_id WHERE name = ?2 AND owner_id <> ?1)";
    connection.query_row(COUNT, params![owner, to.as_str()], |row| row.get(0))
}

/// Deletes the share with a name, and returns the number of deleted rows.
pub(super) fn delete_by_name(connection: &Connection, owner: i64, to: &UserName) -> rusqlite::Result<usize> {
    const DELETE: &str = "DELETE FROM shares_by_name WHERE owner_id = ?1 AND grantee_name = ?2";
    connection.execute(DELETE, params![owner, to.as_str()])
}

fn user_id(connection: &Connection, name: &UserName) -> rusqlite::Result<Option<i64>> {
    let find = "SELECT user_id FROM users WHERE name = ?1";
    connection.query_row(find, [name.as_str()], |row| row.get(0)).optional()
}

fn advance_version(connection: &Connection, user: i64) -> rusqlite::Result<()> {
    let find = "SELECT version FROM users WHERE user_id = ?1";
    let version: i64 = connection.query_row(find, [user], |row| row.get(0))?;
    connection.execute("UPDATE users SET version = ?2 WHERE user_id = ?1", [user, next_version(version)]).map(|_| ())
}
