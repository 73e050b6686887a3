//! Connections to the database that are made again whenever they break. A caller waits for one until a deadline and no longer.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::{Client, Error};

use super::connector::{Connector, Driver, Failure, backoff, driven};
use super::database_error::{DatabaseError, SILENT, describe};
use super::role::ConnectionRole;
use super::statements::{Prepared, Statements};
use crate::error::StoreError;

/// A connection that is ready for use.
pub(super) struct Session<S = Statements> {
    pub(super) client: Client,
    pub(super) statements: S,
    responses: AtomicU64,
    discarded: AtomicBool,
    end: Notify,
}

impl<S> Session<S> {
    /// Gives the connection up: it is closed, and another one is made.
    pub(super) fn discard(&self) {
        self.discarded.store(true, Ordering::Relaxed);
        self.end.notify_one();
    }

    fn is_usable(&self) -> bool {
        !self.discarded.load(Ordering::Relaxed) && !self.client.is_closed()
    }

    fn responses(&self) -> u64 {
        self.responses.load(Ordering::Relaxed)
    }

    fn responded(&self) {
        self.responses.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the deadline for the response to a query; `None` when it is to be sent again.
    pub(super) async fn respond<T>(
        &self,
        query: impl Future<Output = Result<T, Error>>,
        deadline: Instant,
    ) -> Result<Option<T>, StoreError> {
        let responses = self.responses();
        match timeout_at(deadline, query).await {
            Ok(Ok(found)) => {
                self.responded();
                Ok(Some(found))
            }
            Ok(Err(error)) => match DatabaseError::classify(&error) {
                DatabaseError::ConnectionLost(_) => {
                    self.discard();
                    Ok(None)
                }
                DatabaseError::Retryable(_) => Ok(None),
                DatabaseError::Permanent(error) => Err(error),
            },
            Err(_) => {
                // Slow is not dead: a connection that has responded to others meanwhile stays open.
                if self.responses() == responses {
                    self.discard();
                }
                Err(StoreError::Unavailable(SILENT.to_owned()))
            }
        }
    }
}

enum State<S> {
    Up(Arc<Session<S>>),
    Down {
        since: Instant,
        /// Empty until an attempt has failed.
        reason: String,
    },
}

/// A connection that is made again whenever it breaks.
pub(super) struct Connection<S = Statements> {
    connector: Arc<Connector>,
    role: ConnectionRole,
    state: watch::Sender<State<S>>,
    task: OnceLock<JoinHandle<()>>,
}

impl<S: Prepared> Connection<S> {
    /// Returns a connection that is made when it is first needed.
    pub(super) fn new(connector: &Arc<Connector>, role: ConnectionRole) -> Self {
        let (state, _) = watch::channel(State::Down { since: Instant::now(), reason: String::new() });
        Self { connector: Arc::clone(connector), role, state, task: OnceLock::new() }
    }

    /// Returns the session, if there is one at this moment.
    pub(super) fn ready(&self) -> Option<Arc<Session<S>>> {
        match &*self.state.borrow() {
            State::Up(session) if session.is_usable() => Some(Arc::clone(session)),
            _ => None,
        }
    }

    /// Connects, unless it has begun to.
    pub(super) fn start(&self) {
        self.task.get_or_init(|| tokio::spawn(maintain(Arc::clone(&self.connector), self.role, self.state.clone())));
    }

    pub(super) fn is_started(&self) -> bool {
        self.task.get().is_some()
    }

    /// Waits for a session until the deadline; not at all when there has been none for long.
    pub(super) async fn session(&self, deadline: Instant) -> Result<Arc<Session<S>>, StoreError> {
        self.start();
        let mut state = self.state.subscribe();
        loop {
            let mut last = String::new();
            match &*state.borrow_and_update() {
                State::Up(session) if session.is_usable() => return Ok(Arc::clone(session)),
                State::Up(_) => {}
                State::Down { since, reason } => {
                    if !reason.is_empty() && since.elapsed() > self.connector.timeout {
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

impl<S> Drop for Connection<S> {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// Connects, drives the connection until it ends, and starts again.
async fn maintain<S: Prepared>(connector: Arc<Connector>, role: ConnectionRole, state: watch::Sender<State<S>>) {
    let mut since = Instant::now();
    let mut failures = 0;
    loop {
        match establish(&connector, role).await {
            Ok((session, mut driver)) => {
                if failures > 0 {
                    tracing::info!(?role, "connected to the database again");
                }
                failures = 0;
                let _open = connector.metrics.database.connected(role);
                state.send_replace(State::Up(Arc::clone(&session)));
                let ended = tokio::select! {
                    ended = &mut driver => ended,
                    () = session.end.notified() => Ok(()),
                };
                since = Instant::now();
                state.send_replace(State::Down { since, reason: String::new() });
                let error = ended.err().map(|error| describe(&error));
                tracing::warn!(?role, error, "a connection to the database was lost");
            }
            Err(failure) => {
                let reason = failure.describe();
                connector.metrics.database.failed(role);
                if failures == 0 {
                    tracing::warn!(?role, error = reason, "cannot connect to the database: retrying");
                }
                state.send_replace(State::Down { since, reason });
                sleep(backoff(failures)).await;
                failures += 1;
            }
        }
    }
}

async fn establish<S: Prepared>(
    connector: &Connector,
    role: ConnectionRole,
) -> Result<(Arc<Session<S>>, Driver), Failure> {
    let (client, mut driver) = connector.connect(role).await?;
    let preparing = driven(&mut driver, S::prepare(&client));
    let statements = match timeout(connector.connect_timeout(), preparing).await {
        Ok(prepared) => prepared.map_err(Failure::Error)?,
        Err(_) => return Err(Failure::Silent),
    };
    let session = Session {
        client,
        statements,
        responses: AtomicU64::new(0),
        discarded: AtomicBool::new(false),
        end: Notify::new(),
    };
    Ok((Arc::new(session), driver))
}
