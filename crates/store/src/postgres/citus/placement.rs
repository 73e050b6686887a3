//! Placement of tables on the servers of Citus. The rows of a user are on one worker. Every server has a copy of the tables that all
//! requests read.

use std::fmt;

use tokio_postgres::{Client, Error};

use crate::postgres::dialect::Dialect;

/// Tables that are distributed by the user id. Equal ids are on the same worker.
pub(super) const BY_USER: [&str; 3] = ["collections", "plants", "idempotency_keys"];
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
