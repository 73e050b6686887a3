//! Shares: access of users to the plants of others.
//!
//! A share is with a name, whether or not there is such a user. It is an offer until its grantee accepts it: only then has it the
//! id of the grantee, gives access, and counts towards the limit of the grantee.

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde::Serialize;

use super::users::{StoredName, timestamp};
use crate::database::Transaction;
use crate::error::StoreError;
use crate::sql::{FromRow, Origin, Parameter, RowSource, Subject, TransactionError};
use crate::store::Store;
use plantstore_model::user::{Role, UserId, UserName};

/// Maximum number of users that an owner can share with.
pub const SHARES_GRANTED_MAX: u32 = 100;
/// Maximum number of shares that a user can accept. It bounds the work of one step of a list.
pub const SHARES_RECEIVED_MAX: u32 = 100;
/// Maximum number of offers in a list of received shares.
const OFFERS_MAX: i64 = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionAccess {
    pub owner: UserName,
    pub owner_id: UserId,
    pub role: Role,
}

impl FromRow for CollectionAccess {
    fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        let owner = UserName::parse(&row.field::<String>(0)?).map_err(|fault| R::invalid(0, fault.to_string()))?;
        Ok(Self { owner, owner_id: UserId::new(row.field(1)?), role: role(row, 2)? })
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct StoredShare {
    pub owner: StoredName,
    #[serde(rename = "to")]
    pub grantee: StoredName,
    pub role: Role,
    pub state: ShareState,
    /// Time of the grant, or of the last offer if it is not accepted.
    pub created: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ShareState {
    Offered,
    Accepted,
    /// The grantee has declined the offer, or left. The owner cannot distinguish it from an offer.
    Declined,
}

impl ShareState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Offered => "offered",
            Self::Accepted => "accepted",
            Self::Declined => "declined",
        }
    }
}

