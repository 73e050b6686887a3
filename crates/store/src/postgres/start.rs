//! Start of the engine: the first connection and the schema. Transient errors are retried.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use super::connection_role::ConnectionRole;
use super::connector::{Connector, backoff};
use super::dialect::Dialect;
use super::schema;
use crate::error::OpenError;
use crate::options::OpenOptions;
use crate::url::StoreUrl;

/// Timeout for a database that is not reachable yet.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of retries after a transient error, such as a lost connection or a deadlock.
const SCHEMA_RETRIES: u32 = 5;

/// Connects to a database and prepares its schema. Also returns its kind, and true if the schema is new.
pub(crate) async fn start(
    connector: &Connector,
    url: &StoreUrl,
    options: &OpenOptions,
) -> Result<(Client, Dialect, bool), OpenError> {
    let mut failures = 0;
    loop {
        let (client, dialect) = connect(connector, url, options.await_server).await?;
        match schema::prepare(&client, dialect, url, options.schema_change).await {
            Ok(created) => return Ok((client, dialect, created)),
            Err(failure) if failure.is_transient && failures < SCHEMA_RETRIES => {
                tracing::warn!(error = %failure.error, "cannot prepare the schema: retrying");
                sleep(backoff(failures)).await;
                failures += 1;
            }
            Err(failure) => return Err(failure.error),
        }
    }
}

/// Connects. Retries if the server is temporarily unavailable, and with `await_server` also if it is unreachable.
async fn connect(connector: &Connector, url: &StoreUrl, await_server: bool) -> Result<(Client, Dialect), OpenError> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let mut failures = 0;
    loop {
        match connector.connect(ConnectionRole::Admin).await {
            Ok(opened) => {
                tokio::spawn(opened.driver);
                return Ok((opened.client, opened.dialect));
            }
            Err(failure)
                if failure.is_transient()
                    && (await_server || failure.is_from_server())
                    && Instant::now() < deadline =>
            {
                if failures == 0 {
                    tracing::warn!(store = %url, error = failure.describe(), "cannot connect to the database: retrying");
                }
                sleep(backoff(failures)).await;
                failures += 1;
            }
            Err(failure) => return Err(OpenError::Unreachable(url.clone(), failure.describe())),
        }
    }
}
