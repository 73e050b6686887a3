//! The commands `export`, `import`, `backup`, `restore` and `copy`, for both engines. Everything is streamed, in bounded memory.

mod copy;
mod digest;
mod engine;
mod export;
mod import;
mod line;
mod progress;

pub use self::copy::{CopyError, copy};
pub use self::digest::{ContentDigest, ContentHasher, Digest};
pub use self::engine::{Importer, RestoreTarget};
pub use self::export::{ExportError, ExportSummary, export};
pub use self::import::{ImportEvent, ImportInput, ImportSummary, StopReason, check, import};
pub use self::progress::TransferProgress;
