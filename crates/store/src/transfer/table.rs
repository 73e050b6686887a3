//! Table descriptors, from which both engines build the statements of snapshots and restores.

use std::fmt::{Display, Write as _};

use crate::error::BadRow;
use crate::sql::ReadableValue;

/// A table. Its first columns are the primary key.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [Column],
    pub(crate) key_columns: usize,
    /// Columns of joined tables that a snapshot reads after the key.
    pub(crate) joined: &'static [&'static str],
}

pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) column_type: ColumnType,
}

#[derive(Clone, Copy)]
pub(crate) enum ColumnType {
    BigInt,
    Integer,
    Text,
    Bytes,
}

impl Column {
    pub(crate) const fn of<T: Field>(name: &'static str) -> Self {
        Self { name, column_type: T::TYPE }
    }
}

impl Table {
    pub(crate) fn key(&self) -> &'static [Column] {
        &self.columns[..self.key_columns]
    }

    /// Returns the columns that a snapshot selects, in the order of [`Record::read`](super::Record::read).
    pub(crate) fn select_list(&self) -> String {
        let (key, others) = self.columns.split_at(self.key_columns);
        let own = |column: &Column| format!("{}.{}", self.name, column.name);
        let joined = self.joined.iter().map(|expression| (*expression).to_owned());
        key.iter().map(own).chain(joined).chain(others.iter().map(own)).collect::<Vec<_>>().join(", ")
    }

    /// Returns the error for the row with this key.
    pub(crate) fn bad_row(&self, key: &[String], fault: impl Display) -> BadRow {
        let row = self.key().iter().zip(key).map(|(column, value)| format!("{} {value}", column.name));
        BadRow::new(self.name, row.collect::<Vec<_>>().join(", "), fault.to_string())
    }
}

/// Returns the names of columns, separated by commas.
pub(crate) fn names<'a>(columns: impl IntoIterator<Item = &'a Column>) -> String {
    columns.into_iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
}

/// A value that the drivers of both engines can bind to a statement.
pub(crate) trait Value: rusqlite::ToSql + tokio_postgres::types::ToSql + Sync {
    /// Returns the value as error messages show it.
    fn describe(&self) -> String;
}

/// A Rust type that corresponds to a column type.
pub(crate) trait Field: Value + ReadableValue {
    const TYPE: ColumnType;
}

macro_rules! fields {
    ($($type:ty: $column_type:ident, $describe:expr;)*) => {$(
        impl Value for $type {
            fn describe(&self) -> String {
                $describe(self)
            }
        }

        impl Field for $type {
            const TYPE: ColumnType = ColumnType::$column_type;
        }
    )*};
}

fields! {
    i64: BigInt, ToString::to_string;
    i32: Integer, ToString::to_string;
    String: Text, Clone::clone;
    Vec<u8>: Bytes, |bytes: &Vec<u8>| hex(bytes);
    Option<i64>: BigInt, |value: &Self| format!("{value:?}");
    Option<String>: Text, |value: &Self| format!("{value:?}");
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
