//! Connections for reads. Concurrent queries are pipelined on them.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::TryStreamExt;
use tokio::time::Instant;
use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{Error, Row, Statement};

use crate::error::StoreError;
use crate::postgres::connect::{Connector, DatabaseConnection, DatabaseSession, describe};
use crate::postgres::connection_role::ConnectionRole;
use crate::postgres::metrics::PostgresMetrics;
use crate::sql::{ReadableValue, RowSource};
use plantstore_telemetry::spans;

pub(in crate::postgres) struct Readers {
    connections: Vec<DatabaseConnection>,
    next: AtomicUsize,
    timeout: Duration,
    metrics: Arc<PostgresMetrics>,
}

impl Readers {
    pub(in crate::postgres) fn new(connector: &Arc<Connector>, count: usize) -> Self {
        Self {
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

    /// Returns the rows of a prepared statement, read on the next connection in turn.
    pub(in crate::postgres) async fn rows<P: ToSql + Sync + Send + Clone, const N: usize>(
        &self,
        statement: impl Fn(&DatabaseSession) -> &Statement,
        values: [P; N],
    ) -> Result<Vec<Row>, StoreError> {
        self.rows_from(self.next_in_turn(), statement, values).await
    }

    /// Returns the rows of a prepared statement, read on this connection, or on another one while it is not open.
    pub(in crate::postgres) async fn rows_from<P: ToSql + Sync + Send + Clone, const N: usize>(
        &self,
        connection: usize,
        statement: impl Fn(&DatabaseSession) -> &Statement,
        values: [P; N],
    ) -> Result<Vec<Row>, StoreError> {
        let statement = &statement;
        self.read_from(connection, |session| {
            let values = values.clone();
            async move {
                let stream = session.client.query_raw(statement(&session), &values).await?;
                stream.try_collect().await
            }
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
