//! Kinds of databases and the settings of their sessions.

use futures_util::future::try_join_all;
use tokio_postgres::{Client, Error};

/// Settings of the planner. All statements must use the indexes, even if the tables are empty or their statistics outdated when
/// the statements are planned. The high cost estimates that result would trigger the JIT compiler, which is off.
pub(in crate::postgres) const PLANNER_SETTINGS: &[&str] = &[
    "enable_seqscan = off",
    "enable_bitmapscan = off",
    "enable_hashjoin = off",
    "enable_mergejoin = off",
    "jit = off",
];

/// Kind of a database, found out once for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Postgres,
    /// PostgreSQL with the extension Citus, whose plants are distributed.
    Citus,
}

impl Dialect {
    pub(in crate::postgres) async fn detect(client: &Client) -> Result<Self, Error> {
        const INSTALLED: &str = "SELECT count(*) > 0 FROM pg_catalog.pg_extension WHERE extname = 'citus'";
        const DISTRIBUTED: &str = "
            SELECT count(*) > 0 FROM pg_catalog.pg_dist_partition
            WHERE logicalrelid = to_regclass('plantstore.plants') AND partmethod = 'h'";
        // Without the extension there is no such catalog.
        let is_citus = is_true(client, INSTALLED).await? && is_true(client, DISTRIBUTED).await?;
        Ok(if is_citus { Self::Citus } else { Self::Postgres })
    }

    /// Returns the settings of every session. A server that does not know one of them ignores it.
    pub(in crate::postgres) fn settings(self) -> impl Iterator<Item = &'static &'static str> {
        let settings: &[&str] = match self {
            Self::Postgres => &["plan_cache_mode = force_generic_plan", "idle_session_timeout = 0"],
            // Workers plan each statement with its values. One connection to each worker, and one shard after the other in the
            // order of shards: so transactions lock rows in the same order on all nodes, and a worker has one snapshot for all
            // statements of a transaction. `SET LOCAL` also applies to workers.
            Self::Citus => &[
                "idle_session_timeout = 0",
                "citus.multi_shard_modify_mode = 'sequential'",
                "citus.max_adaptive_executor_pool_size = 1",
                "citus.propagate_set_commands = 'local'",
                // Citus 13.2 plans local statements of this kind on every execution, and keeps all plans in memory.
                "citus.enable_fast_path_router_planner = off",
            ],
        };
        PLANNER_SETTINGS.iter().chain(settings)
    }
}

/// Executes statements without results in one round trip, each in its own message. Citus sends the whole message that contains a
/// `SET LOCAL` to its workers, which must not execute the other statements.
pub(crate) async fn execute_each(client: &Client, statements: &[&str]) -> Result<(), Error> {
    try_join_all(statements.iter().map(|statement| client.batch_execute(statement))).await.map(|_| ())
}

async fn is_true(client: &Client, statement: &str) -> Result<bool, Error> {
    client.query_one(statement, &[]).await?.try_get(0)
}
