//! Citus, which distributes tables over several servers (workers): placement of tables, and of rows by the hash of the user id.
//!
//! The rows of a user are on one worker. Every server has a copy of the tables that all requests read. Citus rejects some
//! statements: those that differ are in [`statements`](super::statements).

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError, RwLock};

use tokio_postgres::{Client, Error};

/// Tables that are distributed by the user id. Equal ids are on the same worker.
const BY_USER: [&str; 3] = ["collections", "plants", "idempotency_keys"];
/// Tables whose rows stay on the coordinator, in transactions with other servers. Workers can read and write them.
const ON_COORDINATOR: [&str; 2] = ["schema_versions", "writers"];

/// Tables of which every server has a copy, as of all others that are not named above.
const COPIED: [&str; 4] = ["departed_users", "shares_by_name", "tokens", "users"];

/// Placement of a table on Citus.
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
    fn of(table: &str) -> Self {
        match table {
            table if ON_COORDINATOR.contains(&table) => Self::Coordinator,
            table if BY_USER.contains(&table) => Self::Distributed,
            _ => Self::Copied,
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
pub(super) async fn place_tables(client: &Client) -> Result<Vec<PlacedTable>, Error> {
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
    const DISTRIBUTE: &str = "SELECT create_distributed_table($1::text::regclass, 'user_id', colocate_with := $2)";
    // The rows were copied to the workers.
    const TRUNCATE: &str = "SELECT truncate_local_data_after_distributing_table($1::text::regclass)";
    const COPY: &str = "SELECT create_reference_table($1::text::regclass)";
    const ADD: &str = "SELECT citus_add_local_table_to_metadata($1::text::regclass)";
    let table = format!("plantstore.{name}");
    let placed = match placement {
        Placement::Distributed => {
            // The first one, in the order of names, defines the shards.
            let with = if name == BY_USER[0] { "none".to_owned() } else { format!("plantstore.{}", BY_USER[0]) };
            client.execute(DISTRIBUTE, &[&table, &with]).await?;
            client.execute(TRUNCATE, &[&table]).await
        }
        Placement::Copied => client.execute(COPY, &[&table]).await,
        Placement::Coordinator => client.execute(ADD, &[&table]).await,
    };
    placed.map(|_| ())
}

/// Returns the hash by which Citus places a row: that of PostgreSQL's function `hashint8`.
pub(super) fn hash(id: i64) -> i32 {
    let [b0, b1, b2, b3, b4, b5, b6, b7] = id.to_le_bytes();
    let high = u32::from_le_bytes([b4, b5, b6, b7]);
    let key = u32::from_le_bytes([b0, b1, b2, b3]) ^ if id < 0 { !high } else { high };
    // Bob Jenkins' function for one word.
    let start = 0x9e37_79b9_u32.wrapping_add(4).wrapping_add(3_923_095);
    let mut words = [start.wrapping_add(key), start, start];
    for (target, source, rotation) in
        [(2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24)]
    {
        let from: u32 = words[source];
        words[target] = (words[target] ^ from).wrapping_sub(from.rotate_left(rotation));
    }
    words[2].cast_signed()
}

/// A shard: the rows of some users, in tables of one server.
///
/// Citus plans a statement about a distributed table for each execution. One about the tables of a shard costs what it costs on
/// PostgreSQL, but Citus does not check it. Shards move: until the server drops them, tables that it no longer uses stay. So
///
/// - a read of these tables finds rows only if the catalog, in the same snapshot, has the shard on this server;
/// - a write first locks the shard as Citus does for its own writes ([`LOCK`]). Then the statement that locks the rows of users finds
///   them under the same condition. Before Citus copies the last rows of a shard, it waits for these locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// The server, as the catalog numbers them.
    group: i32,
    pub(super) hashes: RangeInclusive<i32>,
    /// The numbers in the names of its tables, in the order of [`BY_USER`].
    ids: Vec<i64>,
}

/// Locks the shards `$1` in share mode, until the end of the transaction. Only the owner of the tables may do that.
pub(super) const LOCK: &str = "SELECT lock_shard_metadata(5, $1)";
/// Counts the shards `$1` that are on this server.
pub(super) const COUNT: &str = "
    SELECT count(*) FROM pg_catalog.pg_dist_placement JOIN pg_catalog.pg_dist_local_group USING (groupid)
    WHERE shardid = ANY($1)";

impl Shard {
    /// Returns the number of the table that is locked. Citus moves the others with it.
    pub(super) fn id(&self) -> i64 {
        self.ids[0]
    }

    /// Returns true if this connection is to the server of the shard. The number of a server is never given to another one.
    pub(super) async fn is_of(&self, client: &Client) -> Result<bool, Error> {
        const LOCAL: &str = "SELECT groupid FROM pg_catalog.pg_dist_local_group";
        Ok(client.query_one(LOCAL, &[]).await?.try_get::<_, i32>(0)? == self.group)
    }

    pub(super) fn contains(&self, id: i64) -> bool {
        self.hashes.contains(&hash(id))
    }

    /// Returns a statement about distributed tables as one about the tables of this shard.
    pub(super) fn statement(&self, text: &str) -> String {
        // Generic plans are not forced on Citus. PostgreSQL chooses one if values do not promise a lower cost, as a small limit does.
        let mut statement = text.replace("LIMIT $3", "LIMIT (SELECT $3::bigint)");
        for (table, id) in BY_USER.iter().zip(&self.ids) {
            statement = use_table(&statement, "plantstore.", table, *id);
        }
        match statement.rsplit_once("WHERE ") {
            Some((selected, condition))
                if statement.starts_with("SELECT") || statement.starts_with("UPDATE plantstore.collections") =>
            {
                format!(
                    "{selected}WHERE EXISTS (
                       SELECT FROM pg_catalog.pg_dist_placement WHERE shardid = {} AND groupid = {}) AND {condition}",
                    self.id(),
                    self.group
                )
            }
            _ => statement,
        }
    }
}

