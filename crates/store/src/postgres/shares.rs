//! Shares: access of users to the plants of others.

use jiff::Timestamp;
use tokio_postgres::{Client, Error};

use super::engine::Postgres;
use crate::accounts::{Collection, GrantOutcome, StoredShare};
use crate::error::StoreError;
use crate::limits::SHARES_MAX;
use plantstore_model::user::{Role, UserId, UserName};

impl Postgres {
    pub(crate) async fn shared_with(&self, user: UserId) -> Result<Vec<Collection>, StoreError> {
        let found = self.rows(|session| &session.statements.shared_with, [user.get()]).await?;
        found.iter().map(Collection::read).collect()
    }

    pub(crate) async fn grant_share(
        &self,
        owner: &UserName,
        to: &UserName,
        role: Role,
        now: Timestamp,
    ) -> Result<GrantOutcome, StoreError> {
        const OTHERS: &str = "SELECT count(*) FROM plantstore.shares WHERE grantee_id = $1 AND owner_id <> $2";
        const GRANT: &str = "
            INSERT INTO plantstore.shares (grantee_id, owner_id, role, created_at) VALUES ($1, $2, $3, $4)
            ON CONFLICT (grantee_id, owner_id) DO UPDATE SET role = excluded.role";
        self.operate(async |client| {
            let Some(grantee) = lock_grantee(client, to).await? else {
                return Ok(GrantOutcome::NoGrantee);
            };
            let Some(owner) = user_id(client, owner).await? else {
                return Ok(GrantOutcome::NoOwner);
            };
            let others: i64 = client.query_one(OTHERS, &[&grantee, &owner]).await?.try_get(0)?;
            if others >= i64::from(SHARES_MAX) {
                return Ok(GrantOutcome::TooMany);
            }
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
            SELECT owners.name, grantees.name, role, shares.created_at
            FROM plantstore.shares JOIN plantstore.users AS owners ON owners.user_id = owner_id
            JOIN plantstore.users AS grantees ON grantees.user_id = grantee_id
            WHERE ($1::text IS NULL OR owners.name = $1) AND ($2::text IS NULL OR grantees.name = $2)
            ORDER BY owners.name COLLATE \"C\", grantees.name COLLATE \"C\"";
        let (owner, to) = (owner.map(UserName::as_str), to.map(UserName::as_str));
        let found = self.operate(async |client| client.query(ALL, &[&owner, &to]).await).await?;
        found.iter().map(StoredShare::read).collect()
    }

    pub(crate) async fn revoke_share(&self, owner: &UserName, to: &UserName) -> Result<bool, StoreError> {
        const REVOKE: &str = "DELETE FROM plantstore.shares WHERE grantee_id = $1 AND owner_id = $2";
        self.operate(async |client| {
            let (Some(grantee), Some(owner)) = (lock_grantee(client, to).await?, user_id(client, owner).await?) else {
                return Ok(false);
            };
            Ok(client.execute(REVOKE, &[&grantee, &owner]).await? == 1)
        })
        .await
    }
}

/// Advances the version of the user of this name, and returns the user's id. The row stays locked until the end of the
/// transaction, so that changes of the user's shares are serialized, and the user is not deleted meanwhile.
async fn lock_grantee(client: &Client, name: &UserName) -> Result<Option<i64>, Error> {
    const ADVANCE: &str = "
        UPDATE plantstore.collections
        SET version = greatest(version + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
        WHERE user_id = (SELECT user_id FROM plantstore.users WHERE name = $1) RETURNING user_id";
    client.query_opt(ADVANCE, &[&name.as_str()]).await?.map(|row| row.try_get(0)).transpose()
}

/// Returns the id of the user of this name. The lock prevents that the user is deleted before the transaction ends.
async fn user_id(client: &Client, name: &UserName) -> Result<Option<i64>, Error> {
    const FIND: &str = "SELECT user_id FROM plantstore.users WHERE name = $1 FOR KEY SHARE";
    client.query_opt(FIND, &[&name.as_str()]).await?.map(|row| row.try_get(0)).transpose()
}
