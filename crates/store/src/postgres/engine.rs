//! The engine: its lanes, and administrative operations, which use the main lane's server.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt as _, join_all, select_ok};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio_postgres::Error;
use tokio_postgres::types::ToSql;

use super::connect::{AdminConnection, Connector, Dialect, NO_RESPONSE, PostgresMetrics, is_conflict, store_error};
use super::lane::{Lanes, keep_current};
use super::schema::{Started, start};
use super::write::lock_number;
use crate::error::{OpenError, StoreError};
use crate::options::{OpenOptions, Opened};
use crate::plants::{ClaimedKey, WriteContext, WriteQueue};
use crate::sql::{FromRow, Origin, Parameter, Subject, TransactionError};
use crate::url::PostgresUrl;
use plantstore_model::user::UserId;
use plantstore_telemetry::metrics::Exposition;

/// Maximum number of connections for operations that requests ask for.
const REQUEST_OPERATIONS_MAX: usize = 4;
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

pub(crate) struct Postgres {
    pub(super) lanes: Arc<Lanes>,
    /// Keeps the placement of users current, if there are several lanes.
    refresh: Option<AbortHandle>,
    admin_timeout: Duration,
    request_operations: Semaphore,
    metrics: Arc<PostgresMetrics>,
}

impl Postgres {
    pub(crate) async fn open(url: &PostgresUrl, options: OpenOptions) -> Result<Opened<Self>, OpenError> {
        let metrics = Arc::<PostgresMetrics>::default();
        let Started { connector, dialect, url: store_url, is_new, .. } = start(url, &options, &metrics).await?;
        let is_distributed = dialect == Dialect::Citus && options.worker_addresses.is_some();
        let admin_timeout = options.admin_timeout;
        let lanes = Arc::new(Lanes::start(url, &Arc::new(connector), options));
        if is_distributed {
            lanes.main.writer.connect(lanes.main.connector.timeout).await;
            let placed = lanes.refresh().await;
            placed.map_err(|error| OpenError::Unreachable(store_url, error.to_string()))?;
        }
        let store = Self {
            refresh: is_distributed.then(|| keep_current(&lanes).abort_handle()),
            lanes,
            admin_timeout,
            request_operations: Semaphore::new(REQUEST_OPERATIONS_MAX),
            metrics,
        };
        Ok(Opened { store, is_new })
    }

    pub(crate) fn queue(&self) -> &WriteQueue {
        &self.lanes.main.writer.queue
    }

    pub(crate) fn queue_of(&self, context: WriteContext) -> WriteQueue {
        self.lanes.of_write(context).writer.queue.clone()
    }

    /// Checks that at least one lane of users works.
    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        let lanes = self.lanes.serving();
        select_ok(lanes.iter().map(|lane| lane.ping().boxed())).await.map(|((), _)| ())
    }

    pub(crate) fn lost_servers(&self) -> Vec<String> {
        let lost = self.lanes.serving().into_iter().filter(|lane| !lane.is_connected());
        lost.map(|lane| lane.server.clone()).collect()
    }

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        let lanes = self.lanes.all();
        let queues: Vec<&WriteQueue> = lanes.iter().map(|lane| &lane.writer.queue).collect();
        WriteQueue::write_metrics(&queues, exposition);
        self.metrics.write(exposition);
        let mut up = exposition
            .gauge("plantstore_lane_up", "1 if the writer and a reader are connected to this server, otherwise 0.");
        for lane in &lanes {
            up.sample(&[("server", lane.server.as_str().into())], u8::from(lane.is_connected()));
        }
    }

    pub(crate) async fn close(&self) {
        join_all(self.lanes.all().iter().map(|lane| lane.writer.finish())).await;
    }

    /// Locks a claimed key among all nodes.
    pub(crate) async fn lock_key(&self, user: UserId, claimed: &ClaimedKey) -> Result<(), StoreError> {
        const STORED: &str = "
            SELECT 1 FROM plantstore.idempotency_keys
            WHERE user_id = $1 AND key = $2 AND expires_at + 0 > extract(epoch FROM now())::bigint";
        let lane = self.lanes.of(user);
        if let Some(lock) = lane.key_locks.lock(user, &claimed.key).await? {
            claimed.hold_node_lock(lock);
            return Ok(());
        }
        // The lock of a request whose outcome is stored may not be released yet.
        let stored = lane.readers.query(None, STORED, &[&user.get(), &claimed.key.hash.as_slice()]).await?;
        if stored.is_empty() { Err(StoreError::InFlight) } else { Ok(()) }
    }

    /// Returns the rows of a query. The statement is prepared once for each connection.
    pub(crate) async fn query<T: FromRow>(
        &self,
        text: &'static str,
        values: &[&dyn Parameter],
    ) -> Result<Vec<T>, StoreError> {
        let of_copies = self.lanes.placement().copies.statement(text);
        let found = self.lanes.any().readers.query(of_copies.as_deref(), text, &parameters(values)).await?;
        found.iter().map(T::read).collect()
    }

    /// Runs a change in a transaction on a new connection, and again after a conflict with another transaction before the commit. At
    /// most [`REQUEST_OPERATIONS_MAX`] of requests run at a time.
    pub(crate) async fn transaction<T, F: Future<Output = Result<T, TransactionError>>>(
        &self,
        origin: Origin,
        work: impl Fn(AdminConnection) -> F,
    ) -> Result<T, StoreError> {
        let (timeout, _permit) = match origin {
            Origin::Operator => (self.admin_timeout, None),
            Origin::Request => {
                let timeout = self.connector().timeout;
                let permit = tokio::time::timeout(timeout, self.request_operations.acquire()).await;
                let permit =
                    permit.map_err(|_| StoreError::Unavailable("too many changes wait for the database".to_owned()))?;
                (timeout, Some(permit))
            }
        };
        let transaction = AdminConnection::open(self.connector(), timeout).await?;
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
        transaction.commit().await?;
        Ok(done)
    }

    fn connector(&self) -> &Connector {
        &self.lanes.main.connector
    }

    pub(crate) async fn admin_connection(&self) -> Result<AdminConnection, StoreError> {
        AdminConnection::open(self.connector(), self.admin_timeout).await
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(refresh) = &self.refresh {
            refresh.abort();
        }
    }
}

/// Statements of an open transaction.
impl AdminConnection {
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
        self.execute("SELECT pg_advisory_xact_lock($1)", &[&lock_number(digest)]).await.map(|_| ())
    }

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

fn parameters<'a>(values: &[&'a dyn Parameter]) -> Vec<&'a (dyn ToSql + Sync)> {
    values.iter().map(|value| *value as &(dyn ToSql + Sync)).collect()
}
