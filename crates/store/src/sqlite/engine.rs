//! The engine: connections, writer, and helpers for reads and changes.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use super::connection::{change_error, connect, connect_reader, describe, execute, query};
use super::file::{DatabaseFile, WalMetrics, checkpoint_if_large};
use super::schema;
use super::version_cache::VersionCache;
use super::writer::Writer;
use crate::error::{OpenError, StoreError};
use crate::options::{OpenOptions, Opened};
use crate::plants::WriteQueue;
use crate::sql::{FromRow, Origin, Parameter, TransactionError};
use crate::url::StoreUrl;
use plantstore_telemetry::metrics::Exposition;
use plantstore_telemetry::spans;

pub(crate) struct Sqlite {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<DatabaseFile>,
    readers: Mutex<Readers>,
    pub(crate) admin_timeout: Duration,
    request_timeout: Duration,
    writer: Writer,
    pub(super) version_cache: VersionCache,
    pub(crate) wal_metrics: Arc<WalMetrics>,
}

struct Readers {
    idle: Vec<Connection>,
    idle_max: usize,
}

#[expect(clippy::unused_async, reason = "the methods of both engines are asynchronous; this one never waits")]
impl Sqlite {
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Opened<Self>, OpenError> {
        let is_new = schema::prepare(path, options.schema_change)?;
        let unusable =
            |error: rusqlite::Error| OpenError::Unusable(StoreUrl::Sqlite(path.to_owned()), describe(&error));
        // Before the first connection, so that a file that is replaced from now on is noticed.
        let file = DatabaseFile::new(path)
            .map_err(|error| OpenError::Unusable(StoreUrl::Sqlite(path.to_owned()), error.to_string()))?;
        let file = Arc::new(file);
        let idle = (0..options.readers).map(|_| connect_reader(path)).collect::<Result<_, _>>().map_err(unusable)?;
        let wal_metrics = Arc::<WalMetrics>::default();
        let writer = Writer::start(path, &file, options, &wal_metrics).map_err(unusable)?;
        let store = Self {
            path: path.to_owned(),
            file,
            readers: Mutex::new(Readers { idle, idle_max: options.readers }),
            admin_timeout: options.admin_timeout,
            request_timeout: options.timeout,
            writer,
            version_cache: VersionCache::open(path).map_err(unusable)?,
            wal_metrics,
        };
        Ok(Opened { store, is_new })
    }

    pub(crate) fn queue(&self) -> &WriteQueue {
        &self.writer.queue
    }

    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        self.file.check()?;
        self.read(|connection| connection.prepare_cached("SELECT version FROM users LIMIT 1")?.exists([]).map(|_| ()))
    }

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        WriteQueue::write_metrics(&[&self.writer.queue], exposition);
        self.writer.metrics.write(exposition);
        self.wal_metrics.write(exposition);
    }

    /// Closes the file. SQLite then removes the WAL, unless another connection is open. A later read opens the file again.
    pub(crate) async fn close(&self) {
        self.writer.finish().await;
        *self.readers() = Readers { idle: Vec::new(), idle_max: 0 };
        self.version_cache.close();
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let begun = spans::begin();
        let idle = self.readers().idle.pop();
        let connection = if let Some(connection) = idle {
            connection
        } else {
            self.file.check()?;
            connect_reader(&self.path)?
        };
        // After an error the connection is dropped, because its state is unknown.
        let found = query(&connection)?;
        begun.end("read");
        let mut readers = self.readers();
        if readers.idle.len() < readers.idle_max {
            readers.idle.push(connection);
        }
        Ok(found)
    }

    pub(crate) fn query<T: FromRow>(&self, text: &str, values: &[&dyn Parameter]) -> Result<Vec<T>, StoreError> {
        self.read(|connection| query(connection, text, values))
    }

    /// Runs a change in a transaction on a new connection. That of a request takes turns with the writer, because SQLite would let a
    /// busy writer have the lock again and again, and does not block other tasks of this thread.
    pub(crate) async fn transaction<T, F: Future<Output = Result<T, TransactionError>>>(
        &self,
        origin: Origin,
        work: impl Fn(Transaction) -> F,
    ) -> Result<T, StoreError> {
        let (timeout, _locked) = match origin {
            Origin::Operator => (self.admin_timeout, None),
            Origin::Request => {
                let locked = tokio::time::timeout(self.request_timeout, self.writer.lock_for_change()).await;
                let locked = locked.map_err(|_| StoreError::Unavailable("the writer is busy".to_owned()))?;
                (self.request_timeout, Some(locked))
            }
        };
        let transaction = block(origin, || Transaction::begin(&self.path, &self.file, timeout))?;
        let done = work(transaction.clone()).await.map_err(TransactionError::into_store_error)?;
        block(origin, || transaction.commit(&self.file))?;
        Ok(done)
    }
}

/// Runs an operation that blocks this thread. The tasks of a server must be able to run on other threads meanwhile.
fn block<T>(origin: Origin, operation: impl FnOnce() -> T) -> T {
    match origin {
        Origin::Request => tokio::task::block_in_place(operation),
        Origin::Operator => operation(),
    }
}

/// An open transaction, which is rolled back when its connection is closed. Its statements never wait, because it has the write
/// lock.
#[derive(Clone)]
pub(crate) struct Transaction(Arc<Mutex<Connection>>);

impl Transaction {
    fn begin(path: &Path, file: &DatabaseFile, timeout: Duration) -> Result<Self, StoreError> {
        file.check()?;
        let begin = || {
            let connection = connect(path)?;
            connection.busy_timeout(timeout)?;
            connection.execute_batch("BEGIN IMMEDIATE")?;
            Ok(connection)
        };
        begin().map(|connection| Self(Arc::new(Mutex::new(connection)))).map_err(change_error)
    }

    pub(crate) fn execute(&self, text: &str, values: &[&dyn Parameter]) -> Result<u64, TransactionError> {
        self.run(|connection| execute(connection, text, values)).map_err(TransactionError::Failed)
    }

    pub(crate) fn query<T: FromRow>(&self, text: &str, values: &[&dyn Parameter]) -> Result<Vec<T>, TransactionError> {
        self.run(|connection| query(connection, text, values)).map_err(TransactionError::Failed)
    }

    fn commit(&self, file: &DatabaseFile) -> Result<(), StoreError> {
        self.run(|connection| connection.execute_batch("COMMIT"))?;
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.verify_or_exit(&connection)?;
        checkpoint_if_large(&connection);
        Ok(())
    }

    fn run<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        work(&connection).map_err(change_error)
    }
}
