//! A database that holds nothing, filled with what another store holds, in one transaction.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error};

use super::operator::OperatorConnection;
use super::rows::get;
use super::snapshot::{connect, start};
use crate::error::{RestoreError, StoreError};
use crate::transfer::{Chunk, Column, Kind, LastIds, Record, Selection, Snapshot, Value, names};
use crate::url::PostgresUrl;

/// A transaction on a connection of its own: it is rolled back when that ends.
pub struct RestoreTarget {
    connection: OperatorConnection,
    last_ids: LastIds,
}

impl RestoreTarget {
    pub(crate) async fn begin(url: &PostgresUrl, timeout: Duration) -> Result<Self, RestoreError> {
        // No other transaction writes until it is done; readers see an empty database. It may be idle for long: where the rows
        // come from, they may have to be counted and sorted first.
        const LOCK: &str = "
            BEGIN ISOLATION LEVEL READ COMMITTED;
            SET LOCAL idle_in_transaction_session_timeout = 0;
            LOCK TABLE plantstore.users, plantstore.collections, plantstore.plants IN SHARE ROW EXCLUSIVE MODE";
        const OCCUPIED: &str = "
            SELECT EXISTS (SELECT 1 FROM plantstore.users),
              EXISTS (SELECT 1 FROM plantstore.plants) OR EXISTS (SELECT 1 FROM plantstore.departed_users)";
        let (client, store_url) = connect(url, true, timeout).await?;
        let connection = OperatorConnection::new(client, timeout);
        connection.respond(connection.client.batch_execute(LOCK)).await?;
        let row = connection.respond(connection.client.query_one(OCCUPIED, &[])).await?;
        if get(&row, 0)? {
            return Err(RestoreError::Occupied(store_url, "users"));
        }
        if get(&row, 1)? {
            return Err(RestoreError::Occupied(store_url, "plants of deleted users"));
        }
        Ok(Self { connection, last_ids: LastIds::default() })
    }

    pub(crate) async fn put(&mut self, chunk: &Chunk) -> Result<(), StoreError> {
        if let Chunk::LastIds(ids) = chunk {
            self.last_ids = *ids;
        }
        let client = &*self.connection.client;
        let copying = async {
            match chunk {
                Chunk::Total(_) | Chunk::LastIds(_) => Ok(()),
                Chunk::Users(rows) => {
                    // The version of a user stands in a table of its own.
                    copy(client, "users", rows, |column| column.name != "version").await?;
                    copy(client, "collections", rows, |column| matches!(column.name, "user_id" | "version")).await
                }
                Chunk::Tokens(rows) => copy_all(client, rows).await,
                Chunk::Shares(rows) => copy_all(client, rows).await,
                Chunk::Keys(rows) => copy_all(client, rows).await,
                Chunk::Plants(rows) => copy_all(client, rows).await,
            }
        };
        self.connection.respond(copying).await
    }

    pub(crate) async fn contents(&mut self) -> Result<Snapshot, StoreError> {
        // The next id is beyond all that were copied, all that the other store has given out, and all that were given out here.
        const IDS: &str = "
            SELECT setval(ids, greatest(nextval(ids), $1::bigint, (SELECT max(user_id) FROM plantstore.users)))
            FROM pg_get_serial_sequence('plantstore.users', 'user_id') AS ids
            UNION ALL
            SELECT setval(ids, greatest(nextval(ids), $2::bigint, (SELECT max(token_id) FROM plantstore.tokens)))
            FROM pg_get_serial_sequence('plantstore.tokens', 'token_id') AS ids";
        let client = &self.connection.client;
        self.connection.respond(client.query(IDS, &[&self.last_ids.user, &self.last_ids.token])).await?;
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
    match column.kind {
        Kind::BigInt => Type::INT8,
        Kind::Integer => Type::INT4,
        Kind::Text => Type::TEXT,
        Kind::Bytes => Type::BYTEA,
    }
}
