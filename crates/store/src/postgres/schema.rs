//! Start of the engine: the first connection, and the schema with its forward-only migrations, which nodes may start concurrently.
//! Transient errors are retried. Also distributes a database over the workers of Citus, by an operator.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use super::citus::{PlacedTable, place_tables};
use super::connect::{
    ConnectionRole, Connector, DatabaseError, Dialect, KEEPALIVES, NO_RESPONSE, PLANNER_SETTINGS, PostgresMetrics,
    SEARCH_PATH, backoff, describe, execute_each,
};
use crate::error::OpenError;
use crate::options::{OpenOptions, SchemaChange, report_migration};
use crate::url::{PostgresUrl, StoreUrl};

/// A migration. A released migration is never changed.
struct Migration {
    /// Each statement ends with `;` at the end of a line, and no other line does.
    statements: &'static str,
    /// The oldest schema version whose releases work with the new schema. Columns and tables are added by one migration, and
    /// removed by a later one, when no older release is running any more.
    oldest: i32,
}

const MIGRATIONS: &[Migration] = &[
    Migration { statements: include_str!("../../../../migrations/postgres/0001_plants.sql"), oldest: 1 },
    Migration { statements: include_str!("../../../../migrations/postgres/0002_keys_and_shares.sql"), oldest: 1 },
    Migration { statements: include_str!("../../../../migrations/postgres/0003_self_service.sql"), oldest: 1 },
    Migration { statements: include_str!("../../../../migrations/postgres/0004_one_table_of_shares.sql"), oldest: 1 },
];

/// The advisory lock for migrations ("PLNT").
const LOCK: i64 = 0x504C_4E54;

const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// Timeout for a database that is not reachable yet.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of retries after a transient error, such as a lost connection or a deadlock.
const SCHEMA_RETRIES: u32 = 5;

/// A database whose schema is ready.
pub(crate) struct Started {
    pub(super) connector: Connector,
    pub(crate) client: Client,
    pub(crate) dialect: Dialect,
    pub(crate) url: StoreUrl,
    pub(super) is_new: bool,
}

/// Connects to a database and prepares its schema.
pub(super) async fn start(
    url: &PostgresUrl,
    options: &OpenOptions,
    metrics: &Arc<PostgresMetrics>,
) -> Result<Started, OpenError> {
    let store_url = StoreUrl::Postgres(Box::new(url.clone()));
    let connector = Connector::new(url, options.timeout, metrics);
    let connector = connector.map_err(|reason| OpenError::Unfit(store_url.clone(), reason))?;
    let url = store_url;
    let mut failures = 0;
    loop {
        let (client, dialect) = connect(&connector, &url, options.await_server).await?;
        let error = match prepare(&client, dialect, &url, options.schema_change).await {
            Ok(is_new) => return Ok(Started { connector, client, dialect, url, is_new }),
            Err(SchemaError::Rejected(error)) => return Err(error),
            Err(SchemaError::Failed(error)) => error,
        };
        let explained = explain(&error, &url);
        if failures == SCHEMA_RETRIES || matches!(DatabaseError::classify(&error), DatabaseError::Permanent(_)) {
            return Err(explained);
        }
        tracing::warn!(error = %explained, "cannot prepare the schema: retrying");
        sleep(backoff(failures)).await;
        failures += 1;
    }
}

