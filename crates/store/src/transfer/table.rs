//! The tables of a store, and rows in transit. Both engines build their statements from these descriptions: a new column is a new
//! line here.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::types::{ToSqlOutput, ValueRef};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type};

use crate::error::StoreError;
use plantstore_model::plant::{PlantName, Tag};
use plantstore_model::text::{Escaped, Hex};
use plantstore_model::token::{Scope, TokenCreator, TokenLabel};
use plantstore_model::user::{Role, UserName};

/// Maximum number of rows and of bytes of texts in a chunk.
const CHUNK_ROWS: usize = 4_096;
const CHUNK_BYTES: usize = 256 * 1024;

/// A table. A snapshot reads all of its columns.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// Name that operators see.
    pub(crate) title: &'static str,
    /// The first ones are the primary key. Those of a joined table have its name, and are not stored.
    pub(crate) columns: &'static [Column],
    pub(crate) key_columns: usize,
    /// The rows of a snapshot: what follows FROM. `$1` is the name of the only user whose plants are selected, if there is one.
    pub(crate) rows: &'static str,
    /// Texts are in bytewise order.
    pub(crate) order: &'static [&'static str],
    /// Columns with the ids of users who must exist.
    pub(crate) users: &'static [&'static str],
    pub(crate) rule: fn(&[Cell]) -> Result<(), String>,
}

pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) postgres_type: Type,
    rule: Rule,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    Required,
    Optional,
    AssignedId,
    Version,
    Time,
    OptionalTime,
    UserName,
    Label,
    Scopes,
    Creator,
    Role,
    PlantName,
    Tag,
    Message,
    Hash,
}

const fn column(name: &'static str, postgres_type: Type, rule: Rule) -> Column {
    Column { name, postgres_type, rule }
}

pub(crate) static USERS: Table = Table {
    name: "users",
    title: "users",
    columns: &[
        column("user_id", Type::INT8, Rule::AssignedId),
        column("name", Type::TEXT, Rule::UserName),
        column("version", Type::INT8, Rule::Version),
        column("created_at", Type::INT8, Rule::Time),
    ],
    key_columns: 1,
    rows: "users WHERE CAST($1 AS text) IS NULL OR users.name = $1",
    order: &["users.name"],
    users: &[],
    rule: |_| Ok(()),
};

pub(crate) static TOKENS: Table = Table {
    name: "tokens",
    title: "tokens",
    columns: &[
        column("token_id", Type::INT8, Rule::AssignedId),
        column("hash", Type::BYTEA, Rule::Hash),
        column("user_id", Type::INT8, Rule::Required),
        column("label", Type::TEXT, Rule::Label),
        column("scopes", Type::TEXT, Rule::Scopes),
        column("created_by", Type::TEXT, Rule::Creator),
        column("created_at", Type::INT8, Rule::Time),
        column("expires_at", Type::INT8, Rule::OptionalTime),
        column("revoked_at", Type::INT8, Rule::OptionalTime),
        column("last_used_at", Type::INT8, Rule::OptionalTime),
    ],
    key_columns: 1,
    rows: "tokens WHERE CAST($1 AS text) IS NULL",
    order: &["token_id"],
    users: &["user_id"],
    rule: |_| Ok(()),
};

pub(crate) static SHARES: Table = Table {
    name: "shares_by_name",
    title: "shares",
    columns: &[
        column("grantee_name", Type::TEXT, Rule::UserName),
        column("owner_id", Type::INT8, Rule::Required),
        column("role", Type::TEXT, Rule::Role),
        column("created_at", Type::INT8, Rule::Time),
        column("grantee_id", Type::INT8, Rule::Optional),
        column("declined_at", Type::INT8, Rule::OptionalTime),
    ],
    key_columns: 2,
    rows: "shares_by_name WHERE CAST($1 AS text) IS NULL",
    order: &["grantee_name", "owner_id"],
    users: &["owner_id", "grantee_id"],
    rule: |row| match row {
        [_, owner, _, _, grantee, _] if owner == grantee => Err("a user cannot share with themselves".to_owned()),
        [.., Cell::Integer(_), Cell::Integer(_)] => Err("it is both accepted and declined".to_owned()),
        _ => Ok(()),
    },
};

/// Idempotency keys. Those of deleted users are left out.
pub(crate) static KEYS: Table = Table {
    name: "idempotency_keys",
    title: "idempotency keys",
    columns: &[
        column("user_id", Type::INT8, Rule::Required),
        column("key", Type::BYTEA, Rule::Hash),
        column("fingerprint", Type::BYTEA, Rule::Hash),
        column("outcome", Type::INT4, Rule::Required),
        column("message", Type::TEXT, Rule::Message),
        column("expires_at", Type::INT8, Rule::Time),
    ],
    key_columns: 2,
    rows: "idempotency_keys JOIN users ON users.user_id = idempotency_keys.user_id WHERE CAST($1 AS text) IS NULL",
    order: &["idempotency_keys.user_id", "key"],
    users: &[],
    rule: |row| {
        // The status of a success, or an error code, which starts with its status.
        let outcomes = if row[4] == Cell::Null { 200..300 } else { 40_000..60_000 };
        match row[3] {
            Cell::Integer(outcome) if !outcomes.contains(&outcome) => {
                Err(format!("`outcome` is {outcome}, must be from {} to {}", outcomes.start, outcomes.end - 1))
            }
            _ => Ok(()),
        }
    },
};

