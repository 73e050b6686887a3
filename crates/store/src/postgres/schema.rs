//! Start of the engine: the first connection, and the schema with its forward-only migrations, which nodes may start concurrently.
//! Transient errors are retried.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::citus::place_new_tables;
use super::connect::{Connector, DatabaseError, KEEPALIVES, NO_RESPONSE, backoff, describe};
use super::connection_role::ConnectionRole;
use super::dialect::{Dialect, execute_each};
use crate::error::OpenError;
use crate::options::{OpenOptions, SchemaChange, report_migration};
use crate::url::StoreUrl;

/// A migration. A released migration is never changed.
struct Migration {
    /// Each statement ends with `;` at the end of a line, and no other line does.
    statements: &'static str,
    /// The oldest schema version whose releases work with the new schema. Columns and tables are added by one migration, and
    /// removed by a later one, when no older release is running any more.
    oldest: i32,
}

impl Migration {
    fn each_statement(&self) -> impl Iterator<Item = &'static str> {
        self.statements.split_inclusive(";\n")
    }
}

const MIGRATIONS: &[Migration] = &[
    Migration { statements: include_str!("../../../../migrations/postgres/0001_plants.sql"), oldest: 1 },
    Migration { statements: include_str!("../../../../migrations/postgres/0002_keys_and_shares.sql"), oldest: 1 },
    Migration { statements: include_str!("../../../../migrations/postgres/0003_self_service.sql"), oldest: 1 },
    Migration { statements: include_str!("../../../../migrations/postgres/0004_one_table_of_shares.sql"), oldest: 1 },
];

/// The advisory lock for migrations ("PLNT").
const LOCK: i64 = 0x504C_4E54;

/// Timeout of the schema check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

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
        match prepare(&client, dialect, url, options.schema_change).await {
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

/// Error of preparing a schema.
struct PrepareError {
    error: OpenError,
    /// True if another attempt, on another connection, may succeed.
    is_transient: bool,
}

/// Creates or migrates the schema if that is allowed. Returns true if it is new.
async fn prepare(
    client: &Client,
    dialect: Dialect,
    url: &StoreUrl,
    change: SchemaChange,
) -> Result<bool, PrepareError> {
    let ready = match timeout(CHECK_TIMEOUT, is_change_needed(client, url, change)).await {
        Ok(Ok(false)) => Ok(false),
        Ok(Ok(true)) => migrate(client, dialect, url, change).await,
        Ok(Err(error)) => Err(error),
        Err(_) => Err(SchemaError::Rejected(OpenError::Unreachable(url.clone(), NO_RESPONSE.to_owned()))),
    };
    ready.map_err(|error| match error {
        SchemaError::Rejected(error) => PrepareError { error, is_transient: false },
        SchemaError::Failed(error) => PrepareError {
            error: explain(&error, url),
            is_transient: !matches!(DatabaseError::classify(&error), DatabaseError::Permanent(_)),
        },
    })
}

enum SchemaError {
    Rejected(OpenError),
    Failed(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for SchemaError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<OpenError> for SchemaError {
    fn from(error: OpenError) -> Self {
        Self::Rejected(error)
    }
}

fn latest() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// Requires UTF-8, because names are stored exactly as sent.
async fn check_encoding(client: &Client, url: &StoreUrl) -> Result<(), SchemaError> {
    let row = client.query_one("SHOW server_encoding", &[]).await?;
    match row.try_get(0)? {
        "UTF8" => Ok(()),
        other => Err(SchemaError::Rejected(OpenError::Unfit(
            url.clone(),
            format!("its encoding is {other}, which cannot store every name: create one with ENCODING 'UTF8'"),
        ))),
    }
}

/// Returns true if the schema must be created or migrated.
async fn is_change_needed(client: &Client, url: &StoreUrl, change: SchemaChange) -> Result<bool, SchemaError> {
    check_encoding(client, url).await?;
    let (version, oldest) = read_versions(client).await?;
    if oldest > latest() {
        return Err(OpenError::Newer(url.clone(), version, latest()).into());
    }
    Ok(change.is_needed(url, version, latest())?)
}

/// Returns the version of the schema, and the oldest version whose releases work with it: 0 if there is no schema.
async fn read_versions(client: &Client) -> Result<(i64, i64), tokio_postgres::Error> {
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
pub(super) async fn begin(client: &Client) -> Result<(), tokio_postgres::Error> {
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

/// Migrates the schema in one transaction.
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
        for statement in migration.each_statement() {
            client.batch_execute(statement).await?;
        }
        client
            .execute(
                "INSERT INTO plantstore.schema_versions (version, oldest) VALUES ($1, $2)",
                &[&number, &migration.oldest],
            )
            .await?;
    }
    place_new_tables(client, dialect).await?;
    client.batch_execute("COMMIT").await?;
    report_migration(url, found, latest());
    Ok(found == 0)
}

/// Converts an error of the database, with advice.
pub(super) fn explain(error: &tokio_postgres::Error, url: &StoreUrl) -> OpenError {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_split_into_single_statements() {
        for statement in MIGRATIONS.iter().flat_map(Migration::each_statement) {
            let lines: Vec<&str> =
                statement.lines().filter(|line| !line.starts_with("--") && !line.is_empty()).collect();
            let first = lines.first().copied().unwrap_or_default();
            assert!(
                ["CREATE ", "ALTER ", "INSERT ", "UPDATE ", "DELETE "].iter().any(|word| first.starts_with(word)),
                "{statement}"
            );
            assert_eq!(lines.iter().filter(|line| line.contains(';')).count(), 1, "{statement}");
            assert_eq!(statement.matches("$$").count(), 0, "{statement}");
        }
    }
}
