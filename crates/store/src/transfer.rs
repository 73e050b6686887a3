//! The commands `export`, `import`, `backup`, `restore` and `copy`, for both engines. Everything is streamed, in bounded memory.

mod copy;
mod export;
mod import;
mod line;
mod postgres;
mod snapshot;
mod sqlite;
mod table;

pub use self::copy::{ContentDigest, CopyError, RestoreTarget, TableDigest, copy};
pub use self::export::{Digest, ExportError, ExportSummary, LineWriter, PlantLine, export};
pub use self::import::{ImportEvent, ImportInput, ImportSummary, check, import, import_with};
pub use self::line::{ImportOutcome, ImportResult, ImportRow, OnDuplicate, StopReason};
pub use self::snapshot::{Selection, Snapshot, TransferProgress};
