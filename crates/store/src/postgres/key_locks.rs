//! The keys in flight, as other nodes see them: an advisory lock each, held by a connection of its own.
//!
//! Nothing but the response to the second of two requests depends on these locks. When one is lost with its connection, what is
//! written stays right all the same: that is up to the transaction that writes it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::connection::{Connection, Session};
use super::connector::Connector;
use super::role::ConnectionRole;
use super::statements::LockStatements;
use crate::error::StoreError;
use crate::idempotency::IdempotencyKey;
use plantstore_model::user::UserId;

pub(super) struct KeyLocks {
    connection: Connection<LockStatements>,
    timeout: Duration,
}

impl KeyLocks {
    /// Connects when the first key comes.
    pub(super) fn new(connector: &Arc<Connector>) -> Self {
        Self { connection: Connection::new(connector, ConnectionRole::Claim), timeout: connector.timeout }
    }

    /// Checks that keys can be locked; the database is not asked before the first one came.
    pub(super) async fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        if self.connection.is_started() {
            self.connection.session(deadline).await?;
        }
        Ok(())
    }

    /// Shows other nodes that a key of this user is in flight here; `None` when it is in flight on one of them. A session can
    /// get a lock twice: the caller has made sure that no other request in this process holds it.
    pub(super) async fn lock(&self, user: UserId, key: &IdempotencyKey) -> Result<Option<KeyLock>, StoreError> {
        let deadline = Instant::now() + self.timeout;
        let number = number(user, key);
        loop {
            let session = self.connection.session(deadline).await?;
            let asking = async {
                // There before it is known whether it was got: when the caller stops waiting for that, it is released.
                let lock = KeyLock { session: Some(Arc::clone(&session)), number };
                let row = session.client.query_one(&session.statements.lock, &[&number]).await?;
                Ok(if row.try_get(0)? { Some(lock) } else { lock.not_got() })
            };
            if let Some(response) = session.respond(asking, deadline).await? {
                return Ok(response);
            }
        }
    }
}

/// The lock of a key, released when this is dropped.
pub(super) struct KeyLock {
    session: Option<Arc<Session<LockStatements>>>,
    number: i64,
}

impl KeyLock {
    fn not_got(mut self) -> Option<Self> {
        self.session = None;
        None
    }
}

impl Drop for KeyLock {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            // Sent by the first poll, and so before whatever asks for the lock next; the response says nothing new. If the
            // connection is gone, the lock is, too.
            let _ = session.client.query_one(&session.statements.unlock, &[&self.number]).now_or_never();
        }
    }
}

/// The number of a key's lock: 64 bits, among which two keys hardly ever meet.
fn number(user: UserId, key: &IdempotencyKey) -> i64 {
    let digest = Sha256::new().chain_update(user.get().to_be_bytes()).chain_update(key.hash).finalize();
    digest.iter().take(8).fold(0, |number, byte| number << 8 | i64::from(*byte))
}
