//! Statements that both engines have, and rows of SQLite.

use std::borrow::Cow;

use rusqlite::types::Type;
use rusqlite::{CachedStatement, Connection, Error, Row, ToSql};

use crate::sql::{FromRow, Parameter, ReadableValue, RowSource};

/// Names of parameters. They are bound by name, because SQLite numbers them in the order of their first use.
const PARAMETERS: [&str; 9] = ["$1", "$2", "$3", "$4", "$5", "$6", "$7", "$8", "$9"];

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

/// Executes a statement, and returns the number of changed rows.
pub(super) fn execute(connection: &Connection, text: &str, values: &[&dyn Parameter]) -> rusqlite::Result<u64> {
    prepare(connection, text, values)?.raw_execute().map(|changed| changed as u64)
}

/// Returns the rows of a query.
pub(super) fn query<T: FromRow>(
    connection: &Connection,
    text: &str,
    values: &[&dyn Parameter],
) -> rusqlite::Result<Vec<T>> {
    let mut statement = prepare(connection, text, values)?;
    let mut rows = statement.raw_query();
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(T::read(row)?);
    }
    Ok(found)
}

fn prepare<'a>(
    connection: &'a Connection,
    text: &str,
    values: &[&dyn Parameter],
) -> rusqlite::Result<CachedStatement<'a>> {
    let mut statement = connection.prepare_cached(text)?;
    for (name, value) in PARAMETERS.iter().zip(values) {
        if let Some(index) = statement.parameter_index(name)? {
            let value: &dyn ToSql = *value;
            statement.raw_bind_parameter(index, value)?;
        }
    }
    Ok(statement)
}
