//! Distribution of a database over the workers of Citus, by an operator, and placement of its tables.
//!
//! The rows of a user are on one worker. Every server has a copy of the tables that all requests read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::{Client, Error};

use super::dialect::{Dialect, PLANNER_SETTINGS};
use crate::error::OpenError;
use crate::options::{OpenOptions, SchemaChange};
use crate::postgres::connect::{Connector, SEARCH_PATH};
use crate::postgres::schema::{self, explain};
use crate::url::{PostgresUrl, StoreUrl};

/// Tables that are distributed by the user id. Equal ids are on the same worker.
const BY_USER: [&str; 3] = ["collections", "plants", "idempotency_keys"];
/// Tables whose rows stay on the coordinator, in transactions with other servers. Workers can read and write them.
const ON_COORDINATOR: [&str; 2] = ["schema_versions", "writers"];

/// Placement of a table on Citus. All tables that are not named above are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    Distributed,
    Copied,
    Coordinator,
}

impl fmt::Display for Placement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Distributed => "distributed by user",
            Self::Copied => "copied to every server",
            Self::Coordinator => "on the coordinator",
        })
    }
}

impl Placement {
    pub(in crate::postgres) fn of(table: &str) -> Self {
        match table {
            table if ON_COORDINATOR.contains(&table) => Self::Coordinator,
            table if BY_USER.contains(&table) => Self::Distributed,
            _ => Self::Copied,
        }
    }

    /// Returns the statement that places the table `$1`.
    fn statement(self) -> &'static str {
        match self {
            Self::Distributed => "SELECT create_distributed_table($1::text::regclass, 'user_id', colocate_with := $2)",
            Self::Copied => "SELECT create_reference_table($1::text::regclass)",
            Self::Coordinator => "SELECT citus_add_local_table_to_metadata($1::text::regclass)",
        }
    }
}

/// A table and its placement.
#[derive(Clone, Debug)]
pub struct PlacedTable {
    pub name: String,
    pub placement: Placement,
    /// False if the table had this placement already.
    pub was_placed: bool,
}

/// Places all tables that are not placed yet, in the open transaction.
pub(in crate::postgres) async fn place_tables(client: &Client) -> Result<Vec<PlacedTable>, Error> {
    // Tables that refer to others come after them; those that define shards come first. Shards of the coordinator are tables of the same schema.
    const TABLES: &str = "
        SELECT relname::text, partmethod::text, repmodel::text
        FROM pg_catalog.pg_class LEFT JOIN pg_catalog.pg_dist_partition ON logicalrelid = pg_class.oid
        WHERE relnamespace = 'plantstore'::regnamespace AND relkind = 'r' AND NOT relation_is_a_known_shard(pg_class.oid)
        ORDER BY (SELECT count(*) FROM pg_catalog.pg_constraint WHERE conrelid = pg_class.oid AND contype = 'f'), relname";
    let mut placed = Vec::new();
    for row in client.query(TABLES, &[]).await? {
        let (name, method, replication): (String, Option<String>, Option<String>) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let placement = Placement::of(&name);
        let was_placed = match placement {
            Placement::Distributed => method.as_deref() != Some("h"),
            Placement::Copied => replication.as_deref() != Some("t"),
            Placement::Coordinator => method.is_none(),
        };
        if was_placed {
            place(client, &name, placement).await?;
        }
        placed.push(PlacedTable { name, placement, was_placed });
    }
    Ok(placed)
}

async fn place(client: &Client, name: &str, placement: Placement) -> Result<(), Error> {
    let table = format!("plantstore.{name}");
    match placement {
        Placement::Distributed => {
            // The first one, in the order of names, defines the shards.
            let with = if name == BY_USER[0] { "none".to_owned() } else { format!("plantstore.{}", BY_USER[0]) };
            client.execute(placement.statement(), &[&table, &with]).await?;
            // The rows were copied to the workers.
            let truncate = "SELECT truncate_local_data_after_distributing_table($1::text::regclass)";
            client.execute(truncate, &[&table]).await.map(|_| ())
        }
        Placement::Copied | Placement::Coordinator => {
            client.execute(placement.statement(), &[&table]).await.map(|_| ())
        }
    }
}

/// Places the tables that a migration has created.
pub(in crate::postgres) async fn place_new_tables(client: &Client, dialect: Dialect) -> Result<(), Error> {
    if dialect == Dialect::Citus {
        place_tables(client).await?;
    }
    Ok(())
}

/// Distributes the tables of a database, which must have the current schema. Tables that are distributed stay as they are.
pub(crate) async fn distribute(
    url: &PostgresUrl,
    shards_per_worker: u32,
    timeout: Duration,
) -> Result<Vec<PlacedTable>, OpenError> {
    let store_url = StoreUrl::Postgres(Box::new(url.clone()));
    let unfit = |reason: String| OpenError::Unfit(store_url.clone(), reason);
    let connector = Connector::new(url, timeout, &Arc::default()).map_err(unfit)?;
    let options = OpenOptions {
        schema_change: SchemaChange::None,
        write_queue: 1,
        readers: 1,
        admin_timeout: timeout,
        timeout,
        await_server: false,
        worker_addresses: None,
    };
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
