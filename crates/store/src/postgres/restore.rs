//! Restore into an empty database, in one transaction.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error};

use super::admin::AdminConnection;
use super::dialect::execute_each;
use super::rows::get;
use super::snapshot::{connect, start};
use crate::error::{RestoreError, StoreError};
use crate::options::SchemaChange;
use crate::transfer::{Column, ColumnType, LastIds, Record, Selection, Snapshot, SnapshotChunk, Value, names};
use crate::url::PostgresUrl;

/// An open transaction, which is rolled back when its connection is closed.
pub struct RestoreTarget {
    connection: AdminConnection,
    last_ids: LastIds,
}

impl RestoreTarget {
    pub(crate) async fn begin(
        url: &PostgresUrl,
        schema_change: SchemaChange,
        timeout: Duration,
    ) -> Result<Self, RestoreError> {
        // Blocks other writers; readers see an empty database. The transaction may be idle for long while the source counts and
        // sorts its rows.
        const LOCK: &[&str] = &[
            "BEGIN ISOLATION LEVEL READ COMMITTED",
            "SET LOCAL idle_in_transaction_session_timeout = 0",
            "LOCK TABLE plantstore.users, plantstore.collections, plantstore.plants IN SHARE ROW EXCLUSIVE MODE",
        ];
        const OCCUPIED: &str = "
            SELECT EXISTS (SELECT 1 FROM plantstore.users),
              EXISTS (SELECT 1 FROM plantstore.plants) OR EXISTS (SELECT 1 FROM plantstore.departed_users)";
        let (client, dialect, store_url) = connect(url, schema_change, timeout).await?;
        let connection = AdminConnection::new(client, dialect, timeout);
        connection.wait_for(execute_each(&connection.client, LOCK)).await?;
        let row = connection.wait_for(connection.client.query_one(OCCUPIED, &[])).await?;
        if get(&row, 0)? {
            return Err(RestoreError::Occupied(store_url, "users"));
        }
        if get(&row, 1)? {
            return Err(RestoreError::Occupied(store_url, "plants of deleted users"));
        }
        Ok(Self { connection, last_ids: LastIds::default() })
    }

    pub(crate) async fn put(&mut self, chunk: &SnapshotChunk) -> Result<(), StoreError> {
        if let SnapshotChunk::LastIds(ids) = chunk {
            self.last_ids = *ids;
        }
        let client = &*self.connection.client;
        let copying = async {
            match chunk {
                SnapshotChunk::Total(_) | SnapshotChunk::LastIds(_) => Ok(()),
                SnapshotChunk::Users(rows) => {
                    // The version of a user is in another table.
                    copy(client, "users", rows, |column| column.name != "version").await?;
                    copy(client, "collections", rows, |column| matches!(column.name, "user_id" | "version")).await
                }
                SnapshotChunk::Tokens(rows) => copy_all(client, rows).await,
                SnapshotChunk::Shares(rows) => copy_all(client, rows).await,
                SnapshotChunk::Keys(rows) => copy_all(client, rows).await,
                SnapshotChunk::Plants(rows) => copy_all(client, rows).await,
            }
        };
        self.connection.wait_for(copying).await
    }

    pub(crate) async fn contents(&mut self) -> Result<Snapshot, StoreError> {
        // The next id is higher than all copied ids and all ids that either store has assigned.
        const IDS: &str = "
            SELECT setval(ids, greatest(nextval(ids), $1::bigint, (SELECT max(user_id) FROM plantstore.users)))
            FROM pg_get_serial_sequence('plantstore.users', 'user_id') AS ids
            UNION ALL
            SELECT setval(ids, greatest(nextval(ids), $2::bigint, (SELECT max(token_id) FROM plantstore.tokens)))
            FROM pg_get_serial_sequence('plantstore.tokens', 'token_id') AS ids";
        let client = &self.connection.client;
        self.connection.wait_for(client.query(IDS, &[&self.last_ids.user, &self.last_ids.token])).await?;
        Ok(start(Arc::clone(client), Selection::Everything))
    }

    pub(crate) async fn finish(self) -> Result<(), RestoreError> {
        Ok(self.connection.commit("the connection to the database was lost during the commit").await?)
    }
}

async fn copy_all<T: Record>(client: &Client, rows: &[T]) -> Result<(), Error> {
    copy(client, T::TABLE.name, rows, |_| true).await
}

/// Copies some columns of rows into a table.
async fn copy<T: Record>(
    client: &Client,
    table: &str,
    rows: &[T],
    wanted: impl Fn(&Column) -> bool,
) -> Result<(), Error> {
    let columns: Vec<&Column> = T::TABLE.columns.iter().filter(|column| wanted(column)).collect();
    let types: Vec<Type> = columns.iter().map(|column| column_type(column)).collect();
    let statement = format!("COPY plantstore.{table} ({}) FROM STDIN BINARY", names(columns));
    let sink = client.copy_in(&statement).await?;
    let mut writer = pin!(BinaryCopyInWriter::new(sink, &types));
    for row in rows {
        let values = row.values().into_iter().zip(T::TABLE.columns).filter(|(_, column)| wanted(column));
        let values: Vec<_> = values.map(|(value, _): (&dyn Value, _)| value as &(dyn ToSql + Sync)).collect();
        writer.as_mut().write(&values).await?;
    }
    writer.finish().await.map(|_| ())
}

fn column_type(column: &Column) -> Type {
    match column.column_type {
        ColumnType::BigInt => Type::INT8,
        ColumnType::Integer => Type::INT4,
        ColumnType::Text => Type::TEXT,
        ColumnType::Bytes => Type::BYTEA,
    }
}