/// Plants, with the names of their owners. Those of deleted users are left out.
pub(crate) static PLANTS: Table = Table {
    name: "plants",
    title: "plants",
    columns: &[
        column("user_id", Type::INT8, Rule::Required),
        column("plant_id", Type::INT8, Rule::Required),
        column("users.name", Type::TEXT, Rule::UserName),
        column("name", Type::TEXT, Rule::PlantName),
        column("tag", Type::TEXT, Rule::Tag),
        column("version", Type::INT8, Rule::Version),
    ],
    key_columns: 2,
    rows: "users JOIN plants ON plants.user_id = users.user_id WHERE CAST($1 AS text) IS NULL OR users.name = $1",
    order: &["users.name", "plant_id"],
    users: &[],
    rule: |_| Ok(()),
};

impl Table {
    /// All tables, in the order of a transfer.
    pub(crate) const ALL: [&'static Self; 5] = [&USERS, &TOKENS, &SHARES, &KEYS, &PLANTS];

    pub(crate) fn select_list(&self) -> String {
        let qualified = |column: &Column| {
            if column.is_joined() { column.name.to_owned() } else { format!("{}.{}", self.name, column.name) }
        };
        self.columns.iter().map(qualified).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn stored_columns(&self) -> impl Iterator<Item = &'static Column> {
        self.columns.iter().filter(|column| !column.is_joined())
    }

    /// Validates a row by the rules of the service, so that rows that another program wrote are not copied if they are invalid.
    fn check(&self, row: &[Cell]) -> Result<(), StoreError> {
        let faults = self.columns.iter().zip(row).map(|(column, cell)| column.check(cell));
        let fault = faults.chain([(self.rule)(row)]).find_map(Result::err);
        fault.map_or(Ok(()), |fault| Err(self.bad_row(row, &fault)))
    }

    /// Returns the error for a row, of which at least the first columns are known.
    pub(crate) fn bad_row(&self, row: &[Cell], fault: &str) -> StoreError {
        let value = |index| row.get(index).map_or_else(|| "?".to_owned(), Cell::to_string);
        let key = self.columns[..self.key_columns].iter().enumerate();
        let key = key.map(|(index, column)| format!("{} {}", column.name, value(index)));
        StoreError::BadRow(format!("table {}, {}: {fault}", self.name, key.collect::<Vec<_>>().join(", ")))
    }
}

pub(crate) fn names<'a>(columns: impl IntoIterator<Item = &'a Column>) -> String {
    columns.into_iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
}

impl Column {
    pub(crate) fn is_joined(&self) -> bool {
        self.name.contains('.')
    }

