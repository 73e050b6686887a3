//! Metrics for Prometheus: instruments that cost an atomic addition, and the page they are exported on.
//!
//! Each component keeps its instruments in fields of its own; there is no registry of names. A label is a constant or a number
//! chosen by the program: no user, id, token or path can become one.

mod instruments;
mod page;
mod process;
mod striped;

pub use self::instruments::{Buckets, Counter, Gauge, Held, Histogram, SIZES, TIMES};
pub use self::page::{Family, Format, Label, Labels, Page};
pub use self::process::Process;
pub use self::striped::Striped;
