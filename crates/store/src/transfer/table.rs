//! Tables as snapshot, restore and copy of every engine know them, and the types that their columns can have.

use std::fmt::{self, Display, Write as _};

use crate::error::BadRow;

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
pub(crate) trait Value: rusqlite::ToSql + tokio_postgres::types::ToSql + Sync + fmt::Debug {
    /// Returns the text by which messages name a row with this value in its key.
    fn describe(&self) -> String {
        format!("{self:?}")
    }
}

/// The type of a column, which the drivers of both engines read.
pub(crate) trait Field: Value + rusqlite::types::FromSql + for<'a> tokio_postgres::types::FromSql<'a> {
    const KIND: Kind;
}

/// A row as an engine's driver returns it.
pub(crate) trait RowSource {
    type Error;

    fn field<T: Field>(&self, column: usize) -> Result<T, Self::Error>;
}

impl Value for i64 {}

impl Field for i64 {
    const KIND: Kind = Kind::BigInt;
}

impl Value for i32 {}

impl Field for i32 {
    const KIND: Kind = Kind::Integer;
}

impl Value for String {}

impl Field for String {
    const KIND: Kind = Kind::Text;
}

impl Value for Vec<u8> {
    fn describe(&self) -> String {
        hex(self)
    }
}

impl Field for Vec<u8> {
    const KIND: Kind = Kind::Bytes;
}

impl<T: Value> Value for Option<T> {}

impl<T: Field> Field for Option<T> {
    const KIND: Kind = T::KIND;
}

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
