//! Locks of idempotency keys among nodes: one advisory lock per key in flight, held by a dedicated connection.
//!
//! The locks only affect the response to a concurrent request with the same key. If a lock is lost with its connection, the data
//! stays consistent, because the writing transaction checks the key as well.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tokio_postgres::Statement;

use crate::error::StoreError;
use crate::plants::IdempotencyKey;
use crate::postgres::connect::{ConnectionRole, Connector, DatabaseConnection, DatabaseSession};
use plantstore_model::user::UserId;

pub(crate) struct KeyLocks {
    connection: DatabaseConnection,
    timeout: Duration,
}

impl KeyLocks {
    /// Opens the connection when the first key is locked.
    pub(crate) fn new(connector: &Arc<Connector>) -> Self {
        Self { connection: DatabaseConnection::new(connector, ConnectionRole::KeyLock), timeout: connector.timeout }
    }

    /// Checks that the connection is open, if a key was ever locked.
    pub(crate) async fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        if self.connection.is_started() {
            self.connection.session(deadline).await?;
        }
        Ok(())
    }

    /// Locks a key of this user; `None` if another node has locked it. A session can lock a key twice, so the caller must make
    /// sure that no other request of this process holds the key.
    pub(crate) async fn lock(&self, user: UserId, key: &IdempotencyKey) -> Result<Option<KeyLock>, StoreError> {
        let deadline = Instant::now() + self.timeout;
        let number = lock_number(Sha256::new().chain_update(user.get().to_be_bytes()).chain_update(key.hash));
        loop {
            let session = self.connection.session(deadline).await?;
            let locking = async {
                let statement = session.prepared("SELECT pg_try_advisory_lock($1)").await?;
                let unlock = session.prepared("SELECT pg_advisory_unlock($1)").await?;
                // Created before the response, so that the lock is released if the caller stops waiting.
                let mut lock = KeyLock { session: Some(Arc::clone(&session)), unlock, number };
                let row = session.client.query_one(&statement, &[&number]).await?;
                let is_locked: bool = row.try_get(0)?;
                lock.session.take_if(|_| !is_locked);
                Ok(is_locked.then_some(lock))
            };
            if let Some(response) = session.wait_for(locking, deadline).await? {
                return Ok(response);
            }
        }
    }
}

/// The lock of a key, released when this is dropped.
pub(crate) struct KeyLock {
    session: Option<Arc<DatabaseSession>>,
    unlock: Statement,
    number: i64,
}

impl Drop for KeyLock {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            // The first poll sends the statement, so it precedes the next attempt to lock the key. The response is ignored. If
            // the connection is lost, the server has released the lock.
            let _ = session.client.query_one(&self.unlock, &[&self.number]).now_or_never();
        }
    }
}

/// Returns the number of an advisory lock: 64 bits, so that collisions are unlikely.
pub(crate) fn lock_number(subject: Sha256) -> i64 {
    subject.finalize().iter().take(8).fold(0, |number, byte| number << 8 | i64::from(*byte))
}
