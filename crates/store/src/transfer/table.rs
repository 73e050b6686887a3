//! Tables as snapshot, restore and copy of every engine know them, and the types that their columns can have.

use std::fmt::{Display, Write as _};

use crate::error::BadRow;
use crate::row::Readable;

/// A table: its columns, of which the first are its key.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [Column],
    pub(crate) key_columns: usize,
    /// Expressions over other tables that a snapshot reads after the key.
    pub(crate) joined: &'static [&'static str],
}

pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

/// Types of columns.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    BigInt,
    Integer,
    Text,
    Bytes,
}

impl Column {
    pub(crate) const fn of<T: Field>(name: &'static str) -> Self {
        Self { name, kind: T::KIND }
    }
}

impl Table {
    pub(crate) fn key(&self) -> &'static [Column] {
        &self.columns[..self.key_columns]
    }

    /// Returns all that a snapshot reads of a row, in the order of [`Record::read`](super::Record::read).
    pub(crate) fn select_list(&self) -> String {
        let (key, others) = self.columns.split_at(self.key_columns);
        let own = |column: &Column| format!("{}.{}", self.name, column.name);
        let joined = self.joined.iter().map(|expression| (*expression).to_owned());
        key.iter().map(own).chain(joined).chain(others.iter().map(own)).collect::<Vec<_>>().join(", ")
    }

    /// Names the row with these values of the key.
    pub(crate) fn bad_row(&self, key: &[String], fault: impl Display) -> BadRow {
        let row = self.key().iter().zip(key).map(|(column, value)| format!("{} {value}", column.name));
        BadRow::new(self.name, row.collect::<Vec<_>>().join(", "), fault.to_string())
    }
}

/// Returns the names of columns as a list in a statement.
pub(crate) fn names<'a>(columns: impl IntoIterator<Item = &'a Column>) -> String {
    columns.into_iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
}

/// A value of a column, which the drivers of both engines bind to a statement.
pub(crate) trait Value: rusqlite::ToSql + tokio_postgres::types::ToSql + Sync {
    /// Returns the text by which messages name a row with this value in its key.
    fn describe(&self) -> String;
}

/// The type of a column.
pub(crate) trait Field: Value + Readable {
    const KIND: Kind;
}

macro_rules! fields {
    ($($type:ty: $kind:ident, $describe:expr;)*) => {$(
        impl Value for $type {
            fn describe(&self) -> String {
                $describe(self)
            }
        }

        impl Field for $type {
            const KIND: Kind = Kind::$kind;
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
