//! Observation of requests and connections: request ids, the access log, metrics, traces, and the state of the store.

mod address_text;
mod connection_metrics;
mod context;
mod exchange;
mod hex;
mod readiness;
mod request_id;
mod request_metrics;
mod state;
mod traces;

pub(crate) use self::context::{Context, Identity};
pub(crate) use self::exchange::{Exchange, TrackedBody};
pub(crate) use self::hex::write_hex;
pub(crate) use self::readiness::Readiness;
pub(crate) use self::state::Observe;
pub(crate) use self::traces::Trace;
pub use self::traces::{Collector, CollectorSettings, Endpoint, EndpointError};
