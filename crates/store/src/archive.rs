//! Data in and out: plants as lines of JSON, and whole stores from one place, or engine, to another. All of it is streamed: memory
//! is bounded, however much there is.

mod copy;
mod digest;
mod export;
mod import;
mod line;
mod progress;

pub use self::copy::{CopyError, copy};
pub use self::digest::{ContentDigest, ContentHasher, Digest};
pub use self::export::{ExportError, Exported, export};
pub use self::import::{ImportEvent, ImportInput, ImportSummary, StopReason, check, import};
pub use self::progress::Progress;
