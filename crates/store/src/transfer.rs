//! Types with which the engines serve [`archive`](crate::archive): snapshots as chunks of records, table descriptors, and batches of
//! imported plants.

mod import;
mod records;
mod rules;
mod snapshot;
mod table;

pub use self::import::{ImportOutcome, ImportResult, ImportRow};
pub(crate) use self::records::{ChunkBuilder, Record};
pub use self::records::{Counts, KeyRecord, LastIds, PlantRecord, ShareRecord, SnapshotChunk, TokenRecord, UserRecord};
pub use self::snapshot::{Selection, Snapshot};
pub(crate) use self::snapshot::{SnapshotError, SnapshotMessage};
pub(crate) use self::table::{Column, ColumnType, Value, hex, names};