impl FromRow for StoredShare {
    fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        let state = match (row.field::<Option<i64>>(4)?, row.field::<Option<i64>>(5)?) {
            (Some(_), _) => ShareState::Accepted,
            (None, Some(_)) => ShareState::Declined,
            (None, None) => ShareState::Offered,
        };
        Ok(Self {
            owner: StoredName::read(row, 0)?,
            grantee: StoredName::read(row, 1)?,
            role: role(row, 2)?,
            created: timestamp(row.field(3)?),
            state,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantOutcome {
    Granted,
    NoOwner,
    NoGrantee,
    /// The owner shares with [`SHARES_GRANTED_MAX`] users, or, if the operator grants, the grantee has accepted
    /// [`SHARES_RECEIVED_MAX`] shares.
    TooMany,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptOutcome {
    Accepted,
    NoOffer,
    /// The user has accepted [`SHARES_RECEIVED_MAX`] shares.
    TooMany,
}

macro_rules! select_shares {
    ($rest:literal) => {
        concat!(
            "SELECT owners.name, grantee_name, role, shares_by_name.created_at, grantee_id, declined_at
             FROM shares_by_name JOIN users AS owners ON owners.user_id = owner_id ",
            $rest
        )
    };
}

impl Store {
    /// Returns the collections that a user has access to because of shares, in the order of the owners' names.
    pub async fn shared_with(&self, user: UserId) -> Result<Vec<CollectionAccess>, StoreError> {
        const FIND: &str = "
            SELECT users.name, owner_id, role FROM shares_by_name JOIN users ON users.user_id = owner_id
            WHERE grantee_id = $1";
        let mut found: Vec<CollectionAccess> = self.read(FIND, &[&user.get()]).await?;
        found.sort_by(|one, other| one.owner.as_str().cmp(other.owner.as_str()));
        Ok(found)
    }

    /// Returns the shares of an owner in the order of the grantees' names.
    pub async fn granted_shares(&self, owner: UserId) -> Result<Vec<StoredShare>, StoreError> {
        self.read(select_shares!("WHERE owner_id = $1"), &[&owner.get()]).await.map(sorted)
    }

    /// Returns the shares that a user has accepted, and the newest offers, in the order of the owners' names.
    pub async fn received_shares(&self, user: UserId) -> Result<Vec<StoredShare>, StoreError> {
        const OFFERS: &str = select_shares!(
            "JOIN users AS grantees ON grantees.name = grantee_name
             WHERE grantees.user_id = $1 AND grantee_id IS NULL AND declined_at IS NULL
             ORDER BY shares_by_name.created_at DESC, owner_id DESC LIMIT $2"
        );
        let mut found = self.read(select_shares!("WHERE grantee_id = $1"), &[&user.get()]).await?;
        found.extend(self.read(OFFERS, &[&user.get(), &OFFERS_MAX]).await?);
        Ok(sorted(found))
    }

    /// Returns all shares, or those of one owner, or those with one user, in the order of the names.
    pub async fn shares(
        &self,
        owner: Option<&UserName>,
        to: Option<&UserName>,
    ) -> Result<Vec<StoredShare>, StoreError> {
        const ALL: &str = select_shares!(
            "WHERE (CAST($1 AS text) IS NULL OR owners.name = $1) AND (CAST($2 AS text) IS NULL OR grantee_name = $2)"
        );
        self.read(ALL, &[&owner.map(UserName::as_str), &to.map(UserName::as_str)]).await.map(sorted)
    }

    /// Shares the plants of one user with another, who has access at once. If they are shared already, the role changes.
    pub fn grant_share<'a>(
        &'a self,
        owner: &'a UserName,
        to: &'a UserName,
        role: Role,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<GrantOutcome, StoreError>> {
        const GRANT: &str = "
            INSERT INTO shares_by_name (grantee_name, owner_id, role, created_at, grantee_id) VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT (grantee_name, owner_id)
            DO UPDATE SET role = excluded.role, grantee_id = excluded.grantee_id, declined_at = NULL";
        self.transaction(Origin::Operator, move |transaction| async move {
            transaction.lock(Subject::Name(owner.min(to))).await?;
            transaction.lock(Subject::Name(owner.max(to))).await?;
            let Some(grantee) = transaction.find_user(to).await? else { return Ok(GrantOutcome::NoGrantee) };
            let Some(owner) = transaction.find_user(owner).await? else { return Ok(GrantOutcome::NoOwner) };
            transaction.lock(Subject::User(grantee)).await?;
            if transaction.count_accepted(grantee, owner).await? >= SHARES_RECEIVED_MAX {
                return Ok(GrantOutcome::TooMany);
            }
            let created = now.as_second();
            transaction.execute(GRANT, &[&to.as_str(), &owner.get(), &role.name(), &created, &grantee.get()]).await?;
            transaction.move_version(grantee).await?;
            Ok(GrantOutcome::Granted)
        })
    }

    /// Removes a share; false if there is none.
    pub fn revoke_share<'a>(
        &'a self,
        owner: &'a UserName,
        to: &'a UserName,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        const REVOKE: &str = "
            DELETE FROM shares_by_name
            WHERE grantee_name = $2 AND owner_id = (SELECT user_id FROM users WHERE name = $1) RETURNING grantee_id";
        self.transaction(Origin::Operator, move |transaction| async move {
            transaction.revoke_share(REVOKE, &[&owner.as_str(), &to.as_str()]).await
        })
    }

    /// Offers the plants of the owner to the user of this name, now or when there is such a user. If the offer is accepted already,
    /// only the role changes. The outcome does not depend on whether there is such a user, and the limit holds for concurrent
    /// requests on all nodes.
    pub fn grant_own_share<'a>(
        &'a self,
        owner: UserId,
        to: &'a UserName,
        role: Role,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<GrantOutcome, StoreError>> {
        const COUNT: &str = "SELECT count(*) FROM shares_by_name WHERE owner_id = $1";
        const FIND: &str = "SELECT owner_id FROM shares_by_name WHERE owner_id = $1 AND grantee_name = $2";
        // A declined offer becomes a new one. Its time changes as that of every offer, so that the owner does not notice.
        const GRANT: &str = "
            INSERT INTO shares_by_name (grantee_name, owner_id, role, created_at) VALUES ($1, $2, $3, $4)
            ON CONFLICT (grantee_name, owner_id) DO UPDATE SET role = excluded.role, declined_at = NULL,
              created_at = CASE WHEN shares_by_name.grantee_id IS NULL
                THEN excluded.created_at ELSE shares_by_name.created_at END";
        self.transaction(Origin::Request, move |transaction| async move {
            transaction.lock(Subject::User(owner)).await?;
            if !transaction.has_user(owner).await? {
                return Ok(GrantOutcome::NoOwner);
            }
            // The role of a share can change beyond the limit, which the operator can exceed.
            let known: Option<i64> = transaction.find(FIND, &[&owner.get(), &to.as_str()]).await?;
            if known.is_none() && transaction.count(COUNT, &[&owner.get()]).await? >= SHARES_GRANTED_MAX {
                return Ok(GrantOutcome::TooMany);
            }
            transaction.execute(GRANT, &[&to.as_str(), &owner.get(), &role.name(), &now.as_second()]).await?;
            Ok(GrantOutcome::Granted)
        })
    }

    /// Removes a share of this owner; false if there is none.
    pub fn revoke_own_share<'a>(&'a self, owner: UserId, to: &'a UserName) -> BoxFuture<'a, Result<bool, StoreError>> {
        const REVOKE: &str =
            "DELETE FROM shares_by_name WHERE owner_id = $1 AND grantee_name = $2 RETURNING grantee_id";
        self.transaction(Origin::Request, move |transaction| async move {
            transaction.revoke_share(REVOKE, &[&owner.get(), &to.as_str()]).await
        })
    }

    /// Accepts the offer of an owner. Accepting it again changes nothing. The limit holds for concurrent requests on all nodes.
    pub fn accept_share<'a>(
        &'a self,
        user: UserId,
        owner: &'a UserName,
    ) -> BoxFuture<'a, Result<AcceptOutcome, StoreError>> {
        // Shares are read even if there is no such owner: the work does not show which users exist.
        const FIND: &str = "
            SELECT owner_id FROM shares_by_name
            WHERE owner_id = COALESCE((SELECT user_id FROM users WHERE name = $2), 0) AND declined_at IS NULL
              AND grantee_name = (SELECT name FROM users WHERE user_id = $1)";
        const ACCEPT: &str = "
            UPDATE shares_by_name SET grantee_id = $1
            WHERE owner_id = $2 AND declined_at IS NULL AND grantee_name = (SELECT name FROM users WHERE user_id = $1)";
        self.transaction(Origin::Request, move |transaction| async move {
            transaction.lock(Subject::User(user)).await?;
            let offered: Option<i64> = transaction.find(FIND, &[&user.get(), &owner.as_str()]).await?;
            let Some(owner) = offered.map(UserId::new) else { return Ok(AcceptOutcome::NoOffer) };
            if transaction.count_accepted(user, owner).await? >= SHARES_RECEIVED_MAX {
                return Ok(AcceptOutcome::TooMany);
            }
            let accepted = transaction.execute(ACCEPT, &[&user.get(), &owner.get()]).await?;
            transaction.move_version(user).await?;
            Ok(if accepted == 1 { AcceptOutcome::Accepted } else { AcceptOutcome::NoOffer })
        })
    }

    /// Declines the offer of an owner, or ends the access to their plants; false if there is neither.
    pub fn decline_share<'a>(
        &'a self,
        user: UserId,
        owner: &'a UserName,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        const DECLINE: &str = "
            UPDATE shares_by_name SET grantee_id = NULL, declined_at = $3
            WHERE owner_id = COALESCE((SELECT user_id FROM users WHERE name = $2), 0) AND declined_at IS NULL
              AND grantee_name = (SELECT name FROM users WHERE user_id = $1)";
        self.transaction(Origin::Request, move |transaction| async move {
            transaction.move_version(user).await?;
            Ok(transaction.execute(DECLINE, &[&user.get(), &owner.as_str(), &now.as_second()]).await? == 1)
        })
    }
}

