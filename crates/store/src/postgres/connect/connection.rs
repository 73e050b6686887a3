//! Connections to the database: those that reconnect automatically, for which callers wait until a deadline, and those for
//! administrative operations, with a timeout for each step.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::{Client, Error, Statement};

use super::connector::{ConnectFailure, Connector, Dialect, Driver, OpenConnection, backoff, run_with_driver};
use super::error::{
    DatabaseError, LOST_DURING_COMMIT, NO_RESPONSE, certainly_not_committed, describe, is_rejection, store_error,
};
use super::metrics::ConnectionRole;
use super::statements::Statements;
use crate::error::StoreError;
use crate::postgres::citus::{Shard, ShardList};

/// Pause before a statement is retried because Citus could not reach a worker.
const WORKER_PAUSE: Duration = Duration::from_millis(250);

/// An established connection with its prepared statements.
pub(crate) struct DatabaseSession {
    pub(crate) client: Client,
    role: ConnectionRole,
    statements: Option<Arc<Statements>>,
    pub(crate) dialect: Dialect,
    /// Number of warnings that the server has sent. That about a statement is counted before its response arrives.
    pub(crate) warnings: Arc<AtomicU64>,
    responses: AtomicU64,
    discarded: AtomicBool,
    end: Notify,
    /// Statements that were prepared when they were first used.
    prepared: Mutex<HashMap<String, Statement>>,
    of_shards: Mutex<ShardStatements>,
}

/// Statements about the tables of shards, prepared when they were first used.
#[derive(Default)]
struct ShardStatements {
    /// The shards of the server, of which these statements are.
    shards: Arc<ShardList>,
    /// By the id of the shard; `None` if its tables cannot be used.
    prepared: HashMap<i64, Option<Arc<Statements>>>,
}

impl DatabaseSession {
    /// Returns the statements of a connection that reads or writes tables.
    pub(crate) fn statements(&self) -> &Arc<Statements> {
        self.statements.as_ref().expect("the statements of a reader or writer")
    }

    pub(crate) async fn prepared(&self, text: &str) -> Result<Statement, Error> {
        let known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let statement = self.client.prepare(text).await?;
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Returns the statements about the tables of one of these shards; `None` if they cannot be used, as they are on another server.
    pub(crate) async fn of_shard(
        &self,
        shards: &Arc<ShardList>,
        shard: &Shard,
    ) -> Result<Option<Arc<Statements>>, Error> {
        if let Some(known) = self.shard_statements(shards).prepared.get(&shard.id()) {
            return Ok(known.clone());
        }
        let mut prepared = None;
        if shard.is_of(&self.client).await? {
            prepared = match Statements::prepare(&self.client, self.role, |text| shard.statement(text)).await {
                Err(error) if !is_rejection(&error) => return Err(error),
                prepared => prepared.ok().flatten().map(Arc::new),
            };
        }
        self.shard_statements(shards).prepared.insert(shard.id(), prepared.clone());
        Ok(prepared)
    }

    /// Stops using the tables of shards until the shards of the server change. Returns false if they were not used.
    pub(crate) fn avoid_shards(&self, shards: &Arc<ShardList>) -> bool {
        let unusable = shards.shards.iter().map(|shard| (shard.id(), None)).collect();
        let used = std::mem::replace(&mut self.shard_statements(shards).prepared, unusable);
        used.values().any(Option::is_some)
    }

    fn shard_statements(&self, shards: &Arc<ShardList>) -> MutexGuard<'_, ShardStatements> {
        let mut statements = self.of_shards.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&statements.shards, shards) {
            *statements = ShardStatements { shards: Arc::clone(shards), prepared: HashMap::new() };
        }
        statements
    }

    /// Closes the connection, which is then replaced by a new one.
    pub(crate) fn discard(&self) {
        self.discarded.store(true, Ordering::Relaxed);
        self.end.notify_one();
    }

    fn is_usable(&self) -> bool {
        !self.discarded.load(Ordering::Relaxed) && !self.client.is_closed()
    }

    /// Waits until the deadline for the response to a query; `None` if the query should be retried.
    pub(crate) async fn wait_for<T>(
        &self,
        query: impl Future<Output = Result<T, Error>>,
        deadline: Instant,
    ) -> Result<Option<T>, StoreError> {
        let responses = self.responses.load(Ordering::Relaxed);
        match timeout_at(deadline, query).await {
            Ok(Ok(found)) => {
                self.responses.fetch_add(1, Ordering::Relaxed);
                Ok(Some(found))
            }
            Ok(Err(error)) => match DatabaseError::classify(&error) {
                DatabaseError::ConnectionLost(_) => {
                    self.discard();
                    Ok(None)
                }
                DatabaseError::Retryable(_) => Ok(None),
                DatabaseError::WorkerLost(text) => pause_for_worker(deadline, text).await.map(|()| None),
                DatabaseError::Permanent(error) => Err(error),
            },
            Err(_) => {
                // The connection stays open if it has responded to other queries meanwhile.
                if self.responses.load(Ordering::Relaxed) == responses {
                    self.discard();
                }
                Err(StoreError::Unavailable(NO_RESPONSE.to_owned()))
            }
        }
    }
}

