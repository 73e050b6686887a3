//! Export and import of plants as JSON lines, and copies of whole stores, also between engines. Everything is streamed, in
//! bounded memory.

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
