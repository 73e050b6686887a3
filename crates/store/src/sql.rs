//! Values, rows and transactions, as both engines have them.

use std::borrow::Cow;

use crate::error::StoreError;
use plantstore_model::user::{UserId, UserName};

/// A type that the drivers of both engines can read from a column.
pub(crate) trait ReadableValue: rusqlite::types::FromSql + for<'a> tokio_postgres::types::FromSql<'a> {}

impl<T: rusqlite::types::FromSql + for<'a> tokio_postgres::types::FromSql<'a>> ReadableValue for T {}

/// A value that the drivers of both engines can bind to a parameter.
pub(crate) trait Parameter: rusqlite::types::ToSql + tokio_postgres::types::ToSql + Sync {}

impl<T: rusqlite::types::ToSql + tokio_postgres::types::ToSql + Sync> Parameter for T {}

/// A row of a query result.
pub(crate) trait RowSource {
    type Error;

    fn field<T: ReadableValue>(&self, column: usize) -> Result<T, Self::Error>;

    /// Returns a text with invalid UTF-8 replaced, because SQLite does not validate it.
    fn lossy_text(&self, column: usize) -> Result<Cow<'_, str>, Self::Error>;

    /// Returns the error for a value that violates a rule of the service.
    fn invalid(column: usize, fault: String) -> Self::Error;
}

/// A type that is read from a row.
pub(crate) trait FromRow: Sized {
    fn read<R: RowSource>(row: &R) -> Result<Self, R::Error>;
}

/// A value that is read from the first column.
impl<T: ReadableValue> FromRow for T {
    fn read<R: RowSource>(row: &R) -> Result<Self, R::Error> {
        row.field(0)
    }
}

/// The origin of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A request. Its transaction has the timeout of requests, and takes turns with others.
    Request,
    /// A command of the operator, or a sweep.
    Operator,
}

/// Error of a statement in a transaction.
pub(crate) enum TransactionError {
    /// The database aborted the transaction because of another one. It can be repeated.
    Conflict(StoreError),
    Failed(StoreError),
}

impl TransactionError {
    pub(crate) fn into_store_error(self) -> StoreError {
        match self {
            Self::Conflict(error) | Self::Failed(error) => error,
        }
    }
}

/// A subject of changes that must not be concurrent. A transaction locks names before users, and names in their order, so that
/// transactions do not wait for each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    /// A name, whether or not there is such a user.
    Name(&'a UserName),
    /// The tokens and received shares of a user, and the user's existence.
    User(UserId),
}
