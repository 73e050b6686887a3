//! The keys at work, as other nodes see them: an advisory lock each, held by a connection of its own.
//!
//! Nothing but the answer to whoever comes second depends on these locks. When one is lost with its connection, what is
//! written stays right all the same: that is up to the transaction that writes it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::link::{Connector, Link, Role, Session};
use super::statements::LockStatements;
use crate::StoreError;
use crate::keys::Key;
use plantstore_model::user::UserId;

pub(super) struct Claims {
    link: Link<LockStatements>,
    patience: Duration,
}

impl Claims {
    /// Connects when the first key comes.
    pub(super) fn new(connector: &Arc<Connector>) -> Self {
        Self { link: Link::new(connector, Role::Claim), patience: connector.patience }
    }

    /// Whether keys can be claimed; nobody is asked before the first one came.
    pub(super) async fn ping(&self, deadline: Instant) -> Result<(), StoreError> {
        if self.link.is_started() {
            self.link.session(deadline).await?;
        }
        Ok(())
    }

    /// Shows other nodes that a key of this user is at work here; `None` when it is at work on one of them. A lock can be
    /// had twice by one session: whoever asks has made sure that nobody else in this process does.
    pub(super) async fn lock(&self, user: UserId, key: &Key) -> Result<Option<Lock>, StoreError> {
        let deadline = Instant::now() + self.patience;
        let number = number(user, key);
        loop {
            let session = self.link.session(deadline).await?;
            let asking = async {
                // There before it is known whether it was got: should nobody wait for that, it is given back.
                let lock = Lock { session: Some(Arc::clone(&session)), number };
                let row = session.client.query_one(&session.statements.lock, &[&number]).await?;
                Ok(if row.try_get(0)? { Some(lock) } else { lock.not_got() })
            };
            if let Some(answer) = session.answer(asking, deadline).await? {
                return Ok(answer);
            }
        }
    }
}

/// The lock of a key, given back when this is dropped.
pub(super) struct Lock {
    session: Option<Arc<Session<LockStatements>>>,
    number: i64,
}

impl Lock {
    fn not_got(mut self) -> Option<Self> {
        self.session = None;
        None
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            // Sent by the first poll, and so before whatever asks for the lock next; the answer tells nothing new. If the
            // connection is gone, the lock is, too.
            let _ = session.client.query_one(&session.statements.unlock, &[&self.number]).now_or_never();
        }
    }
}

/// The number of a key's lock: 64 bits, among which two keys hardly ever meet.
fn number(user: UserId, key: &Key) -> i64 {
    let digest = Sha256::new().chain_update(user.get().to_be_bytes()).chain_update(key.hash).finalize();
    digest.iter().take(8).fold(0, |number, byte| number << 8 | i64::from(*byte))
}
