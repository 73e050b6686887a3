//! Reading rows of SQLite.

use std::borrow::Cow;

use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension, Row};

use crate::row::{ReadableValue, RowSource};
use plantstore_model::user::{UserId, UserName};

impl RowSource for Row<'_> {
    type Error = Error;

    fn field<T: ReadableValue>(&self, column: usize) -> rusqlite::Result<T> {
        self.get(column)
    }

    fn lossy_text(&self, column: usize) -> rusqlite::Result<Cow<'_, str>> {
        Ok(String::from_utf8_lossy(self.get_ref(column)?.as_bytes()?))
    }

    fn invalid(column: usize, fault: String) -> Error {
        Error::FromSqlConversionFailure(column, Type::Text, fault.into())
    }
}

pub(super) fn find_user(connection: &Connection, name: &UserName) -> rusqlite::Result<Option<UserId>> {
    let mut statement = connection.prepare_cached("SELECT user_id FROM users WHERE name = ?1")?;
    statement.query_row([name.as_str()], |row| row.get(0).map(UserId::new)).optional()
}
