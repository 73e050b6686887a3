//! Distribution of a database over the workers of Citus, by an operator.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::{Client, Error};

use super::citus::{PlacedTable, place_tables};
use super::connect::{Connector, SEARCH_PATH};
use super::dialect::PLANNER_SETTINGS;
use super::schema::{self, explain};
use crate::error::OpenError;
use crate::options::{OpenOptions, SchemaChange};
use crate::url::{PostgresUrl, StoreUrl};

/// Distributes the tables of a database, which must have the current schema. Tables that are distributed stay as they are.
pub(crate) async fn distribute(
    url: &PostgresUrl,
    shards_per_worker: u32,
    timeout: Duration,
) -> Result<Vec<PlacedTable>, OpenError> {
    let store_url = StoreUrl::Postgres(Box::new(url.clone()));
    let unfit = |reason: String| OpenError::Unfit(store_url.clone(), reason);
    let connector = Connector::new(url, timeout, &Arc::default()).map_err(unfit)?;
    let options = OpenOptions::of_command(SchemaChange::None, timeout);
    let (client, _, _) = schema::start(&connector, &store_url, &options).await?;
    let distributing = async {
        if let Some(reason) = missing(&client).await? {
            return Ok(Err(reason));
        }
        schema::begin(&client).await?;
        // All operations of a transaction must use the same connection to each worker.
        client.batch_execute("SET LOCAL citus.multi_shard_modify_mode = 'sequential'").await?;
        set_shard_count(&client, shards_per_worker).await?;
        let placed = place_tables(&client).await?;
        set_defaults(&client).await?;
        client.batch_execute("COMMIT").await?;
        Ok(Ok(placed))
    };
    let distributed: Result<_, Error> = distributing.await;
    distributed.map_err(|error| explain(&error, &store_url))?.map_err(unfit)
}

/// Sets the number of shards for the open transaction.
async fn set_shard_count(client: &Client, shards_per_worker: u32) -> Result<(), Error> {
    const SET: &str = "
        SELECT set_config('citus.shard_count', (count(*) * $1)::text, true)
        FROM pg_catalog.pg_dist_node WHERE isactive AND noderole = 'primary' AND shouldhaveshards";
    client.execute(SET, &[&i64::from(shards_per_worker)]).await.map(|_| ())
}

/// Sets the defaults of the planner and the search path on all servers. The settings of a session do not apply on workers, which
/// get operators and functions of PostgreSQL without their schema.
async fn set_defaults(client: &Client) -> Result<(), Error> {
    let row = client.query_one("SELECT quote_ident(current_database())", &[]).await?;
    let database: &str = row.try_get(0)?;
    for setting in PLANNER_SETTINGS.iter().chain([&SEARCH_PATH]) {
        client.batch_execute(&format!("ALTER DATABASE {database} SET {setting}")).await?;
    }
    Ok(())
}

/// Returns what the operator has to do before tables can be distributed.
async fn missing(client: &Client) -> Result<Option<String>, Error> {
    const EXTENSION: &str = "SELECT count(*) > 0 FROM pg_catalog.pg_extension WHERE extname = 'citus'";
    const SERVERS: &str = "
        SELECT count(*) FILTER (WHERE groupid = 0) > 0, count(*) FILTER (WHERE groupid > 0 AND shouldhaveshards) > 0
        FROM pg_catalog.pg_dist_node WHERE isactive AND noderole = 'primary'";
    if !client.query_one(EXTENSION, &[]).await?.try_get::<_, bool>(0)? {
        return Ok(Some(
            "it does not have the extension Citus: run CREATE EXTENSION citus in this database on every server"
                .to_owned(),
        ));
    }
    let row = client.query_one(SERVERS, &[]).await?;
    Ok(match (row.try_get(0)?, row.try_get(1)?) {
        (false, _) => Some("Citus does not know its coordinator: run SELECT citus_set_coordinator_host('HOST', PORT)"),
        (_, false) => Some("Citus has no workers: run SELECT citus_add_node('HOST', PORT) for each"),
        (true, true) => None,
    }
    .map(str::to_owned))
}