/// Returns a statement in which the table of a shard replaces this one where it follows `before`.
fn use_table(statement: &str, before: &str, table: &str, id: i64) -> String {
    let before_table = before.trim_end_matches("plantstore.");
    statement
        .replace(&format!("{before}{table}"), &format!("{before_table}plantstore.{table}_{id} AS {table}"))
        // This one has another name already.
        .replace(&format!(" AS {table} AS "), " AS ")
}

/// The numbers in the names of the copies of [`COPIED`], which are the same on all servers; empty without Citus.
#[derive(Default)]
pub(super) struct Copies(Vec<i64>);

impl Copies {
    /// Returns a statement that reads copied tables as one that reads the copies of the server that executes it. It finds rows only if
    /// the catalog, in the same snapshot, has all copies on this server. `None` if it reads no copied tables, or has a limit.
    pub(super) fn statement(&self, text: &str) -> Option<String> {
        let mut statement = text.to_owned();
        for (table, id) in COPIED.iter().zip(&self.0) {
            statement = use_table(&use_table(&statement, "FROM ", table, *id), "JOIN ", table, *id);
        }
        let ids = self.0.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        (statement != text && !text.contains("LIMIT ")).then(|| {
            format!(
                "{statement} LIMIT (
                   SELECT CASE count(*) WHEN {} THEN NULL ELSE 0 END
                   FROM pg_catalog.pg_dist_placement JOIN pg_catalog.pg_dist_local_group USING (groupid)
                   WHERE shardid IN ({ids}))",
                self.0.len()
            )
        })
    }
}

/// The shards that are on a server, in the order of their ids.
#[derive(Default)]
pub(super) struct ShardList {
    pub(super) shards: Vec<Shard>,
    /// Statement that reads versions. Its parameters are the users of each shard.
    pub(super) versions: String,
}

