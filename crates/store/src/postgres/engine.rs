//! The engine: readers, writer, and helpers for administrative operations.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error};

use super::citus::Dialect;
use super::connect::{AdminConnection, Connector, NO_RESPONSE, is_conflict, store_error};
use super::metrics::PostgresMetrics;
use super::read::{Readers, VersionReader};
use super::schema;
use super::write::{KeyLocks, Writer};
use crate::error::{OpenError, StoreError};
use crate::metrics::SweepMetrics;
use crate::options::OpenOptions;
use crate::plants::{ClaimedKey, IdempotencyKey, InFlightKeys, WriteQueue};
use crate::sql::{FromRow, Origin, Parameter, Subject, TransactionError};
use crate::url::{PostgresUrl, StoreUrl};
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
        let (_, dialect, created) = schema::start(&connector, &store_url, &options).await?;
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

    pub(crate) fn sweep_metrics(&self) -> &SweepMetrics {
        &self.metrics.sweeps
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

    /// Returns the rows of a query. The statement is prepared once for each connection.
    pub(crate) async fn query<T: FromRow>(
        &self,
        text: &'static str,
        values: &[&dyn Parameter],
    ) -> Result<Vec<T>, StoreError> {
        let found = self.readers.read(|session| async move {
            let statement = session.prepared(text).await?;
            session.client.query(&statement, &parameters(values)).await
        });
        found.await?.iter().map(T::read).collect()
    }

    /// Returns the rows of a query on a new connection, with the timeout of administrative operations.
    pub(crate) async fn scan<T: FromRow>(&self, text: &str, values: &[&dyn Parameter]) -> Result<Vec<T>, StoreError> {
        let connection = self.admin_connection().await?;
        let found = connection.wait_for(connection.client.query(text, &parameters(values))).await?;
        found.iter().map(T::read).collect()
    }

    /// Runs a change in a transaction on a new connection, and again after a conflict with another transaction before the commit. At
    /// most [`REQUEST_OPERATIONS_MAX`] of requests run at a time.
    pub(crate) async fn transaction<T, F: Future<Output = Result<T, TransactionError>>>(
        &self,
        origin: Origin,
        work: impl Fn(Transaction) -> F,
    ) -> Result<T, StoreError> {
        let (timeout, _permit) = match origin {
            Origin::Operator => (self.admin_timeout, None),
            Origin::Request => {
                let timeout = self.connector.timeout;
                let permit = tokio::time::timeout(timeout, self.request_operations.acquire()).await;
                let permit =
                    permit.map_err(|_| StoreError::Unavailable("too many changes wait for the database".to_owned()))?;
                (timeout, Some(permit))
            }
        };
        let connection = AdminConnection::open(&self.connector, timeout).await?;
        let transaction = Transaction { client: Arc::clone(&connection.client), dialect: connection.dialect };
        let working = async {
            loop {
                transaction.send(BEGIN).await?;
                match work(transaction.clone()).await {
                    Err(TransactionError::Conflict(_)) => transaction.send("ROLLBACK").await?,
                    result => return result,
                }
            }
        };
        let done = tokio::time::timeout(timeout, working).await;
        let done = done.map_err(|_| StoreError::Unavailable(NO_RESPONSE.to_owned()))?;
        let done = done.map_err(TransactionError::into_store_error)?;
        connection.commit(LOST_DURING_COMMIT).await?;
        Ok(done)
    }

    pub(crate) async fn admin_connection(&self) -> Result<AdminConnection, StoreError> {
        AdminConnection::open(&self.connector, self.admin_timeout).await
    }
}

/// An open transaction.
#[derive(Clone)]
pub(crate) struct Transaction {
    client: Arc<Client>,
    dialect: Dialect,
}

impl Transaction {
    /// Returns true if a statement can lock rows in a subquery. Citus cannot lock rows of several workers.
    pub(crate) fn locks_rows_in_subqueries(&self) -> bool {
        self.dialect == Dialect::Postgres
    }

    pub(crate) async fn execute(&self, text: &str, values: &[&dyn Parameter]) -> Result<u64, TransactionError> {
        self.client.execute(text, &parameters(values)).await.map_err(|error| transaction_error(&error))
    }

    pub(crate) async fn query<T: FromRow>(
        &self,
        text: &str,
        values: &[&dyn Parameter],
    ) -> Result<Vec<T>, TransactionError> {
        let found = self.client.query(text, &parameters(values)).await.map_err(|error| transaction_error(&error))?;
        found.iter().map(|row| T::read(row).map_err(TransactionError::Failed)).collect()
    }

    /// Takes the advisory lock of a subject. Its number is the same in all releases that may run concurrently.
    pub(crate) async fn lock(&self, subject: Subject<'_>) -> Result<(), TransactionError> {
        let digest = match subject {
            Subject::Name(name) => Sha256::new_with_prefix("shares with\0").chain_update(name.as_str()),
            Subject::User(user) => Sha256::new_with_prefix("changes of\0").chain_update(user.get().to_be_bytes()),
        };
        // 64 bits, so that collisions, which only cost time, are unlikely.
        let number = digest.finalize().iter().take(8).fold(0, |number: i64, byte| number << 8 | i64::from(*byte));
        self.execute("SELECT pg_advisory_xact_lock($1)", &[&number]).await.map(|_| ())
    }

    /// Sends a statement without parameters.
    async fn send(&self, text: &str) -> Result<(), TransactionError> {
        self.client.batch_execute(text).await.map_err(|error| transaction_error(&error))
    }
}

fn transaction_error(error: &Error) -> TransactionError {
    if is_conflict(error) {
        TransactionError::Conflict(store_error(error))
    } else {
        TransactionError::Failed(store_error(error))
    }
}

/// Returns the values as the driver takes them.
fn parameters<'a>(values: &[&'a dyn Parameter]) -> Vec<&'a (dyn ToSql + Sync)> {
    values.iter().map(|value| *value as &(dyn ToSql + Sync)).collect()
}
