//! Connections for reads. Concurrent queries are pipelined on them, and those of versions are shared, so that a busy node costs the
//! database little.

use std::borrow::Cow;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{TryStreamExt, pin_mut};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{Client, Error, Row, Statement};

use crate::error::StoreError;
use crate::plants::Version;
use crate::postgres::citus::{Shard, ShardList, Shards};
use crate::postgres::connect::{
    ConnectionRole, Connector, DatabaseConnection, DatabaseSession, NO_RESPONSE, PostgresMetrics, ReadStatements,
    describe, is_about_tables, versions,
};
use crate::sql::{ReadableValue, RowSource};
use plantstore_model::user::UserId;
use plantstore_telemetry::spans;

/// Maximum number of requests that share a statement, and of further requests that wait.
const REQUESTS_MAX: usize = 128;

pub(crate) struct Readers {
    connections: Vec<DatabaseConnection>,
    shards: Arc<Shards>,
    next: AtomicUsize,
    timeout: Duration,
    metrics: Arc<PostgresMetrics>,
}

impl Readers {
    pub(crate) fn new(connector: &Arc<Connector>, count: usize, shards: &Arc<Shards>) -> Self {
        Self {
            shards: Arc::clone(shards),
            connections: (0..count).map(|_| DatabaseConnection::new(connector, ConnectionRole::Read)).collect(),
            next: AtomicUsize::new(0),
            timeout: connector.timeout,
            metrics: Arc::clone(&connector.metrics),
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connections.iter().any(|connection| connection.ready().is_some())
    }

    /// Returns true if connections were opened, and none of them is open any more.
    pub(crate) fn are_lost(&self) -> bool {
        !self.is_connected() && self.connections.iter().any(DatabaseConnection::is_started)
    }

    /// Returns the rows of a prepared statement about one user, up to a number of bytes.
    pub(crate) async fn rows_of(
        &self,
        user: UserId,
        statement: impl Fn(&ReadStatements) -> &Statement,
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
                let found = fetch(&session.client, statement(statements.of_reader()), values, bytes_max).await;
                if !is_elsewhere(&found) {
                    return found;
                }
            }
            fetch(&session.client, statement(session.statements().of_reader()), values, bytes_max).await
        })
        .await
    }

    /// Returns the rows of a statement, which is prepared once for each connection. The one about copies of its tables is executed first.
    pub(crate) async fn query(
        &self,
        of_copies: Option<&str>,
        text: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let found = self.read(|session| async move {
            if let Some(text) = of_copies {
                let found = fetch_prepared(&session, text, values).await;
                if !is_elsewhere(&found) {
                    return found;
                }
            }
            fetch_prepared(&session, text, values).await
        });
        Ok(found.await?.rows)
    }

    /// Returns the versions of the users who exist, read on this connection, or on another one while it is not open.
    pub(crate) async fn versions_from(
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
                    found if is_elsewhere(&found) => {}
                    found => versions = self::versions(&found?.rows)?,
                }
            }
            // Users who do not exist, or whose shard may be on another server.
            let others: Vec<i64> = users.iter().copied().filter(|id| !versions.contains_key(id)).collect();
            if !others.is_empty() {
                let found =
                    fetch(&session.client, &session.statements().of_reader().versions, &[others], usize::MAX).await?;
                versions.extend(self::versions(&found.rows)?);
            }
            Ok(versions)
        })
        .await
    }

    /// Runs a read query on the next connection in turn. Retries it until the deadline if the connection is lost.
    pub(crate) async fn read<T, F: Future<Output = Result<T, Error>>>(
        &self,
        query: impl Fn(Arc<DatabaseSession>) -> F,
    ) -> Result<T, StoreError> {
        self.read_from(self.next.fetch_add(1, Ordering::Relaxed), query).await
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
                self.metrics.queries.time(sent.elapsed());
                begun.end("read");
                return Ok(found);
            }
        }
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

