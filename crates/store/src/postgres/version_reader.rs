//! Reads the versions of users. Concurrent requests share a statement, so that a busy node costs the database little.
//!
//! A request must see every write that was acknowledged before it. So it takes part in a statement that is sent after it, never in
//! one that is already sent. While [`STATEMENTS_MAX`] statements are in flight, requests wait for the next one: the busier
//! the node, the more requests share a statement.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;

use super::database_error::NO_RESPONSE;
use super::readers::Readers;
use super::rows::get;
use crate::error::StoreError;
use crate::version::Version;
use plantstore_model::user::UserId;
use plantstore_telemetry::spans;

/// Maximum number of statements in flight. Two, so that one lost connection does not hold up all requests.
const STATEMENTS_MAX: usize = 2;
/// Maximum number of requests that share a statement.
const REQUESTS_MAX: usize = 512;

type Versions = Vec<Option<Version>>;

struct VersionRequest {
    users: Vec<UserId>,
    reply: oneshot::Sender<Result<Versions, StoreError>>,
}

/// Handle of the task that sends the statements. The task ends when this is dropped.
pub(super) struct VersionReader {
    readers: Arc<Readers>,
    requests: mpsc::Sender<VersionRequest>,
}

impl VersionReader {
    pub(super) fn start(readers: &Arc<Readers>) -> Self {
        let (requests, received) = mpsc::channel(REQUESTS_MAX);
        tokio::spawn(send_statements(Arc::clone(readers), received));
        Self { readers: Arc::clone(readers), requests }
    }

    /// Returns the versions of these users; `None` for a user who does not exist.
    pub(super) async fn read(&self, users: &[UserId]) -> Result<Versions, StoreError> {
        // On Citus a statement fails if it needs a lost worker. It must not fail for users of other workers.
        if self.readers.are_on_citus() {
            return query(&self.readers, users).await.map(|found| versions_of(&found, users));
        }
        let begun = spans::begin();
        let deadline = Instant::now() + self.readers.timeout();
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
            Ok(None) => Err(StoreError::Internal("no statement was sent for versions".to_owned())),
            Err(_) => Err(StoreError::Unavailable(NO_RESPONSE.to_owned())),
        }
    }
}

async fn send_statements(readers: Arc<Readers>, mut requests: mpsc::Receiver<VersionRequest>) {
    let statements = Arc::new(Semaphore::new(STATEMENTS_MAX));
    while let Ok(permit) = Arc::clone(&statements).acquire_owned().await {
        let mut batch = Vec::new();
        if requests.recv_many(&mut batch, REQUESTS_MAX).await == 0 {
            return;
        }
        let readers = Arc::clone(&readers);
        tokio::spawn(async move {
            reply_to_all(&readers, batch).await;
            drop(permit);
        });
    }
}

async fn reply_to_all(readers: &Readers, batch: Vec<VersionRequest>) {
    let users: Vec<UserId> = batch.iter().flat_map(|request| request.users.iter().copied()).collect();
    let found = query(readers, &users).await;
    for VersionRequest { users, reply } in batch {
        // The reply fails if the client has disconnected.
        let _ = reply.send(match &found {
            Ok(found) => Ok(versions_of(found, &users)),
            Err(error) => Err(error.clone()),
        });
    }
}

async fn query(readers: &Readers, users: &[UserId]) -> Result<HashMap<i64, Version>, StoreError> {
    let ids: Vec<i64> = users.iter().map(|user| user.get()).collect();
    versions_by_id(&readers.rows(|session| &session.statements.versions, [ids]).await?)
}

/// Returns the versions in rows of the statement `versions`, by user id.
pub(super) fn versions_by_id(found: &[Row]) -> Result<HashMap<i64, Version>, StoreError> {
    found.iter().map(|row| Ok((get(row, 0)?, Version::new(get(row, 1)?)))).collect()
}

/// Returns the versions in the order of these users.
pub(super) fn versions_of(found: &HashMap<i64, Version>, users: &[UserId]) -> Versions {
    users.iter().map(|user| found.get(&user.get()).copied()).collect()
}
