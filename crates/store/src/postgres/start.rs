//! Starts on a database: the first connection, and a schema that is up to date. What may pass by itself is retried.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use super::connector::{Connector, backoff};
use super::role::ConnectionRole;
use super::schema;
use crate::error::OpenError;
use crate::options::OpenOptions;
use crate::url::StoreUrl;

/// Time for which a database that cannot be reached yet is retried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Retries of the schema after an error that may pass, such as a lost connection or a deadlock.
const SCHEMA_RETRIES: u32 = 5;

/// Connects to a database and makes its schema ready. Also returns whether the schema is new.
pub(super) async fn start(
    connector: &Connector,
    url: &StoreUrl,
    options: &OpenOptions,
) -> Result<(Client, bool), OpenError> {
    let mut failures = 0;
    loop {
        let client = connect(connector, url, options.await_server).await?;
        match schema::prepare(&client, url, options).await {
            Ok(created) => return Ok((client, created)),
            Err(failure) if failure.may_pass && failures < SCHEMA_RETRIES => {
                tracing::warn!(error = %failure.error, "cannot make the schema ready: retrying");
                sleep(backoff(failures)).await;
                failures += 1;
            }
            Err(failure) => return Err(failure.error),
        }
    }
}

/// Connects. A server that asks to come again is retried; one that cannot be reached only with `await_server`.
async fn connect(connector: &Connector, url: &StoreUrl, await_server: bool) -> Result<Client, OpenError> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let mut failures = 0;
    loop {
        match connector.connect(ConnectionRole::Operate).await {
            Ok((client, driver)) => {
                tokio::spawn(driver);
                return Ok(client);
            }
            Err(failure)
                if failure.may_pass() && (await_server || failure.is_from_server()) && Instant::now() < deadline =>
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
