//! Connections for reads. Concurrent queries are pipelined on them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{TryStreamExt, pin_mut};
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{Client, Error, Row, Statement};

use crate::error::StoreError;
use crate::postgres::citus::{Shard, ShardList, Shards};
use crate::postgres::connect::{Connector, DatabaseConnection, DatabaseSession, describe};
use crate::postgres::connection_role::ConnectionRole;
use crate::postgres::metrics::PostgresMetrics;
use crate::postgres::statements::{Statements, versions};
use crate::sql::{ReadableValue, RowSource};
use plantstore_model::user::UserId;
use plantstore_telemetry::spans;

pub(in crate::postgres) struct Readers {
    connections: Vec<DatabaseConnection>,
    shards: Arc<Shards>,
    next: AtomicUsize,
    timeout: Duration,
    metrics: Arc<PostgresMetrics>,
}

impl Readers {
    pub(in crate::postgres) fn new(connector: &Arc<Connector>, count: usize, shards: &Arc<Shards>) -> Self {
        Self {
            shards: Arc::clone(shards),
            connections: (0..count).map(|_| DatabaseConnection::new(connector, ConnectionRole::Read)).collect(),
            next: AtomicUsize::new(0),
            timeout: connector.timeout,
            metrics: Arc::clone(&connector.metrics),
        }
    }

    pub(in crate::postgres) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns true if a connection is open.
    pub(in crate::postgres) fn is_connected(&self) -> bool {
        self.connections.iter().any(|connection| connection.ready().is_some())
    }

    /// Returns true if connections were opened, and none of them is open any more.
    pub(in crate::postgres) fn are_lost(&self) -> bool {
        !self.is_connected() && self.connections.iter().any(DatabaseConnection::is_started)
    }

    /// Returns the rows of a prepared statement, read on the next connection in turn.
    pub(in crate::postgres) async fn rows<P: ToSql + Sync, const N: usize>(
        &self,
        statement: impl Fn(&Statements) -> &Statement,
        values: [P; N],
    ) -> Result<Vec<Row>, StoreError> {
        let (statement, values) = (&statement, &values);
        let found = self.read(|session| async move {
            fetch(&session.client, statement(&session.statements), values, usize::MAX).await
        });
        Ok(found.await?.rows)
    }

    /// Returns the rows of a prepared statement about one user, up to a number of bytes.
    pub(in crate::postgres) async fn rows_of(
        &self,
        user: UserId,
        statement: impl Fn(&Statements) -> &Statement,
        values: &[i64],
        bytes_max: usize,
    ) -> Result<FoundRows, StoreError> {
        let statement = &statement;
        let shards = &self.shards.get();
        let shard = shards.of(user.get());
        self.read(|session| async move {
            if let Some(shard) = shard
                && let Some(statements) = session.of_shard(shards, shard).await?
            {
                let found = fetch(&session.client, statement(&statements), values, bytes_max).await;
                // Without rows, the shard may be on another server.
                if !matches!(&found, Ok(found) if found.rows.is_empty()) && !is_without_shard(&found) {
                    return found;
                }
            }
            fetch(&session.client, statement(&session.statements), values, bytes_max).await
        })
        .await
    }

    /// Returns the versions of the users who exist, read on this connection, or on another one while it is not open.
    pub(in crate::postgres) async fn versions_from(
        &self,
        connection: usize,
        users: &[i64],
    ) -> Result<HashMap<i64, i64>, StoreError> {
        let shards = &self.shards.get();
        self.read_from(connection, |session| async move {
            let mut versions = HashMap::new();
            if has_all(&session, shards).await? {
                let of_shard =
                    |shard: &Shard| users.iter().copied().filter(|id| shard.contains(*id)).collect::<Vec<_>>();
                let of_shards: Vec<Vec<i64>> = shards.shards.iter().map(of_shard).collect();
                let found = async {
                    let statement = session.prepared(&shards.versions).await?;
                    fetch(&session.client, &statement, &of_shards, usize::MAX).await
                };
                match found.await {
                    found if is_without_shard(&found) => {}
                    found => versions = self::versions(&found?.rows)?,
                }
            }
            // Users who do not exist, or whose shard may be on another server.
            let others: Vec<i64> = users.iter().copied().filter(|id| !versions.contains_key(id)).collect();
            if !others.is_empty() {
                let found = fetch(&session.client, &session.statements.versions, &[others], usize::MAX).await?;
                versions.extend(self::versions(&found.rows)?);
            }
            Ok(versions)
        })
        .await
    }

    /// Runs a read query on the next connection in turn. Retries it until the deadline if the connection is lost.
    pub(in crate::postgres) async fn read<T, F: Future<Output = Result<T, Error>>>(
        &self,
        query: impl Fn(Arc<DatabaseSession>) -> F,
    ) -> Result<T, StoreError> {
        self.read_from(self.next_in_turn(), query).await
    }

    async fn read_from<T, F: Future<Output = Result<T, Error>>>(
        &self,
        connection: usize,
        query: impl Fn(Arc<DatabaseSession>) -> F,
    ) -> Result<T, StoreError> {
        let begun = spans::begin();
        let deadline = Instant::now() + self.timeout;
        loop {
            let session = self.session(connection, deadline).await?;
            let sent = Instant::now();
            if let Some(found) = session.wait_for(query(Arc::clone(&session)), deadline).await? {
                self.metrics.database.queries.time(sent.elapsed());
                begun.end("read");
                return Ok(found);
            }
        }
    }

    fn next_in_turn(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the session of this connection. While it is not open, returns that of another one, or waits.
    async fn session(&self, first: usize, deadline: Instant) -> Result<Arc<DatabaseSession>, StoreError> {
        let connection = |offset: usize| &self.connections[first.wrapping_add(offset) % self.connections.len()];
        // Opens this connection, even if another one is used this time.
        connection(0).start();
        match (0..self.connections.len()).find_map(|offset| connection(offset).ready()) {
            Some(session) => Ok(session),
            None => connection(0).session(deadline).await,
        }
    }
}

/// Rows of a statement.
pub(in crate::postgres) struct FoundRows {
    pub(in crate::postgres) rows: Vec<Row>,
    /// True if there are more rows.
    pub(in crate::postgres) has_more: bool,
}

/// Returns the rows of a statement until they have this number of bytes.
async fn fetch<P: ToSql + Sync>(
    client: &Client,
    statement: &Statement,
    values: &[P],
    bytes_max: usize,
) -> Result<FoundRows, Error> {
    let stream = client.query_raw(statement, values).await?;
    pin_mut!(stream);
    let mut rows = Vec::new();
    let mut bytes = 0;
    while bytes < bytes_max
        && let Some(row) = stream.try_next().await?
    {
        bytes += row.raw_size_bytes();
        rows.push(row);
    }
    let has_more = bytes >= bytes_max && stream.try_next().await?.is_some();
    Ok(FoundRows { rows, has_more })
}

/// Returns true if a server has the tables of all these shards.
async fn has_all(session: &DatabaseSession, shards: &Arc<ShardList>) -> Result<bool, Error> {
    for shard in &shards.shards {
        if session.of_shard(shards, shard).await?.is_none() {
            return Ok(false);
        }
    }
    Ok(!shards.shards.is_empty())
}

/// Returns true if a table of a shard does not exist any more.
fn is_without_shard<T>(found: &Result<T, Error>) -> bool {
    found.as_ref().is_err_and(|error| error.code() == Some(&SqlState::UNDEFINED_TABLE))
}

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
