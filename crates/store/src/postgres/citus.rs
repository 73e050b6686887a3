//! Citus, which distributes tables over several servers (workers). It rejects some statements, and has its own settings. The
//! statements that differ are in [`statements`](super::statements).

mod placement;
mod shards;

pub use self::placement::{PlacedTable, Placement};
pub(super) use self::placement::{place_new_tables, place_tables};
pub(super) use self::shards::{COUNT, LOCK, Shard, ShardList, ShardServer, Shards, hash, read_servers};
