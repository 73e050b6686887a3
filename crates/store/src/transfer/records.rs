//! Records of a snapshot: one type per table, defined once for both engines. A new column is a new field of its record.

use std::sync::Arc;

use serde::Serialize;

use super::table::{Column, Table, Value};
use crate::sql::RowSource;

/// Maximum number of rows and of bytes of plants in a chunk.
const CHUNK_ROWS: usize = 4_096;
const CHUNK_BYTES: usize = 256 * 1024;

/// A row of a table.
pub(crate) trait Record: Sized {
    const TABLE: &'static Table;

    /// Reads a row with the columns of [`Table::select_list`]. `previous` is the row before it in the chunk.
    fn read<R: RowSource>(row: &R, previous: Option<&Self>) -> Result<Self, R::Error>;

    /// Returns the values in the order of the table's columns.
    fn values(&self) -> Vec<&dyn Value>;

    fn into_chunk(rows: Vec<Self>) -> SnapshotChunk;

    /// Returns the approximate size of a record that may be large.
    fn bytes(&self) -> usize {
        0
    }
}

macro_rules! record {
    (
        $(#[$about:meta])* $record:ident of $table:literal, $key_columns:literal in key, as $chunk:ident;
        $($field:ident: $type:ty = $column:literal,)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, Serialize)]
        pub struct $record {
            $(pub $field: $type,)*
        }

        impl Record for $record {
            const TABLE: &'static Table = &Table {
                name: $table,
                columns: &[$(Column::of::<$type>($column)),*],
                key_columns: $key_columns,
                joined: &[],
            };

            fn read<R: RowSource>(row: &R, _previous: Option<&Self>) -> Result<Self, R::Error> {
                let mut columns = 0..Self::TABLE.columns.len();
                Ok(Self { $($field: row.field::<$type>(columns.next().unwrap_or_default())?,)* })
            }

            fn values(&self) -> Vec<&dyn Value> {
                vec![$(&self.$field),*]
            }

            fn into_chunk(rows: Vec<Self>) -> SnapshotChunk {
                SnapshotChunk::$chunk(rows)
            }
        }
    };
}

record! {
    UserRecord of "users", 1 in key, as Users;
    id: i64 = "user_id",
    name: String = "name",
    version: i64 = "version",
    created_at: i64 = "created_at",
}

record! {
    TokenRecord of "tokens", 1 in key, as Tokens;
    id: i64 = "token_id",
    hash: Vec<u8> = "hash",
    user_id: i64 = "user_id",
    label: String = "label",
    scopes: String = "scopes",
    created_by: String = "created_by",
    created_at: i64 = "created_at",
    expires_at: Option<i64> = "expires_at",
    revoked_at: Option<i64> = "revoked_at",
    last_used_at: Option<i64> = "last_used_at",
}

record! {
    ShareRecord of "shares_by_name", 2 in key, as Shares;
    grantee_name: String = "grantee_name",
    owner_id: i64 = "owner_id",
    role: String = "role",
    created_at: i64 = "created_at",
    grantee_id: Option<i64> = "grantee_id",
    declined_at: Option<i64> = "declined_at",
}

record! {
    /// An idempotency key.
    KeyRecord of "idempotency_keys", 2 in key, as Keys;
    user_id: i64 = "user_id",
    key: Vec<u8> = "key",
    fingerprint: Vec<u8> = "fingerprint",
    outcome: i32 = "outcome",
    message: Option<String> = "message",
    expires_at: i64 = "expires_at",
}

#[derive(Clone, Debug)]
pub struct PlantRecord {
    pub user_id: i64,
    pub id: i64,
    /// Name of the owner, from the table of users. Consecutive plants of one owner share it.
    pub owner: Arc<str>,
    pub name: String,
    pub tag: Option<String>,
    pub version: i64,
}

impl Record for PlantRecord {
    const TABLE: &'static Table = &Table {
        name: "plants",
        columns: &[
            Column::of::<i64>("user_id"),
            Column::of::<i64>("plant_id"),
            Column::of::<String>("name"),
            Column::of::<Option<String>>("tag"),
            Column::of::<i64>("version"),
        ],
        key_columns: 2,
        joined: &["users.name"],
    };

    fn read<R: RowSource>(row: &R, previous: Option<&Self>) -> Result<Self, R::Error> {
        let user_id = row.field(0)?;
        let owner = match previous {
            Some(previous) if previous.user_id == user_id => Arc::clone(&previous.owner),
            _ => row.field::<String>(2)?.into(),
        };
        let (id, name, tag, version) = (row.field(1)?, row.field(3)?, row.field(4)?, row.field(5)?);
        Ok(Self { user_id, id, owner, name, tag, version })
    }

    fn values(&self) -> Vec<&dyn Value> {
        vec![&self.user_id, &self.id, &self.name, &self.tag, &self.version]
    }

    fn into_chunk(rows: Vec<Self>) -> SnapshotChunk {
        SnapshotChunk::Plants(rows)
    }

    fn bytes(&self) -> usize {
        self.name.len() + self.tag.as_ref().map_or(0, String::len)
    }
}

/// Number of rows per table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub users: u64,
    /// Including revoked and expired ones.
    pub tokens: u64,
    /// Including offers.
    pub shares: u64,
    pub keys: u64,
    pub plants: u64,
}

/// The highest ids that a store has assigned, 0 for none. They include deleted users and tokens, because ids are never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastIds {
    pub user: i64,
    pub token: i64,
}

/// A message of a snapshot: mostly some rows of one table. Chunks come in the order of the variants.
#[derive(Clone, Debug)]
pub enum SnapshotChunk {
    /// Number of all rows; one chunk.
    Total(Counts),
    /// The ids that must not be assigned again; one chunk.
    LastIds(LastIds),
    /// In bytewise order of names.
    Users(Vec<UserRecord>),
    /// In the order of ids.
    Tokens(Vec<TokenRecord>),
    /// In bytewise order of the grantees' names, and of owner ids.
    Shares(Vec<ShareRecord>),
    /// In the order of user ids and keys.
    Keys(Vec<KeyRecord>),
    /// In bytewise order of the owners' names, and of ids.
    Plants(Vec<PlantRecord>),
}

/// Collects rows into chunks of limited size.
pub(crate) struct ChunkBuilder<T> {
    rows: Vec<T>,
    bytes: usize,
}

impl<T: Record> ChunkBuilder<T> {
    pub(crate) const fn new() -> Self {
        Self { rows: Vec::new(), bytes: 0 }
    }

    pub(crate) fn read<R: RowSource>(&mut self, row: &R) -> Result<(), R::Error> {
        let record = T::read(row, self.rows.last())?;
        self.bytes += record.bytes();
        self.rows.push(record);
        Ok(())
    }

    /// Returns the chunk if it is full.
    pub(crate) fn take_full(&mut self) -> Option<SnapshotChunk> {
        let full = self.rows.len() == CHUNK_ROWS || self.bytes >= CHUNK_BYTES;
        full.then(|| {
            self.bytes = 0;
            T::into_chunk(std::mem::replace(&mut self.rows, Vec::with_capacity(CHUNK_ROWS)))
        })
    }

    /// Returns the last chunk, which may be empty.
    pub(crate) fn finish(self) -> SnapshotChunk {
        T::into_chunk(self.rows)
    }
}