pub(crate) struct FoundRows {
    pub(crate) rows: Vec<Row>,
    pub(crate) has_more: bool,
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

/// Returns the rows of a statement, which stays prepared.
async fn fetch_prepared(
    session: &DatabaseSession,
    text: &str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<FoundRows, Error> {
    let statement = session.prepared(text).await?;
    Ok(FoundRows { rows: session.client.query(&statement, values).await?, has_more: false })
}

/// Returns true if a statement about the tables of shards found no rows or cannot use a table: the shards may be on another server.
fn is_elsewhere(found: &Result<FoundRows, Error>) -> bool {
    match found {
        Ok(found) => found.rows.is_empty(),
        Err(error) => is_about_tables(error),
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

type Versions = Vec<Option<Version>>;
type Requests = Arc<Mutex<mpsc::Receiver<VersionRequest>>>;

struct VersionRequest {
    users: Vec<UserId>,
    reply: oneshot::Sender<Result<Versions, StoreError>>,
}

/// Reads versions of users with shared statements. Handle of the tasks that send them, which end when this is dropped.
///
/// A request must see every write that was acknowledged before it. So it shares a statement that is sent after it, never one that is
/// already sent. While the maximum number of statements is in flight, requests wait for the next one: the busier the node, the more
/// requests share a statement.
pub(crate) struct VersionReader {
    readers: Arc<Readers>,
    requests: mpsc::Sender<VersionRequest>,
}

impl VersionReader {
    /// Starts tasks for this number of statements in flight, each on its own read connection.
    pub(crate) fn start(readers: &Arc<Readers>, statements: usize) -> Self {
        let (requests, received) = mpsc::channel(REQUESTS_MAX);
        let received = Arc::new(Mutex::new(received));
        for connection in 0..statements {
            tokio::spawn(send_statements(Arc::clone(readers), connection, Arc::clone(&received)));
        }
        Self { readers: Arc::clone(readers), requests }
    }

    pub(crate) async fn read(&self, users: &[UserId]) -> Result<Versions, StoreError> {
        let begun = spans::begin();
        let deadline = Instant::now() + self.readers.timeout;
        let (reply, response) = oneshot::channel();
        let request = VersionRequest { users: users.to_vec(), reply };
        let reading = async {
            self.requests.send(request).await.ok()?;
            response.await.ok()
        };
        let versions = timeout_at(deadline, reading).await;
        begun.end("read");
        match versions {
            Ok(Some(versions)) => versions,
            Ok(None) => Err(StoreError::Internal("the task that reads versions ended".to_owned())),
            Err(_) => Err(StoreError::Unavailable(NO_RESPONSE.to_owned())),
        }
    }
}

/// Sends one statement after the other, each for all requests that wait, on this connection if it is open.
async fn send_statements(readers: Arc<Readers>, connection: usize, requests: Requests) {
    loop {
        let mut batch = Vec::new();
        if requests.lock().await.recv_many(&mut batch, REQUESTS_MAX).await == 0 {
            return;
        }
        let readers = Arc::clone(&readers);
        // A task of its own, so that a panic only ends this statement.
        let _ = tokio::spawn(async move { reply_to_all(&readers, connection, batch).await }).await;
    }
}

async fn reply_to_all(readers: &Readers, connection: usize, mut batch: Vec<VersionRequest>) {
    // These clients have disconnected, or their deadline is over.
    batch.retain(|request| !request.reply.is_closed());
    if batch.is_empty() {
        return;
    }
    let mut users: Vec<i64> = batch.iter().flat_map(|request| &request.users).map(|user| user.get()).collect();
    users.sort_unstable();
    users.dedup();
    let found = readers.versions_from(connection, &users).await;
    for VersionRequest { users, reply } in batch {
        let version = |user: &UserId| found.as_ref().map(|found| found.get(&user.get()).copied().map(Version::new));
        let versions = users.iter().map(version).collect::<Result<Versions, _>>();
        // Fails if the client has disconnected.
        let _ = reply.send(versions.map_err(StoreError::clone));
    }
}
