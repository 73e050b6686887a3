//! Values of rows.

use std::borrow::Cow;

use rusqlite::{Connection, OptionalExtension, Row};

use crate::accounts::StoredName;
use plantstore_model::user::{UserId, UserName};

pub(super) fn find_user(connection: &Connection, name: &UserName) -> rusqlite::Result<Option<UserId>> {
    let mut statement = connection.prepare_cached("SELECT user_id FROM users WHERE name = ?1")?;
    statement.query_row([name.as_str()], |row| row.get(0).map(UserId::new)).optional()
}

pub(super) fn stored_name(row: &Row<'_>, column: usize) -> rusqlite::Result<StoredName> {
    text(row, column).map(|text| StoredName::from_stored(&text))
}

/// A text that may not be UTF-8, which SQLite does not check.
pub(super) fn text<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<Cow<'a, str>> {
    Ok(String::from_utf8_lossy(row.get_ref(column)?.as_bytes()?))
}

pub(super) fn user_name(row: &Row<'_>, column: usize) -> rusqlite::Result<UserName> {
    UserName::parse(row.get_ref(column)?.as_str()?).map_err(|fault| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(fault))
    })
}
