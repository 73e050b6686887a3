//! Metric primitives, span recording and logging, for the store and the server.

pub mod logging;
pub mod metrics;
pub mod spans;
