//! Types for whole stores and many plants on the move, below the engines: a snapshot that is read in chunks of records, the
//! table descriptor that its records are read and stored by, and batches of plants.

mod import;
mod records;
mod rules;
mod snapshot;
mod table;

pub use self::import::{ImportOutcome, ImportRow, ImportedBatch};
pub use self::records::{Chunk, Counts, KeyRecord, LastIds, PlantRecord, ShareRecord, TokenRecord, UserRecord};
pub(crate) use self::records::{ChunkBuilder, Record};
pub(crate) use self::snapshot::Message;
pub use self::snapshot::{Selection, Snapshot};
pub(crate) use self::table::{Column, Kind, Value, hex, names};
