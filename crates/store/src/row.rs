//! Rows as the engines' drivers return them, and the values that both drivers read.

use std::borrow::Cow;

/// A value that the drivers of both engines read.
pub(crate) trait Readable: rusqlite::types::FromSql + for<'a> tokio_postgres::types::FromSql<'a> {}

impl<T: rusqlite::types::FromSql + for<'a> tokio_postgres::types::FromSql<'a>> Readable for T {}

/// A row of a query.
pub(crate) trait RowSource {
    type Error;

    fn field<T: Readable>(&self, column: usize) -> Result<T, Self::Error>;

    /// Returns a text in which characters that are not UTF-8, which SQLite does not check, are replaced.
    fn lossy_text(&self, column: usize) -> Result<Cow<'_, str>, Self::Error>;

    /// Returns the error of a value that breaks a rule of the service.
    fn invalid(column: usize, fault: String) -> Self::Error;
}
