//! Shares: access of users to the plants of others.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::engine::Sqlite;
use crate::accounts::{Collection, GrantOutcome, StoredShare};
use crate::error::StoreError;
use crate::limits::SHARES_MAX;
use crate::version::next_version;
use plantstore_model::user::{Role, UserId, UserName};

#[expect(clippy::unused_async, reason = "the methods of both engines are asynchronous; this one never waits")]
impl Sqlite {
    pub(crate) async fn shared_with(&self, user: UserId) -> Result<Vec<Collection>, StoreError> {
        const FIND: &str = "
            SELECT name, owner_id, role FROM shares JOIN users ON users.user_id = owner_id
            WHERE grantee_id = ?1 ORDER BY name";
        self.read(|connection| {
            let mut statement = connection.prepare_cached(FIND)?;
            statement.query_map([user.get()], |row| Collection::read(row))?.collect()
        })
    }

    pub(crate) async fn grant_share(
        &self,
        owner: &UserName,
        to: &UserName,
        role: Role,
        now: Timestamp,
    ) -> Result<GrantOutcome, StoreError> {
        const OTHERS: &str = "SELECT count(*) FROM shares WHERE grantee_id = ?1 AND owner_id <> ?2";
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
            let others: u32 = connection.query_row(OTHERS, [grantee, owner], |row| row.get(0))?;
            if others >= SHARES_MAX {
                return Ok(GrantOutcome::TooMany);
            }
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
            SELECT owners.name, grantees.name, role, shares.created_at
            FROM shares JOIN users AS owners ON owners.user_id = owner_id
            JOIN users AS grantees ON grantees.user_id = grantee_id
            WHERE (?1 IS NULL OR owners.name = ?1) AND (?2 IS NULL OR grantees.name = ?2)
            ORDER BY owners.name, grantees.name";
        self.read(|connection| {
            let mut statement = connection.prepare_cached(ALL)?;
            let names = [owner, to].map(|name| name.map(UserName::as_str));
            statement.query_map(names, |row| StoredShare::read(row))?.collect()
        })
    }

    pub(crate) async fn revoke_share(&self, owner: &UserName, to: &UserName) -> Result<bool, StoreError> {
        const REVOKE: &str = "DELETE FROM shares WHERE grantee_id = ?1 AND owner_id = ?2";
        self.change(|connection| {
            let (Some(owner), Some(grantee)) = (user_id(connection, owner)?, user_id(connection, to)?) else {
                return Ok(false);
            };
            let revoked = connection.execute(REVOKE, [grantee, owner])? == 1;
            if revoked {
                advance_version(connection, grantee)?;
            }
            Ok(revoked)
        })
    }
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
