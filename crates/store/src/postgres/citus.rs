//! Citus, which distributes tables over several servers (workers). It rejects some statements, and has its own settings. The
//! statements that differ are in [`statements`](super::statements).

mod dialect;
mod distribution;
#[cfg(test)]
mod rules;
mod shards;

pub(crate) use self::dialect::{Dialect, execute_each};
pub(crate) use self::distribution::distribute;
pub(super) use self::distribution::place_new_tables;
pub use self::distribution::{PlacedTable, Placement};
pub(super) use self::shards::{HashRanges, ShardServer, hash, read_servers};