impl ShardList {
    fn new(shards: &[Shard]) -> Self {
        const VERSIONS: &str = "SELECT user_id, version FROM plantstore.collections WHERE user_id = ANY($1::bigint[])";
        let each =
            (1..).zip(shards).map(|(number, shard)| shard.statement(VERSIONS).replace("$1", &format!("${number}")));
        Self { shards: shards.to_vec(), versions: each.collect::<Vec<_>>().join(" UNION ALL ") }
    }

    pub(super) fn of(&self, id: i64) -> Option<&Shard> {
        self.shards.iter().find(|shard| shard.contains(id))
    }
}

/// The present shards of a server.
#[derive(Default)]
pub(super) struct Shards(RwLock<Arc<ShardList>>);

impl Shards {
    pub(super) fn set(&self, shards: &[Shard]) {
        if self.get().shards != shards {
            *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ShardList::new(shards));
        }
    }

    /// Returns the shards. The result is the same object until they change.
    pub(super) fn get(&self) -> Arc<ShardList> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if a row may be on the server. Without shards, any row may be there.
    pub(super) fn may_contain(&self, id: i64) -> bool {
        let list = self.get();
        list.shards.is_empty() || list.of(id).is_some()
    }
}

/// A server that has rows of users.
pub(super) struct ShardServer {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_coordinator: bool,
    pub(super) shards: Vec<Shard>,
}

/// Reads the servers that have shards, and the copied tables, from the catalog, which every server has.
pub(super) async fn read_catalog(client: &Client) -> Result<(Vec<ShardServer>, Copies), Error> {
    const SHARDS: &str = "
        SELECT nodename, nodeport, groupid, shardminvalue::integer, shardmaxvalue::integer,
          array_agg(shardid ORDER BY array_position($1::text[], relname::text))
        FROM pg_catalog.pg_dist_shard JOIN pg_catalog.pg_dist_placement USING (shardid)
        JOIN pg_catalog.pg_dist_node USING (groupid) JOIN pg_catalog.pg_class ON pg_class.oid = logicalrelid
        WHERE relnamespace = 'plantstore'::regnamespace AND relname = ANY($1::text[]) AND noderole = 'primary'
        GROUP BY nodename, nodeport, groupid, shardminvalue, shardmaxvalue
        ORDER BY nodename, nodeport, min(shardid)";
    let tables = [&BY_USER[..], &COPIED[..]].concat();
    let mut servers: Vec<ShardServer> = Vec::new();
    let mut copies = Copies::default();
    for row in client.query(SHARDS, &[&tables]).await? {
        let host: String = row.try_get(0)?;
        let port = u16::try_from(row.try_get::<_, i32>(1)?).unwrap_or_default();
        let group = row.try_get(2)?;
        let ids: Vec<i64> = row.try_get(5)?;
        let (Some(first), Some(last)) = (row.try_get(3)?, row.try_get(4)?) else {
            // A copied table has one shard for all users.
            if ids.len() == COPIED.len() {
                copies = Copies(ids);
            }
            continue;
        };
        let shard = Shard { group, hashes: first..=last, ids };
        match servers.last_mut() {
            Some(server) if server.host == host && server.port == port => server.shards.push(shard),
            _ => servers.push(ShardServer { host, port, is_coordinator: group == 0, shards: vec![shard] }),
        }
    }
    Ok((servers, copies))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_that_of_postgresql() {
        // SELECT hashint8(id)
        let hashes = [
            (0, -272_711_505),
            (1, -1_905_060_026),
            (42, 1_509_752_520),
            (-1, 385_747_274),
            (1 << 32, -1_905_060_026),
            (i64::MAX, -1_524_351_049),
            (i64::MIN, -96_758_253),
            (-123_456_789_012_345, -2_027_941_335),
        ];
        for (id, hashed) in hashes {
            assert_eq!(hash(id), hashed, "{id}");
        }
    }
}
