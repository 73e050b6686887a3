//! Metric primitives, span recording and logging, for the store and the server alike.

pub mod logging;
pub mod metrics;
pub mod spans;
