//! Placement of rows on the servers of Citus, by the hash of the user id.

use std::ops::RangeInclusive;
use std::sync::{PoisonError, RwLock};

use tokio_postgres::{Client, Error};

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

/// The hashes of the rows that are on a server. Without ranges, any row may be there.
#[derive(Default)]
pub(in crate::postgres) struct HashRanges(RwLock<Vec<RangeInclusive<i32>>>);

impl HashRanges {
    pub(in crate::postgres) fn set(&self, ranges: Vec<RangeInclusive<i32>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = ranges;
    }

    pub(in crate::postgres) fn contain(&self, id: i64) -> bool {
        let ranges = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ranges.is_empty() || ranges.iter().any(|range| range.contains(&hash(id)))
    }
}

/// A server that has rows of users.
pub(in crate::postgres) struct ShardServer {
    pub(in crate::postgres) host: String,
    pub(in crate::postgres) port: u16,
    pub(in crate::postgres) is_coordinator: bool,
    pub(in crate::postgres) ranges: Vec<RangeInclusive<i32>>,
}

/// Reads the servers that have shards from the catalog, which every server has.
pub(in crate::postgres) async fn read_servers(client: &Client) -> Result<Vec<ShardServer>, Error> {
    const SHARDS: &str = "
        SELECT nodename, nodeport, groupid = 0, shardminvalue::integer, shardmaxvalue::integer
        FROM pg_catalog.pg_dist_shard JOIN pg_catalog.pg_dist_placement USING (shardid)
        JOIN pg_catalog.pg_dist_node USING (groupid)
        WHERE logicalrelid = 'plantstore.collections'::regclass AND noderole = 'primary'
        ORDER BY nodename, nodeport, shardminvalue::integer";
    let mut servers: Vec<ShardServer> = Vec::new();
    for row in client.query(SHARDS, &[]).await? {
        let host: String = row.try_get(0)?;
        let port = u16::try_from(row.try_get::<_, i32>(1)?).unwrap_or_default();
        let range = row.try_get(3)?..=row.try_get(4)?;
        match servers.last_mut() {
            Some(server) if server.host == host && server.port == port => server.ranges.push(range),
            _ => servers.push(ShardServer { host, port, is_coordinator: row.try_get(2)?, ranges: vec![range] }),
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