/// Connects for an operator's command.
pub(crate) async fn start_command(
    url: &PostgresUrl,
    schema_change: SchemaChange,
    timeout: Duration,
) -> Result<Started, OpenError> {
    start(url, &OpenOptions::of_command(schema_change, timeout), &Arc::default()).await
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

/// Creates or migrates the schema if that is allowed. Returns true if it is new.
async fn prepare(client: &Client, dialect: Dialect, url: &StoreUrl, change: SchemaChange) -> Result<bool, SchemaError> {
    let needed = timeout(CHECK_TIMEOUT, is_change_needed(client, url, change)).await;
    let needed = needed.map_err(|_| OpenError::Unreachable(url.clone(), NO_RESPONSE.to_owned()))??;
    if needed { migrate(client, dialect, url, change).await } else { Ok(false) }
}

#[derive(thiserror::Error, Debug)]
#[error(transparent)]
enum SchemaError {
    Rejected(#[from] OpenError),
    Failed(#[from] Error),
}

fn latest() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// Returns true if the schema must be created or migrated.
async fn is_change_needed(client: &Client, url: &StoreUrl, change: SchemaChange) -> Result<bool, SchemaError> {
    let row = client.query_one("SHOW server_encoding", &[]).await?;
    let encoding: &str = row.try_get(0)?;
    if encoding != "UTF8" {
        let reason =
            format!("its encoding is {encoding}, which cannot store every name: create one with ENCODING 'UTF8'");
        return Err(OpenError::Unfit(url.clone(), reason).into());
    }
    let (version, oldest) = read_versions(client).await?;
    if oldest > latest() {
        return Err(OpenError::Newer(url.clone(), version, latest()).into());
    }
    Ok(change.is_needed(url, version, latest())?)
}

/// Returns the version of the schema, and the oldest version whose releases work with it: 0 if there is no schema.
async fn read_versions(client: &Client) -> Result<(i64, i64), Error> {
    // Reads the catalog tables, because functions such as to_regclass may return cached results from before the wait for
    // the lock.
    const TABLE: &str = "
        SELECT count(*) = 1 FROM pg_catalog.pg_tables
        WHERE schemaname = 'plantstore' AND tablename = 'schema_versions'";
    const VERSIONS: &str = "SELECT coalesce(max(version), 0), coalesce(max(oldest), 0) FROM plantstore.schema_versions";
    if !client.query_one(TABLE, &[]).await?.try_get::<_, bool>(0)? {
        return Ok((0, 0));
    }
    let row = client.query_one(VERSIONS, &[]).await?;
    Ok((row.try_get::<_, i32>(0)?.into(), row.try_get::<_, i32>(1)?.into()))
}

/// Begins a transaction that changes the schema, without timeouts, because waiting for another node and changing a large table may
/// take long. The server detects with keepalives that a node is gone.
async fn begin(client: &Client) -> Result<(), Error> {
    // At a higher isolation level the snapshot would be from before the wait for the lock.
    const BEGIN: &[&str] = &[
        "BEGIN ISOLATION LEVEL READ COMMITTED",
        "SET LOCAL statement_timeout = 0",
        "SET LOCAL lock_timeout = 0",
        "SET LOCAL idle_in_transaction_session_timeout = 0",
    ];
    // Compatible databases may not know these settings.
    for setting in KEEPALIVES {
        let _ = client.batch_execute(&format!("SET {setting}")).await;
    }
    execute_each(client, BEGIN).await?;
    if !client.query_one("SELECT pg_try_advisory_xact_lock($1)", &[&LOCK]).await?.try_get(0)? {
        tracing::warn!("another process is migrating the schema: waiting for it");
        client.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    }
    Ok(())
}

async fn migrate(client: &Client, dialect: Dialect, url: &StoreUrl, change: SchemaChange) -> Result<bool, SchemaError> {
    begin(client).await?;
    // Checked again under the lock, because another node may have created or migrated it.
    let (found, _) = read_versions(client).await?;
    change.is_needed(url, found, latest())?;
    if found == 0 {
        // IF NOT EXISTS would require the privilege to create schemas even if the schema exists.
        const ABSENT: &str = "SELECT count(*) = 0 FROM pg_catalog.pg_namespace WHERE nspname = 'plantstore'";
        if client.query_one(ABSENT, &[]).await?.try_get(0)? {
            client.batch_execute("CREATE SCHEMA plantstore").await?;
        }
    }
    for (number, migration) in (1..).zip(MIGRATIONS).skip(usize::try_from(found).unwrap_or(0)) {
        // Each statement in its own message, because Citus sends the whole message to its workers if a table is distributed.
        for statement in migration.statements.split_inclusive(";\n") {
            client.batch_execute(statement).await?;
        }
        client
            .execute(
                "INSERT INTO plantstore.schema_versions (version, oldest) VALUES ($1, $2)",
                &[&number, &migration.oldest],
            )
            .await?;
    }
    if dialect == Dialect::Citus {
        place_tables(client).await?;
    }
    client.batch_execute("COMMIT").await?;
    report_migration(url, found, latest());
    Ok(found == 0)
}

/// Converts an error of the database, with advice.
fn explain(error: &Error, url: &StoreUrl) -> OpenError {
    let code = error.code();
    if code == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        let advice =
            "run `plantstore migrate` with a role that may change the schema, and grant this role its privileges";
        return OpenError::Unfit(url.clone(), format!("{}: {advice}", describe(error)));
    }
    // A table or type exists already, or a column or table is missing.
    if code.is_some_and(|code| matches!(code.code(), "42P07" | "42710" | "42703" | "42P01" | "42804" | "42883")) {
        return OpenError::Unfit(
            url.clone(),
            format!("its schema `plantstore` belongs to another program ({}): use another database", describe(error)),
        );
    }
    if code.is_some() {
        return OpenError::Unfit(url.clone(), describe(error));
    }
    OpenError::Unreachable(url.clone(), describe(error))
}

/// Distributes the tables of a database, which must have the current schema. Tables that are distributed stay as they are.
pub(crate) async fn distribute(
    url: &PostgresUrl,
    shards_per_worker: u32,
    timeout: Duration,
) -> Result<Vec<PlacedTable>, OpenError> {
    let Started { client, url, .. } = start_command(url, SchemaChange::None, timeout).await?;
    let distributing = async {
        if let Some(reason) = missing(&client).await? {
            return Ok(Err(reason));
        }
        begin(&client).await?;
        // All operations of a transaction must use the same connection to each worker.
        client.batch_execute("SET LOCAL citus.multi_shard_modify_mode = 'sequential'").await?;
        set_shard_count(&client, shards_per_worker).await?;
        let placed = place_tables(&client).await?;
        set_defaults(&client).await?;
        client.batch_execute("COMMIT").await?;
        Ok(Ok(placed))
    };
    let distributed: Result<_, Error> = distributing.await;
    distributed.map_err(|error| explain(&error, &url))?.map_err(|reason| OpenError::Unfit(url, reason))
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
