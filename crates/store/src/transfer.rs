//! The commands `export`, `import`, `backup`, `restore` and `copy`, for both engines. Everything is streamed, in bounded memory.

mod copy;
mod digest;
mod export;
mod import;
mod line;
mod postgres;
mod progress;
mod snapshot;
mod sqlite;
mod table;

pub use self::copy::{CopyError, RestoreTarget, copy};
pub use self::digest::{ContentDigest, Digest, TableDigest};
pub use self::export::{ExportError, ExportSummary, export};
pub use self::import::{ImportEvent, ImportInput, ImportSummary, StopReason, check, import};
pub use self::progress::TransferProgress;
pub use self::snapshot::{Selection, Snapshot};
