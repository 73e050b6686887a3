//! Reading rows of either engine.

use std::borrow::Cow;

/// A type that the drivers of both engines can read from a column.
pub(crate) trait ReadableValue: rusqlite::types::FromSql + for<'a> tokio_postgres::types::FromSql<'a> {}

impl<T: rusqlite::types::FromSql + for<'a> tokio_postgres::types::FromSql<'a>> ReadableValue for T {}

/// A row of a query result.
pub(crate) trait RowSource {
    type Error;

    fn field<T: ReadableValue>(&self, column: usize) -> Result<T, Self::Error>;

    /// Returns a text with invalid UTF-8 replaced, because SQLite does not validate it.
    fn lossy_text(&self, column: usize) -> Result<Cow<'_, str>, Self::Error>;

    /// Returns the error for a value that violates a rule of the service.
    fn invalid(column: usize, fault: String) -> Self::Error;
}
