//! Reads and transactions in SQL that both engines understand: enough for users, tokens, shares and sweeps.
//!
//! Names of tables are not qualified, parameters are `$1` to `$9`, and texts are sorted by the caller, because the order of the
//! database depends on its collation. Citus restricts statements further: `tests/it/tidy/citus.rs` has the rules.

use std::future::Future;

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use crate::error::StoreError;
use crate::sql::{FromRow, Origin, Parameter, Subject, TransactionError};
use crate::store::{Database, Store};
use crate::{postgres, sqlite};
use plantstore_model::user::UserId;

/// An open transaction. Its clones are the same transaction.
#[derive(Clone)]
pub(crate) enum Transaction {
    Sqlite(sqlite::Transaction),
    Postgres(postgres::AdminConnection),
}

impl Store {
    /// Returns the rows of a query. The statement stays prepared.
    pub(crate) async fn read<T: FromRow>(
        &self,
        text: &'static str,
        values: &[&dyn Parameter],
    ) -> Result<Vec<T>, StoreError> {
        match &self.database {
            Database::Sqlite(engine) => engine.query(text, values),
            Database::Postgres(engine) => engine.query(text, values).await,
        }
    }

    /// Runs `work` in a transaction and commits. Repeats it after a conflict with another transaction. `work` gets the transaction
    /// by value, because a future that borrows it could not be sent between threads.
    pub(crate) fn transaction<'a, T: Send + 'a, F: Future<Output = Result<T, TransactionError>> + Send + 'a>(
        &'a self,
        origin: Origin,
        work: impl Fn(Transaction) -> F + Send + Sync + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        Box::pin(async move {
            let done = match &self.database {
                Database::Sqlite(engine) => {
                    engine.transaction(origin, |opened| work(Transaction::Sqlite(opened))).await
                }
                Database::Postgres(engine) => {
                    engine.transaction(origin, |opened| work(Transaction::Postgres(opened))).await
                }
            };
            self.watches.poll_soon();
            done
        })
    }
}

impl Transaction {
    /// Executes a statement, and returns the number of changed rows.
    pub(crate) async fn execute(&self, text: &str, values: &[&dyn Parameter]) -> Result<u64, TransactionError> {
        match self {
            Self::Sqlite(transaction) => transaction.execute(text, values),
            Self::Postgres(transaction) => transaction.execute(text, values).await,
        }
    }

    /// Returns the first row of a query.
    pub(crate) async fn find<T: FromRow>(
        &self,
        text: &str,
        values: &[&dyn Parameter],
    ) -> Result<Option<T>, TransactionError> {
        let found = match self {
            Self::Sqlite(transaction) => transaction.query(text, values)?,
            Self::Postgres(transaction) => transaction.query(text, values).await?,
        };
        Ok(found.into_iter().next())
    }

    /// Returns the number that a query counts.
    pub(crate) async fn count(&self, text: &str, values: &[&dyn Parameter]) -> Result<u32, TransactionError> {
        let counted: Option<i64> = self.find(text, values).await?;
        Ok(counted.map_or(0, |count| u32::try_from(count).unwrap_or(u32::MAX)))
    }

    /// Locks a subject until the end of the transaction. In SQLite, a transaction locks everything.
    pub(crate) async fn lock(&self, subject: Subject<'_>) -> Result<(), TransactionError> {
        match self {
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(transaction) => transaction.lock(subject).await,
        }
    }

    /// Returns the time of the database in milliseconds, because the clocks of nodes differ.
    pub(crate) async fn now(&self) -> Result<i64, TransactionError> {
        const NOW: &str = "SELECT CAST(extract(epoch FROM now()) * 1000 AS bigint)";
        match self {
            Self::Sqlite(_) => Ok(Timestamp::now().as_millisecond()),
            Self::Postgres(_) => Ok(self.find(NOW, &[]).await?.unwrap_or_default()),
        }
    }

    /// Moves the version of a user whose tokens or received shares change. Whatever watches the user's version then looks at them again.
    pub(crate) async fn move_version(&self, user: UserId) -> Result<(), TransactionError> {
        macro_rules! update {
            ($table:literal) => {
                concat!(
                    "UPDATE ",
                    $table,
                    " SET version = CASE WHEN version < $2 THEN $2 ELSE version + 1 END WHERE user_id = $1"
                )
            };
        }
        let update = if self.has_collections() { update!("collections") } else { update!("users") };
        // As those of writes, so that no version is reused after a store was restored to an earlier state.
        let microseconds = self.now().await?.saturating_mul(1_000);
        self.execute(update, &[&user.get(), &microseconds]).await.map(|_| ())
    }

    /// Returns true if the versions of users are in the table `collections`.
    pub(crate) fn has_collections(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    /// Returns the clause with which a subquery locks its rows and skips those that another transaction has locked, if there can be
    /// any.
    pub(crate) fn skip_locked(&self) -> &'static str {
        match self {
            Self::Postgres(transaction) if transaction.locks_rows_in_subqueries() => "FOR UPDATE SKIP LOCKED",
            Self::Sqlite(_) | Self::Postgres(_) => "",
        }
    }
}
