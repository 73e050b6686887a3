//! Connections for administrative operations, with a timeout for each step.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::{Client, Error};

use super::connector::{Connector, OpenConnection};
use super::error::{NO_RESPONSE, certainly_not_committed, store_error};
use crate::error::StoreError;
use crate::postgres::connection_role::ConnectionRole;
use crate::postgres::dialect::Dialect;

pub(crate) struct AdminConnection {
    pub(crate) client: Arc<Client>,
    pub(crate) dialect: Dialect,
    timeout: Duration,
}

impl AdminConnection {
    pub(crate) fn new(client: Client, dialect: Dialect, timeout: Duration) -> Self {
        Self { client: Arc::new(client), dialect, timeout }
    }

    pub(in crate::postgres) async fn open(connector: &Connector, timeout: Duration) -> Result<Self, StoreError> {
        let connected = connector.connect(ConnectionRole::Admin).await;
        let OpenConnection { client, driver, dialect, .. } =
            connected.map_err(|failure| StoreError::Unavailable(failure.describe()))?;
        tokio::spawn(driver);
        Ok(Self::new(client, dialect, timeout))
    }

    /// Waits for a response of the database until the timeout.
    pub(crate) async fn wait_for<T>(&self, response: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
        wait_for_response(self.timeout, response).await
    }

    /// Commits. `lost` is the message if the outcome is unknown.
    pub(crate) async fn commit(&self, lost: &'static str) -> Result<(), StoreError> {
        match tokio::time::timeout(self.timeout, self.client.batch_execute("COMMIT")).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if certainly_not_committed(&error) => Err(store_error(&error)),
            Ok(Err(_)) | Err(_) => Err(StoreError::OutcomeUnknown(lost)),
        }
    }
}

/// Waits for a response of the database; [`StoreError::Unavailable`] after the timeout.
pub(crate) async fn wait_for_response<T>(
    timeout: Duration,
    response: impl Future<Output = Result<T, Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(timeout, response).await {
        Ok(response) => response.map_err(|error| store_error(&error)),
        Err(_) => Err(StoreError::Unavailable(NO_RESPONSE.to_owned())),
    }
}