/// Waits before a statement is retried because Citus could not reach a worker. Fails with the reason if
/// the deadline is earlier.
pub(crate) async fn pause_for_worker(deadline: Instant, reason: String) -> Result<(), StoreError> {
    if Instant::now() + WORKER_PAUSE >= deadline {
        return Err(StoreError::Unavailable(reason));
    }
    sleep(WORKER_PAUSE).await;
    Ok(())
}

enum DatabaseConnectionState {
    Up(Arc<DatabaseSession>),
    Down {
        since: Instant,
        /// Error of the last attempt to connect; empty before the first one fails.
        reason: String,
    },
}

/// A connection that reconnects when it is lost.
pub(crate) struct DatabaseConnection {
    connector: Arc<Connector>,
    role: ConnectionRole,
    state: watch::Sender<DatabaseConnectionState>,
    task: OnceLock<JoinHandle<()>>,
}

impl DatabaseConnection {
    /// Returns a connection that is opened when it is first needed.
    pub(crate) fn new(connector: &Arc<Connector>, role: ConnectionRole) -> Self {
        let (state, _) = watch::channel(DatabaseConnectionState::Down { since: Instant::now(), reason: String::new() });
        Self { connector: Arc::clone(connector), role, state, task: OnceLock::new() }
    }

    /// Returns the session if the connection is open.
    pub(crate) fn ready(&self) -> Option<Arc<DatabaseSession>> {
        match &*self.state.borrow() {
            DatabaseConnectionState::Up(session) if session.is_usable() => Some(Arc::clone(session)),
            _ => None,
        }
    }

    /// Starts connecting, unless that has started already.
    pub(crate) fn start(&self) {
        self.task.get_or_init(|| tokio::spawn(maintain(Arc::clone(&self.connector), self.role, self.state.clone())));
    }

    pub(crate) fn is_started(&self) -> bool {
        self.task.get().is_some()
    }

    /// Waits for a session until the deadline. Fails immediately if the connection has been down for longer than the timeout, and
    /// no other one to the server was opened meanwhile.
    pub(crate) async fn session(&self, deadline: Instant) -> Result<Arc<DatabaseSession>, StoreError> {
        self.start();
        let mut state = self.state.subscribe();
        loop {
            let mut last = String::new();
            match &*state.borrow_and_update() {
                DatabaseConnectionState::Up(session) if session.is_usable() => return Ok(Arc::clone(session)),
                DatabaseConnectionState::Up(_) => {}
                DatabaseConnectionState::Down { since, reason } => {
                    let is_lost = !reason.is_empty() && since.elapsed() > self.connector.timeout;
                    if is_lost && !self.connector.has_opened() {
                        return Err(StoreError::Unavailable(reason.clone()));
                    }
                    last.clone_from(reason);
                }
            }
            if !matches!(timeout_at(deadline, state.changed()).await, Ok(Ok(()))) {
                let reason = if last.is_empty() { "no connection in time".to_owned() } else { last };
                return Err(StoreError::Unavailable(reason));
            }
        }
    }
}

