//! Limits the requests in flight and the memory of one HTTP/2 connection, in proportion to the number of open connections.

use std::num::NonZeroUsize;

use plantstore_telemetry::metrics::{Gauge, GaugeGuard};

use crate::transport::buffer_budget::BufferBudget;
use crate::transport::state::Transport;

/// Maximum number of buffers that the responses of a connection hold.
const BUFFERS_MAX: usize = 2;

/// Limit on the requests of one connection.
pub(super) struct StreamLimit {
    transport: &'static Transport,
    in_flight: Gauge,
    /// Requests whose response waits for the client's flow-control window.
    blocked: Gauge,
    pub(super) buffers: BufferBudget,
}

impl StreamLimit {
    pub(super) fn new(transport: &'static Transport) -> Self {
        let (in_flight, blocked) = (Gauge::default(), Gauge::default());
        Self { transport, in_flight, blocked, buffers: BufferBudget::new(BUFFERS_MAX) }
    }

    /// Counts a request as in flight until the return value is dropped.
    pub(super) fn begin(&self) -> GaugeGuard<'_> {
        self.in_flight.hold()
    }

    /// Counts a response as blocked, on this connection and on all, until the return value is dropped.
    pub(super) fn block(&self) -> (GaugeGuard<'_>, GaugeGuard<'static>) {
        (self.blocked.hold(), self.transport.requests.blocked.hold())
    }

    /// Returns true if there is no capacity for this many requests: all connections together have more in flight than
    /// `--max-connections`, and this one has more than its share. Blocked responses do not count, because they take almost no
    /// memory.
    pub(super) fn is_over_limit(&self) -> bool {
        let requests = &self.transport.requests;
        requests.count().saturating_sub(count(&requests.blocked)) > self.transport.limits.max_connections
            && count(&self.in_flight).saturating_sub(count(&self.blocked)) > self.share()
    }

    /// Returns true if there are too many blocked responses: all connections together have more than `--max-connections`, and
    /// this one has more than its share.
    pub(super) fn is_over_blocked_limit(&self) -> bool {
        count(&self.transport.requests.blocked) > self.transport.limits.max_connections
            && count(&self.blocked) > self.share()
    }

    /// Returns the number of requests that is guaranteed to each connection.
    fn share(&self) -> usize {
        let open = NonZeroUsize::new(self.transport.connections.count()).unwrap_or(NonZeroUsize::MIN);
        (self.transport.limits.max_connections / open).max(1)
    }
}

fn count(gauge: &Gauge) -> usize {
    usize::try_from(gauge.get()).unwrap_or_default()
}
