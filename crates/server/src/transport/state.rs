//! The state shared by the connections of a listener.

use plantstore_telemetry::metrics::Page;

use super::connection_limit::ConnectionLimit;
use super::in_flight::RequestTracker;
use super::limits::TransportLimits;

pub(crate) struct Transport {
    pub(super) limits: TransportLimits,
    pub(super) connections: ConnectionLimit,
    pub(super) requests: RequestTracker,
    /// The configured number of header fields differs from the HTTP library's own limit.
    pub(super) has_own_field_limit: bool,
}

impl Transport {
    pub(crate) fn new(limits: TransportLimits) -> Self {
        let has_own_field_limit = limits.max_headers != TransportLimits::default().max_headers;
        let connections = ConnectionLimit::new(&limits);
        Self { limits, connections, requests: RequestTracker::default(), has_own_field_limit }
    }

    /// Returns true once the shutdown has begun.
    pub(crate) fn is_draining(&self) -> bool {
        self.requests.is_draining()
    }

    pub(crate) fn write_metrics(&self, page: &mut Page) {
        self.requests.write_metrics(page);
    }
}
