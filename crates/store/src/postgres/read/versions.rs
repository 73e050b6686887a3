//! Reads the versions of users. Concurrent requests share a statement, so that a busy node costs the database little.
//!
//! A request must see every write that was acknowledged before it. So it shares a statement that is sent after it, never one that
//! is already sent. While the maximum number of statements is in flight, requests wait for the next one: the busier the node, the
//! more requests share a statement.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::readers::Readers;
use crate::error::StoreError;
use crate::plants::Version;
use crate::postgres::connect::NO_RESPONSE;
use plantstore_model::user::UserId;
use plantstore_telemetry::spans;

/// Maximum number of requests that share a statement, and of further requests that wait.
const REQUESTS_MAX: usize = 128;

type Versions = Vec<Option<Version>>;
type Requests = Arc<Mutex<mpsc::Receiver<VersionRequest>>>;

struct VersionRequest {
    users: Vec<UserId>,
    reply: oneshot::Sender<Result<Versions, StoreError>>,
}

/// Handle of the tasks that send the statements. They end when this is dropped.
pub(in crate::postgres) struct VersionReader {
    readers: Arc<Readers>,
    requests: mpsc::Sender<VersionRequest>,
}

impl VersionReader {
    /// Starts tasks for this number of statements in flight, each on its own read connection.
    pub(in crate::postgres) fn start(readers: &Arc<Readers>, statements: usize) -> Self {
        let (requests, received) = mpsc::channel(REQUESTS_MAX);
        let received = Arc::new(Mutex::new(received));
        for connection in 0..statements {
            tokio::spawn(send_statements(Arc::clone(readers), connection, Arc::clone(&received)));
        }
        Self { readers: Arc::clone(readers), requests }
    }

    /// Returns the versions of these users; `None` for a user who does not exist.
    pub(in crate::postgres) async fn read(&self, users: &[UserId]) -> Result<Versions, StoreError> {
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
            Ok(None) => Err(StoreError::Internal("the task that reads versions ended".to_owned())),
            Err(_) => Err(StoreError::Unavailable(NO_RESPONSE.to_owned())),
        }
    }
}

/// Sends one statement after the other, each for all requests that wait, on this connection if it is open.
async fn send_statements(readers: Arc<Readers>, connection: usize, requests: Requests) {
    loop {
        let mut batch = Vec::new();
        if requests.lock().await.recv_many(&mut batch, REQUESTS_MAX).await == 0 {
            return;
        }
        let readers = Arc::clone(&readers);
        // A task of its own, so that a panic only ends this statement.
        let _ = tokio::spawn(async move { reply_to_all(&readers, connection, batch).await }).await;
    }
}

async fn reply_to_all(readers: &Readers, connection: usize, mut batch: Vec<VersionRequest>) {
    // These clients have disconnected, or their deadline is over.
    batch.retain(|request| !request.reply.is_closed());
    if batch.is_empty() {
        return;
    }
    let mut users: Vec<i64> = batch.iter().flat_map(|request| &request.users).map(|user| user.get()).collect();
    users.sort_unstable();
    users.dedup();
    let found = readers.versions_from(connection, &users).await;
    for VersionRequest { users, reply } in batch {
        let version = |user: &UserId| found.as_ref().map(|found| found.get(&user.get()).copied().map(Version::new));
        let versions = users.iter().map(version).collect::<Result<Versions, _>>();
        // Fails if the client has disconnected.
        let _ = reply.send(versions.map_err(StoreError::clone));
    }
}