    fn check(&self, cell: &Cell) -> Result<(), String> {
        let name = self.name;
        let fault = |fault: &dyn fmt::Display| Err(format!("`{name}` {fault}"));
        match (self.rule, cell) {
            // The table of users has it, too.
            _ if self.is_joined() => Ok(()),
            // The maximum must not be in use, because there would be no id for the next.
            (Rule::AssignedId, Cell::Integer(id)) if !(1..i64::MAX).contains(id) => {
                Err(format!("`{name}` must be at least 1 and less than {}", i64::MAX))
            }
            // Versions are Unix time in microseconds. A version near the maximum would leave none for the next change.
            (Rule::Version, Cell::Integer(version)) if !(0..=Timestamp::MAX.as_microsecond()).contains(version) => {
                Err(format!("`{name}` is {version}, must be from 0 to {}", Timestamp::MAX.as_microsecond()))
            }
            (Rule::Time | Rule::OptionalTime, Cell::Integer(time)) if Timestamp::from_second(*time).is_err() => {
                fault(&"is not a valid time")
            }
            (Rule::UserName, Cell::Text(text)) => UserName::parse(text).map(drop).map_err(|fault| fault.to_string()),
            (Rule::Label, Cell::Text(text)) => {
                TokenLabel::parse_stored(text).map(drop).map_err(|fault| fault.to_string())
            }
            (Rule::Scopes, Cell::Text(text)) => match text.split(' ').find(|name| Scope::from_name(name).is_none()) {
                Some(unknown) => fault(&format_args!("has the unknown scope `{}`", Escaped(unknown))),
                None => Ok(()),
            },
            (Rule::Creator, Cell::Text(text)) if TokenCreator::parse(text).is_none() => {
                fault(&format_args!("is `{}`, which no release wrote", Escaped(text)))
            }
            (Rule::Role, Cell::Text(text)) if Role::from_name(text).is_none() => {
                fault(&format_args!("is `{}`, which is neither reader nor editor", Escaped(text)))
            }
            (Rule::PlantName, Cell::Text(text)) => PlantName::check(text).or_else(|error| fault(&error)),
            (Rule::Tag, Cell::Text(text)) => Tag::check(text).or_else(|error| fault(&error)),
            (Rule::Message, Cell::Text(text)) if text.chars().any(char::is_control) => {
                fault(&"must not hold control characters")
            }
            (Rule::Hash, Cell::Bytes(bytes)) if bytes.len() != 32 => {
                fault(&format_args!("has {} bytes, must have 32", bytes.len()))
            }
            (Rule::Optional | Rule::OptionalTime | Rule::Tag | Rule::Message, Cell::Null) => Ok(()),
            (_, cell) if cell.fits(&self.postgres_type) => Ok(()),
            _ => fault(&"has a value of another type"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Null,
    Integer(i64),
    /// Consecutive plants of one owner share the owner's name.
    Text(Arc<str>),
    Bytes(Box<[u8]>),
}

impl Cell {
    fn fits(&self, kind: &Type) -> bool {
        match self {
            Self::Null => false,
            Self::Integer(_) => [Type::INT4, Type::INT8].contains(kind),
            Self::Text(_) => *kind == Type::TEXT,
            Self::Bytes(_) => *kind == Type::BYTEA,
        }
    }

    fn len(&self) -> usize {
        if let Self::Text(text) = self { text.len() } else { 0 }
    }

    pub(crate) fn integer(&self) -> i64 {
        if let Self::Integer(number) = self { *number } else { 0 }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Appends the value to bytes from which it can be read back, so that different rows have different digests.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        let (kind, value): (u8, &[u8]) = match self {
            Self::Null => (0, &[]),
            Self::Integer(number) => (1, &number.to_be_bytes()),
            Self::Text(text) => (2, text.as_bytes()),
            Self::Bytes(value) => (3, value),
        };
        bytes.push(kind);
        bytes.extend((value.len() as u64).to_be_bytes());
        bytes.extend(value);
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => formatter.write_str("null"),
            Self::Integer(number) => number.fmt(formatter),
            Self::Text(text) => Escaped(text).fmt(formatter),
            Self::Bytes(bytes) => Hex(bytes).fmt(formatter),
        }
    }
}

impl rusqlite::ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl ToSql for Cell {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Integer(number) if *kind == Type::INT4 => i32::try_from(*number)?.to_sql(kind, out),
            Self::Integer(number) => number.to_sql(kind, out),
            Self::Text(text) => (&**text).to_sql(kind, out),
            Self::Bytes(bytes) => (&**bytes).to_sql(kind, out),
        }
    }

    fn accepts(kind: &Type) -> bool {
        [Type::INT4, Type::INT8, Type::TEXT, Type::BYTEA].contains(kind)
    }

    tokio_postgres::types::to_sql_checked!();
}

pub(crate) struct Chunk {
    pub(crate) table: &'static Table,
    cells: Vec<Cell>,
    bytes: usize,
}

impl Chunk {
    pub(crate) fn new(table: &'static Table) -> Self {
        Self { table, cells: Vec::new(), bytes: 0 }
    }

    pub(crate) fn rows(&self) -> impl ExactSizeIterator<Item = &[Cell]> {
        self.cells.chunks_exact(self.table.columns.len())
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.rows().try_for_each(|row| self.table.check(row))
    }

    /// Reads a row, of which `read` returns the value of a column.
    pub(crate) fn read<E: fmt::Display>(
        &mut self,
        mut read: impl FnMut(usize, &Column) -> Result<Cell, E>,
    ) -> Result<(), StoreError> {
        let start = self.cells.len();
        for (index, column) in self.table.columns.iter().enumerate() {
            let cell = match self.owner_before(start, column) {
                Some(owner) => owner,
                None => {
                    read(index, column).map_err(|fault| self.table.bad_row(&self.cells[start..], &fault.to_string()))?
                }
            };
            self.bytes += cell.len();
            self.cells.push(cell);
        }
        Ok(())
    }

    fn owner_before(&self, start: usize, column: &Column) -> Option<Cell> {
        let before = start.checked_sub(self.table.columns.len())?;
        let is_same = column.is_joined() && self.cells[before] == self.cells[start];
        is_same.then(|| self.cells[before + self.cells.len() - start].clone())
    }

    /// Returns the chunk if it is full. The next rows are added to a new one.
    pub(crate) fn take_full(&mut self) -> Option<Self> {
        let rows = self.cells.len() / self.table.columns.len();
        let is_full = rows == CHUNK_ROWS || self.bytes >= CHUNK_BYTES;
        is_full.then(|| std::mem::replace(self, Self::new(self.table)))
    }
}