impl Transaction {
    /// Executes a statement that deletes a share and returns the id of the grantee who has accepted it, if any; false if there is none.
    async fn revoke_share(&self, text: &str, values: &[&dyn Parameter]) -> Result<bool, TransactionError> {
        let revoked: Option<Option<i64>> = self.find(text, values).await?;
        if let Some(Some(grantee)) = revoked {
            self.move_version(UserId::new(grantee)).await?;
        }
        Ok(revoked.is_some())
    }

    async fn count_accepted(&self, user: UserId, other_than: UserId) -> Result<u32, TransactionError> {
        const COUNT: &str = "SELECT count(*) FROM shares_by_name WHERE grantee_id = $1 AND owner_id <> $2";
        self.count(COUNT, &[&user.get(), &other_than.get()]).await
    }
}

fn sorted(mut shares: Vec<StoredShare>) -> Vec<StoredShare> {
    let names = |share: &StoredShare| (share.owner.as_str().to_owned(), share.grantee.as_str().to_owned());
    shares.sort_by_cached_key(names);
    shares
}

fn role<R: RowSource>(row: &R, column: usize) -> Result<Role, R::Error> {
    let name: String = row.field(column)?;
    Role::from_name(&name).ok_or_else(|| R::invalid(column, format!("unknown role {name}")))
}
