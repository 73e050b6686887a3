//! Shares: access of users to the plants of others.

use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio_postgres::{Client, Error};

use super::engine::Postgres;
use crate::accounts::{CollectionAccess, GrantOutcome, StoredShare};
use crate::error::StoreError;
use crate::limits::SHARES_RECEIVED_MAX;
use plantstore_model::user::{Role, UserId, UserName};

impl Postgres {
    pub(crate) async fn shared_with(&self, user: UserId) -> Result<Vec<CollectionAccess>, StoreError> {
        let found = self.readers.rows(|session| &session.statements.shared_with, [user.get()]).await?;
        found.iter().map(CollectionAccess::read).collect()
    }

    pub(crate) async fn grant_share(
        &self,
        owner: &UserName,
        to: &UserName,
        role: Role,
        now: Timestamp,
    ) -> Result<GrantOutcome, StoreError> {
        const GRANT: &str = "
            INSERT INTO plantstore.shares (grantee_id, owner_id, role, created_at) VALUES ($1, $2, $3, $4)
            ON CONFLICT (grantee_id, owner_id) DO UPDATE SET role = excluded.role";
        self.run_admin_transaction(async |client| {
            let Some(grantee) = lock_grantee(client, to).await? else {
                return Ok(GrantOutcome::NoGrantee);
            };
            let Some(owner) = user_id(client, owner).await? else {
                return Ok(GrantOutcome::NoOwner);
            };
            lock_name(client, to).await?;
            if count_received(client, owner, to).await? >= i64::from(SHARES_RECEIVED_MAX) {
                return Ok(GrantOutcome::TooMany);
            }
            delete_by_name(client, owner, to).await?;
            client.execute(GRANT, &[&grantee, &owner, &role.name(), &now.as_second()]).await?;
            Ok(GrantOutcome::Granted)
        })
        .await
    }

    pub(crate) async fn shares(
        &self,
        owner: Option<&UserName>,
        to: Option<&UserName>,
    ) -> Result<Vec<StoredShare>, StoreError> {
        const ALL: &str = "
            SELECT owners.name, grantee_name, role, all_shares.created_at
            FROM (
              SELECT owner_id, grantee_name, role, created_at FROM plantstore.shares_by_name
              UNION ALL
              SELECT owner_id, grantees.name, role, shares.created_at
              FROM plantstore.shares JOIN plantstore.users AS grantees ON grantees.user_id = grantee_id
              WHERE (grantees.name, owner_id) NOT IN (
                SELECT grantee_name, owner_id FROM plantstore.shares_by_name)) AS all_shares
            JOIN plantstore.users AS owners ON owners.user_id = owner_id
            WHERE ($1::text IS NULL OR owners.name = $1) AND ($2::text IS NULL OR grantee_name = $2)
            ORDER BY owners.name COLLATE \"C\", grantee_name COLLATE \"C\"";
        let (owner, to) = (owner.map(UserName::as_str), to.map(UserName::as_str));
        let found = self.run_admin_transaction(async |client| client.query(ALL, &[&owner, &to]).await).await?;
        found.iter().map(StoredShare::read).collect()
    }

    pub(crate) async fn revoke_share(&self, owner: &UserName, to: &UserName) -> Result<bool, StoreError> {
        const REVOKE: &str = "DELETE FROM plantstore.shares WHERE grantee_id = $1 AND owner_id = $2";
        self.run_admin_transaction(async |client| {
            let grantee = lock_grantee(client, to).await?;
            let Some(owner) = user_id(client, owner).await? else {
                return Ok(false);
            };
            // A concurrent grant moves the share from one table to the other.
            lock_name(client, to).await?;
            let mut revoked = delete_by_name(client, owner, to).await?;
            if let Some(grantee) = grantee {
                revoked += client.execute(REVOKE, &[&grantee, &owner]).await?;
            }
            Ok(revoked > 0)
        })
        .await
    }
}

/// Locks a name until the end of the transaction, so that grants to it are serialized, whether or not there is such a user.
pub(super) async fn lock_name(client: &Client, name: &UserName) -> Result<(), Error> {
    lock(client, "shares with", name.as_str().as_bytes()).await
}

/// Takes the advisory lock of a subject until the end of the transaction.
pub(super) async fn lock(client: &Client, kind: &str, subject: &[u8]) -> Result<(), Error> {
    let digest = Sha256::new().chain_update(kind).chain_update([0]).chain_update(subject).finalize();
    // 64 bits, so that collisions, which only cost time, are unlikely.
    let number = digest.iter().take(8).fold(0, |number: i64, byte| number << 8 | i64::from(*byte));
    client.execute("SELECT pg_advisory_xact_lock($1)", &[&number]).await.map(|_| ())
}

/// Counts the other owners who share with this name.
pub(super) async fn count_received(client: &Client, owner: i64, to: &UserName) -> Result<i64, Error> {
    const COUNT: &str = "
        SELECT (SELECT count(*) FROM plantstore.shares_by_name WHERE grantee_name = $2 AND owner_id <> $1)
          + (SELECT count(*) FROM plantstore.shares JOIN plantstore.users ON users.user_id = grantee_id
             WHERE users.name = $2 AND owner_id <> $1)";
    client.query_one(COUNT, &[&owner, &to.as_str()]).await?.try_get(0)
}

/// Deletes the share with a name, and returns the number of deleted rows.
pub(super) async fn delete_by_name(client: &Client, owner: i64, to: &UserName) -> Result<u64, Error> {
    const DELETE: &str = "DELETE FROM plantstore.shares_by_name WHERE owner_id = $1 AND grantee_name = $2";
    client.execute(DELETE, &[&owner, &to.as_str()]).await
}

/// Advances the version of the user of this name, and returns the user's id. The row stays locked until the end of the
/// transaction, so that changes of the user's shares are serialized, and the user is not deleted meanwhile.
async fn lock_grantee(client: &Client, name: &UserName) -> Result<Option<i64>, Error> {
    const ADVANCE: &str = "
        UPDATE plantstore.collections
        SET version = greatest(version + 1, (extract(epoch FROM now()) * 1000000)::bigint)
        WHERE user_id = (SELECT user_id FROM plantstore.users WHERE name = $1) RETURNING user_id";
    client.query_opt(ADVANCE, &[&name.as_str()]).await?.map(|row| row.try_get(0)).transpose()
}

/// Returns the id of the user of this name. The lock prevents that the user is deleted before the transaction ends.
async fn user_id(client: &Client, name: &UserName) -> Result<Option<i64>, Error> {
    const FIND: &str = "SELECT user_id FROM plantstore.users WHERE name = $1 FOR KEY SHARE";
    client.query_opt(FIND, &[&name.as_str()]).await?.map(|row| row.try_get(0)).transpose()
}
