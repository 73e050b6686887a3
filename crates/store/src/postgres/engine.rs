//! The engine: readers, writer, and helpers for administrative operations.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_postgres::{Client, Error};

use super::admin::AdminConnection;
use super::connector::Connector;
use super::database_error::is_conflict;
use super::key_locks::KeyLocks;
use super::metrics::PostgresMetrics;
use super::readers::Readers;
use super::start;
use super::version_reader::VersionReader;
use super::writer::Writer;
use crate::error::{OpenError, StoreError};
use crate::idempotency::{ClaimedKey, IdempotencyKey, InFlightKeys};
use crate::options::OpenOptions;
use crate::url::{PostgresUrl, StoreUrl};
use crate::write_queue::WriteQueue;
use plantstore_model::user::UserId;
use plantstore_telemetry::metrics::Exposition;

/// Maximum number of connections for operations that requests ask for.
const REQUEST_OPERATIONS_MAX: usize = 4;
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// Message for the log and the operator.
const LOST_DURING_COMMIT: &str = "the connection was lost during the commit";
/// Minimum number of read connections.
const READERS_MIN: usize = 2;

/// The PostgreSQL engine.
pub struct Postgres {
    connector: Arc<Connector>,
    pub(super) readers: Arc<Readers>,
    pub(super) version_reader: VersionReader,
    writer: Writer,
    in_flight_keys: InFlightKeys,
    key_locks: KeyLocks,
    admin_timeout: Duration,
    request_operations: Semaphore,
    pub(super) metrics: Arc<PostgresMetrics>,
}

impl Postgres {
    pub(crate) async fn open(url: &PostgresUrl, options: OpenOptions) -> Result<(Self, bool), OpenError> {
        let store_url = StoreUrl::Postgres(Box::new(url.clone()));
        let metrics = Arc::<PostgresMetrics>::default();
        let connector = Connector::new(url, options.timeout, &metrics);
        let connector = connector.map_err(|reason| OpenError::Unfit(store_url.clone(), reason))?;
        let (_, dialect, created) = start::start(&connector, &store_url, &options).await?;
        let connector = Arc::new(connector);
        let readers = options.readers.max(if options.write_queue > 1 { READERS_MIN } else { 1 });
        let readers = Arc::new(Readers::new(&connector, readers, &metrics));
        let engine = Self {
            version_reader: VersionReader::start(&readers, dialect),
            readers,
            writer: Writer::start(&connector, options.write_queue, &metrics),
            in_flight_keys: InFlightKeys::default(),
            key_locks: KeyLocks::new(&connector),
            admin_timeout: options.admin_timeout,
            request_operations: Semaphore::new(REQUEST_OPERATIONS_MAX),
            connector,
            metrics,
        };
        Ok((engine, created))
    }

    pub(crate) fn queue(&self) -> &WriteQueue {
        self.writer.queue()
    }

    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.connector.timeout;
        self.writer.ping(deadline).await?;
        self.key_locks.ping(deadline).await?;
        self.readers.rows(|session| &session.statements.ping, [0_i64; 0]).await.map(|_| ())
    }

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        self.metrics.write(exposition);
    }

    pub(crate) async fn close(&self) {
        self.writer.finish().await;
    }

    /// Claims an idempotency key for a request, in this process and then among all nodes.
    pub(crate) async fn claim(&self, user: UserId, key: IdempotencyKey) -> Result<Box<ClaimedKey>, StoreError> {
        let claimed = self.in_flight_keys.claim(user, key)?;
        match self.key_locks.lock(user, &claimed.key).await? {
            Some(lock) => claimed.hold_node_lock(lock),
            // The lock of a request whose outcome is stored may not be released yet.
            None if self.has_key(user, &claimed.key).await? => {}
            None => return Err(StoreError::InFlight),
        }
        Ok(claimed)
    }

    async fn has_key(&self, user: UserId, key: &IdempotencyKey) -> Result<bool, StoreError> {
        let (user, hash) = (user.get(), key.hash);
        let found = self.readers.read(|session| async move {
            session.client.query_opt(&session.statements.has_key, &[&user, &hash.as_slice()]).await
        });
        found.await.map(|row| row.is_some())
    }

    /// Runs an operation that a request asks for in a transaction on a new connection, and again after a conflict with another
    /// transaction before the commit. At most [`REQUEST_OPERATIONS_MAX`] run at a time. The operation gets a client of its own,
    /// because a future that borrows it could not be sent between threads.
    pub(super) async fn run_request_transaction<T, F: Future<Output = Result<T, Error>>>(
        &self,
        work: impl Fn(Arc<Client>) -> F,
    ) -> Result<T, StoreError> {
        let timeout = self.connector.timeout;
        let permit = tokio::time::timeout(timeout, self.request_operations.acquire()).await;
        let _permit =
            permit.map_err(|_| StoreError::Unavailable("too many changes wait for the database".to_owned()))?;
        let connection = AdminConnection::open(&self.connector, timeout).await?;
        let working = async {
            loop {
                connection.client.batch_execute(BEGIN).await?;
                match work(Arc::clone(&connection.client)).await {
                    Err(error) if is_conflict(&error) => connection.client.batch_execute("ROLLBACK").await?,
                    result => return result,
                }
            }
        };
        let done = connection.wait_for(working).await?;
        connection.commit(LOST_DURING_COMMIT).await?;
        Ok(done)
    }

    /// Runs an administrative operation in a transaction on a new connection.
    pub(super) async fn run_admin_transaction<T>(
        &self,
        work: impl AsyncFnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let connection = self.admin_connection().await?;
        let working = async {
            connection.client.batch_execute(BEGIN).await?;
            work(&connection.client).await
        };
        let done = connection.wait_for(working).await?;
        connection.commit(LOST_DURING_COMMIT).await?;
        Ok(done)
    }

    pub(super) async fn admin_connection(&self) -> Result<AdminConnection, StoreError> {
        AdminConnection::open(&self.connector, self.admin_timeout).await
    }
}
