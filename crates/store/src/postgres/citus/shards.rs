//! Placement of rows on the servers of Citus, by the hash of the user id.

use std::ops::RangeInclusive;
use std::sync::{Arc, PoisonError, RwLock};

use tokio_postgres::{Client, Error};

use super::placement::BY_USER;

/// Returns the hash by which Citus places a row: that of PostgreSQL's function `hashint8`.
pub(in crate::postgres) fn hash(id: i64) -> i32 {
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
/// - a write first locks the shard as Citus does for its own writes ([`LOCK`]), and then looks it up in the catalog ([`COUNT`]).
///   Before Citus copies the last rows of a shard, it waits for these locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// The server, as the catalog numbers them.
    group: i32,
    hashes: RangeInclusive<i32>,
    /// The numbers in the names of its tables, in the order of [`BY_USER`].
    ids: Vec<i64>,
}

/// Locks the shards `$1` in share mode, until the end of the transaction. Only the owner of the tables may do that.
pub(in crate::postgres) const LOCK: &str = "SELECT lock_shard_metadata(5, $1)";
/// Counts the shards `$1` that are on this server.
pub(in crate::postgres) const COUNT: &str = "
    SELECT count(*) FROM pg_catalog.pg_dist_placement JOIN pg_catalog.pg_dist_local_group USING (groupid)
    WHERE shardid = ANY($1)";

impl Shard {
    /// Returns the number of the table that is locked. Citus moves the others with it.
    pub(in crate::postgres) fn id(&self) -> i64 {
        self.ids[0]
    }

    /// Returns true if this connection is to the server of the shard. The number of a server is never given to another one.
    pub(in crate::postgres) async fn is_of(&self, client: &Client) -> Result<bool, Error> {
        const LOCAL: &str = "SELECT groupid FROM pg_catalog.pg_dist_local_group";
        Ok(client.query_one(LOCAL, &[]).await?.try_get::<_, i32>(0)? == self.group)
    }

    pub(in crate::postgres) fn hashes(&self) -> RangeInclusive<i32> {
        self.hashes.clone()
    }

    pub(in crate::postgres) fn contains(&self, id: i64) -> bool {
        self.hashes.contains(&hash(id))
    }

    /// Returns a statement about distributed tables as one about the tables of this shard.
    pub(in crate::postgres) fn statement(&self, text: &str) -> String {
        // Generic plans are not forced on Citus. PostgreSQL chooses one if values do not promise a lower cost, as a small limit does.
        let mut statement = text.replace("LIMIT $3", "LIMIT (SELECT $3::bigint)");
        for (table, id) in BY_USER.iter().zip(&self.ids) {
            statement = statement
                .replace(&format!("plantstore.{table}"), &format!("plantstore.{table}_{id} AS {table}"))
                // This one has another name already.
                .replace(&format!(" AS {table} AS "), " AS ");
        }
        match statement.rsplit_once("WHERE ") {
            Some((selected, condition)) if statement.starts_with("SELECT") => {
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

/// The shards that are on a server, in the order of their ids.
#[derive(Default)]
pub(in crate::postgres) struct ShardList {
    pub(in crate::postgres) shards: Vec<Shard>,
    /// Statement that reads versions. Its parameters are the users of each shard.
    pub(in crate::postgres) versions: String,
}

impl ShardList {
    fn new(shards: &[Shard]) -> Self {
        const VERSIONS: &str = "SELECT user_id, version FROM plantstore.collections WHERE user_id = ANY($1::bigint[])";
        let each =
            (1..).zip(shards).map(|(number, shard)| shard.statement(VERSIONS).replace("$1", &format!("${number}")));
        Self { shards: shards.to_vec(), versions: each.collect::<Vec<_>>().join(" UNION ALL ") }
    }

    pub(in crate::postgres) fn of(&self, id: i64) -> Option<&Shard> {
        self.shards.iter().find(|shard| shard.contains(id))
    }
}

/// The present shards of a server.
#[derive(Default)]
pub(in crate::postgres) struct Shards(RwLock<Arc<ShardList>>);

impl Shards {
    pub(in crate::postgres) fn set(&self, shards: &[Shard]) {
        if self.get().shards != shards {
            *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ShardList::new(shards));
        }
    }

    /// Returns the shards. The result is the same object until they change.
    pub(in crate::postgres) fn get(&self) -> Arc<ShardList> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if a row may be on the server. Without shards, any row may be there.
    pub(in crate::postgres) fn may_contain(&self, id: i64) -> bool {
        let list = self.get();
        list.shards.is_empty() || list.of(id).is_some()
    }
}

/// A server that has rows of users.
pub(in crate::postgres) struct ShardServer {
    pub(in crate::postgres) host: String,
    pub(in crate::postgres) port: u16,
    pub(in crate::postgres) is_coordinator: bool,
    pub(in crate::postgres) shards: Vec<Shard>,
}

/// Reads the servers that have shards from the catalog, which every server has.
pub(in crate::postgres) async fn read_servers(client: &Client) -> Result<Vec<ShardServer>, Error> {
    const SHARDS: &str = "
        SELECT nodename, nodeport, groupid, shardminvalue::integer, shardmaxvalue::integer,
          array_agg(shardid ORDER BY array_position($1::text[], relname::text))
        FROM pg_catalog.pg_dist_shard JOIN pg_catalog.pg_dist_placement USING (shardid)
        JOIN pg_catalog.pg_dist_node USING (groupid) JOIN pg_catalog.pg_class ON pg_class.oid = logicalrelid
        WHERE relnamespace = 'plantstore'::regnamespace AND relname = ANY($1::text[]) AND noderole = 'primary'
        GROUP BY nodename, nodeport, groupid, shardminvalue, shardmaxvalue
        ORDER BY nodename, nodeport, min(shardid)";
    let mut servers: Vec<ShardServer> = Vec::new();
    for row in client.query(SHARDS, &[&&BY_USER[..]]).await? {
        let host: String = row.try_get(0)?;
        let port = u16::try_from(row.try_get::<_, i32>(1)?).unwrap_or_default();
        let group = row.try_get(2)?;
        let shard = Shard { group, hashes: row.try_get(3)?..=row.try_get(4)?, ids: row.try_get(5)? };
        match servers.last_mut() {
            Some(server) if server.host == host && server.port == port => server.shards.push(shard),
            _ => servers.push(ShardServer { host, port, is_coordinator: group == 0, shards: vec![shard] }),
        }
    }
    Ok(servers)
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
