//! Making a database ready: recognition, and forward-only migrations that many nodes may start together.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::connector::KEEPALIVES;
use super::database_error::{DatabaseError, SILENT, describe};
use crate::error::OpenError;
use crate::options::OpenOptions;
use crate::url::StoreUrl;

/// A change of the schema. Numbered from 1, never changed once released.
struct Migration {
    statements: &'static str,
    /// The oldest schema whose releases work on the changed one: columns and tables are added first, and taken away
    /// by a later migration, when no older release is running any more.
    oldest: i32,
}

const MIGRATIONS: &[Migration] = &[
    Migration { statements: include_str!("../../../../migrations/postgres/0001_plants.sql"), oldest: 1 },
    Migration { statements: include_str!("../../../../migrations/postgres/0002_keys_and_shares.sql"), oldest: 1 },
];

/// The advisory lock under which the schema is changed ("PLNT").
const LOCK: i64 = 0x504C_4E54;

/// Timeout of a look at the schema.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// Reasons why a schema is not ready.
pub(super) struct Failure {
    pub(super) error: OpenError,
    /// Another attempt, on another connection, may succeed.
    pub(super) may_pass: bool,
}

/// Brings the schema up to date if the options allow it. True when it is new.
pub(super) async fn prepare(client: &Client, url: &StoreUrl, options: &OpenOptions) -> Result<bool, Failure> {
    let ready = match timeout(CHECK_TIMEOUT, is_ready(client, url, options)).await {
        Ok(Ok(true)) => Ok(false),
        Ok(Ok(false)) => migrate(client).await.map_err(Stop::Failed),
        Ok(Err(stop)) => Err(stop),
        Err(_) => Err(Stop::Rejected(OpenError::Unreachable(url.clone(), SILENT.to_owned()))),
    };
    ready.map_err(|stop| match stop {
        Stop::Rejected(error) => Failure { error, may_pass: false },
        Stop::Failed(error) => Failure {
            error: explain(&error, url),
            may_pass: !matches!(DatabaseError::classify(&error), DatabaseError::Permanent(_)),
        },
    })
}

enum Stop {
    Rejected(OpenError),
    Failed(tokio_postgres::Error),
}

async fn is_ready(client: &Client, url: &StoreUrl, options: &OpenOptions) -> Result<bool, Stop> {
    check_encoding(client, url).await?;
    up_to_date(client, url, options).await
}

impl From<tokio_postgres::Error> for Stop {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Failed(error)
    }
}

fn latest() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)
}

/// Names are stored exactly as sent, so the database must be able to hold every character.
async fn check_encoding(client: &Client, url: &StoreUrl) -> Result<(), Stop> {
    let row = client.query_one("SHOW server_encoding", &[]).await?;
    match row.try_get(0)? {
        "UTF8" => Ok(()),
        other => Err(Stop::Rejected(OpenError::Unfit(
            url.clone(),
            format!("its encoding is {other}, which cannot hold every name: make one with ENCODING 'UTF8'"),
        ))),
    }
}

/// Returns whether nothing is left to do; rejects what must not be used or changed.
async fn up_to_date(client: &Client, url: &StoreUrl, options: &OpenOptions) -> Result<bool, Stop> {
    let (version, oldest) = recognise(client).await?;
    if oldest > latest() {
        return Err(Stop::Rejected(OpenError::Newer(url.clone(), version.into(), latest().into())));
    }
    if version >= latest() {
        return Ok(true);
    }
    if version == 0 && !options.create {
        return Err(Stop::Rejected(OpenError::Missing(url.clone())));
    }
    if options.migrate {
        return Ok(false);
    }
    Err(Stop::Rejected(OpenError::Outdated(url.clone(), version.into(), latest().into())))
}

/// The version of the schema, and the oldest whose releases work on it: 0 when there is none.
async fn recognise(client: &Client) -> Result<(i32, i32), tokio_postgres::Error> {
    // Asked of the catalogue's rows: functions such as to_regclass may return what the session knew before it
    // waited for the lock.
    const TABLE: &str = "
        SELECT count(*) = 1 FROM pg_catalog.pg_tables
        WHERE schemaname = 'plantstore' AND tablename = 'schema_versions'";
    const VERSIONS: &str = "SELECT coalesce(max(version), 0), coalesce(max(oldest), 0) FROM plantstore.schema_versions";
    if !client.query_one(TABLE, &[]).await?.try_get::<_, bool>(0)? {
        return Ok((0, 0));
    }
    let row = client.query_one(VERSIONS, &[]).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// Changes the schema in one transaction, which takes as long as it needs: neither the wait for another node nor a statement on
/// a large table nor a slow machine ends it. A node that vanishes without a word is noticed by the server's keepalives.
async fn migrate(client: &Client) -> Result<bool, tokio_postgres::Error> {
    // Whatever the database's default: at a higher level what is seen under the lock is from before the wait for it.
    const BEGIN: &str = "
        BEGIN ISOLATION LEVEL READ COMMITTED;
        SET LOCAL statement_timeout = 0;
        SET LOCAL lock_timeout = 0;
        SET LOCAL idle_in_transaction_session_timeout = 0";
    // Engines that do not know these settings do as they like.
    for setting in KEEPALIVES {
        let _ = client.batch_execute(&format!("SET {setting}")).await;
    }
    client.batch_execute(BEGIN).await?;
    if !client.query_one("SELECT pg_try_advisory_xact_lock($1)", &[&LOCK]).await?.try_get(0)? {
        tracing::warn!("another process is changing the schema: waiting for it");
        client.execute("SELECT pg_advisory_xact_lock($1)", &[&LOCK]).await?;
    }
    // Looked at again under the lock: another node may have come first.
    let (found, _) = recognise(client).await?;
    if found == 0 {
        // Not IF NOT EXISTS, which asks for the right to make one even where an administrator has made it.
        const ABSENT: &str = "SELECT count(*) = 0 FROM pg_catalog.pg_namespace WHERE nspname = 'plantstore'";
        if client.query_one(ABSENT, &[]).await?.try_get(0)? {
            client.batch_execute("CREATE SCHEMA plantstore").await?;
        }
    }
    for (number, migration) in (1..).zip(MIGRATIONS).skip(usize::try_from(found).unwrap_or(0)) {
        client.batch_execute(migration.statements).await?;
        client
            .execute(
                "INSERT INTO plantstore.schema_versions (version, oldest) VALUES ($1, $2)",
                &[&number, &migration.oldest],
            )
            .await?;
    }
    client.batch_execute("COMMIT").await?;
    Ok(found == 0)
}

/// Says what to do about what the database said.
fn explain(error: &tokio_postgres::Error, url: &StoreUrl) -> OpenError {
    let code = error.code();
    if code == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        let advice = "run `plantstore migrate` with a role that may change the schema, and give this one its rights";
        return OpenError::Unfit(url.clone(), format!("{}: {advice}", describe(error)));
    }
    // A table or a type that exists, a column or a table that does not.
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
