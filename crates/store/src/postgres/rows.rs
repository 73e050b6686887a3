//! Reading rows of PostgreSQL.

use std::borrow::Cow;

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::database_error::describe;
use crate::error::StoreError;
use crate::sql::{ReadableValue, RowSource};

impl RowSource for Row {
    type Error = StoreError;

    fn field<T: ReadableValue>(&self, column: usize) -> Result<T, StoreError> {
        get(self, column)
    }

    fn lossy_text(&self, column: usize) -> Result<Cow<'_, str>, StoreError> {
        get(self, column).map(Cow::Borrowed)
    }

    fn invalid(_column: usize, fault: String) -> StoreError {
        StoreError::Internal(fault)
    }
}

pub(crate) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, StoreError> {
    row.try_get(column).map_err(|error| StoreError::Internal(describe(&error)))
}
