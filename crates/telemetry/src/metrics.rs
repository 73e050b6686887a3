//! Metrics for Prometheus: instruments that cost an atomic addition, and the text in which they are exported.
//!
//! Each component has its instruments in its own fields; there is no registry of names. A label is a constant or a number
//! chosen by the program: no user, id, token or path can become one. Exemplars hold ids of traces.

mod exposition;
mod instruments;
mod process;

pub use self::exposition::{Exposition, ExpositionFormat, Family, Labels};
pub use self::instruments::{Buckets, Counter, Exemplar, Gauge, GaugeGuard, Histogram, SIZES, Striped, TIMES};
pub use self::process::Process;