impl Drop for DatabaseConnection {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

async fn maintain(connector: Arc<Connector>, role: ConnectionRole, state: watch::Sender<DatabaseConnectionState>) {
    let mut since = Instant::now();
    let mut failures = 0;
    loop {
        let mut opened = connector.opened.subscribe();
        match establish(&connector, role).await {
            Ok((session, mut driver)) => {
                if failures > 0 {
                    tracing::info!(role = role.name(), "reconnected to the database");
                }
                failures = 0;
                let _open = connector.metrics.connected(role);
                connector.opened.send_replace(Some(Instant::now()));
                state.send_replace(DatabaseConnectionState::Up(Arc::clone(&session)));
                let ended = tokio::select! {
                    ended = &mut driver => ended,
                    () = session.end.notified() => Ok(()),
                };
                since = Instant::now();
                state.send_replace(DatabaseConnectionState::Down { since, reason: String::new() });
                let error = ended.err().map(|error| describe(&error));
                tracing::warn!(role = role.name(), error, "database connection lost");
            }
            Err(failure) => {
                let reason = failure.describe();
                connector.metrics.failed(role);
                if failures == 0 {
                    tracing::warn!(role = role.name(), error = reason, "cannot connect to the database: retrying");
                }
                state.send_replace(DatabaseConnectionState::Down { since, reason });
                tokio::select! {
                    () = sleep(backoff(failures)) => {}
                    _ = opened.changed() => {}
                }
                failures += 1;
            }
        }
    }
}

async fn establish(
    connector: &Connector,
    role: ConnectionRole,
) -> Result<(Arc<DatabaseSession>, Driver), ConnectFailure> {
    let OpenConnection { client, mut driver, dialect, warnings } = connector.connect(role).await?;
    let preparing = Statements::prepare(&client, role, |text| dialect.statement(text));
    let statements = match timeout(connector.connect_timeout(), run_with_driver(&mut driver, preparing)).await {
        Ok(prepared) => prepared.map_err(ConnectFailure::Error)?.map(Arc::new),
        Err(_) => return Err(ConnectFailure::TimedOut),
    };
    let session = DatabaseSession {
        client,
        role,
        statements,
        dialect,
        warnings,
        responses: AtomicU64::new(0),
        discarded: AtomicBool::new(false),
        end: Notify::new(),
        prepared: Mutex::default(),
        of_shards: Mutex::default(),
    };
    Ok((Arc::new(session), driver))
}

/// A connection for administrative operations. Its clones are the same connection.
#[derive(Clone)]
pub(crate) struct AdminConnection {
    pub(crate) client: Arc<Client>,
    pub(crate) dialect: Dialect,
    timeout: Duration,
}

impl AdminConnection {
    pub(crate) fn new(client: Client, dialect: Dialect, timeout: Duration) -> Self {
        Self { client: Arc::new(client), dialect, timeout }
    }

    pub(crate) async fn open(connector: &Connector, timeout: Duration) -> Result<Self, StoreError> {
        let connected = connector.connect(ConnectionRole::Admin).await;
        let OpenConnection { client, driver, dialect, .. } =
            connected.map_err(|failure| StoreError::Unavailable(failure.describe()))?;
        tokio::spawn(driver);
        Ok(Self::new(client, dialect, timeout))
    }

    pub(crate) async fn wait_for<T>(&self, response: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
        wait_for_response(self.timeout, response).await
    }

    pub(crate) async fn commit(&self) -> Result<(), StoreError> {
        match tokio::time::timeout(self.timeout, self.client.batch_execute("COMMIT")).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if certainly_not_committed(&error) => Err(store_error(&error)),
            Ok(Err(_)) | Err(_) => Err(StoreError::OutcomeUnknown(LOST_DURING_COMMIT)),
        }
    }
}

/// Waits for a response of the database; [`StoreError::Unavailable`] after the timeout.
pub(crate) async fn wait_for_response<T>(
    timeout: Duration,
    response: impl Future<Output = Result<T, Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(timeout, response).await {
        Ok(response) => response.map_err(|error| store_error(&error)),
        Err(_) => Err(StoreError::Unavailable(NO_RESPONSE.to_owned())),
    }
}
