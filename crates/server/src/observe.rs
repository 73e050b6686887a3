//! Observation of requests and connections: request ids, the access log, metrics, traces, and the state of the store.

mod context;
mod metrics;
mod readiness;
mod request_id;
mod traces;

pub(crate) use self::context::{Context, Exchange, Identity, Observe, TrackedBody};
pub(crate) use self::metrics::Outcome;
pub(crate) use self::readiness::Readiness;
pub(crate) use self::request_id::write_hex;
pub(crate) use self::traces::Trace;
pub use self::traces::{Collector, CollectorSettings, Endpoint, EndpointError};
