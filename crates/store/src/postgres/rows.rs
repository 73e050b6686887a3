//! Values of rows.

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::database_error::describe;
use crate::accounts::StoredName;
use crate::error::StoreError;
use plantstore_model::user::UserName;

pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, StoreError> {
    row.try_get(column).map_err(|error| StoreError::Internal(describe(&error)))
}

pub(super) fn stored_name(row: &Row, column: usize) -> Result<StoredName, StoreError> {
    get(row, column).map(StoredName::from_stored)
}

pub(super) fn user_name(row: &Row, column: usize) -> Result<UserName, StoreError> {
    UserName::parse(get(row, column)?).map_err(|fault| StoreError::Internal(fault.to_string()))
}
