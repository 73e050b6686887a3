//! The state shared by the connections of a listener.

use std::net::IpAddr;

use plantstore_telemetry::metrics::Exposition;

use super::connection_limit::ConnectionLimit;
use super::in_flight::RequestTracker;
use super::limits::TransportLimits;
use super::trusted_proxies::TrustedProxies;

pub(crate) struct Transport {
    pub(super) limits: TransportLimits,
    pub(super) trusted_proxies: TrustedProxies,
    pub(super) connections: ConnectionLimit,
    pub(super) requests: RequestTracker,
    /// The configured number of header fields differs from the HTTP library's own limit.
    pub(super) has_custom_header_limit: bool,
    /// Every connection carries one request of HTTP/1.1. If there are too many, the one that is held longest is closed.
    pub(super) single_requests: bool,
}

impl Transport {
    pub(crate) fn new(limits: TransportLimits, trusted_proxies: TrustedProxies) -> Self {
        let has_custom_header_limit = limits.max_headers != TransportLimits::default().max_headers;
        let connections = ConnectionLimit::new(&limits);
        let requests = RequestTracker::default();
        Self { limits, trusted_proxies, connections, requests, has_custom_header_limit, single_requests: false }
    }

    /// Closes every connection after one request, and the one that is held longest if there are too many.
    pub(crate) fn for_single_requests(self) -> Self {
        Self { single_requests: true, ..self }
    }

    /// Returns the maximum number of connections of this address. Those of a trusted proxy are limited in total only, because
    /// they carry the requests of many clients.
    pub(super) fn connections_from(&self, address: IpAddr) -> usize {
        if self.trusted_proxies.contain(address) {
            self.limits.max_connections
        } else {
            self.limits.connections_from(address)
        }
    }

    /// Returns true once the shutdown has begun.
    pub(crate) fn is_draining(&self) -> bool {
        self.requests.is_draining()
    }

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        self.requests.write_metrics(exposition);
    }
}
