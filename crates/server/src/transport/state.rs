//! The state shared by the connections of a listener: its limits, the open connections, the requests in flight, and the phase of
//! the shutdown.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use plantstore_telemetry::metrics::{Counter, Exposition, Gauge, Striped};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};

use super::connection_state::ConnectionState;
use super::trusted_proxies::TrustedProxies;
use crate::options::{TransportLimits, defaults};

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
        let has_custom_header_limit = limits.max_headers != defaults::<TransportLimits>().max_headers;
        let connections = ConnectionLimit::new(&limits);
        let requests = RequestTracker::default();
        Self { limits, trusted_proxies, connections, requests, has_custom_header_limit, single_requests: false }
    }

    /// Closes every connection after one request, and the one that is held longest if there are too many.
    pub(crate) fn for_single_requests(self) -> Self {
        Self { single_requests: true, ..self }
    }

    /// Returns the maximum number of connections of this address. By default it is half of all, so that one client cannot use up
    /// the total. It is the total for trusted proxies and for this machine, because a reverse proxy connects for many clients.
    pub(super) fn connections_from(&self, address: IpAddr) -> usize {
        match self.limits.max_connections_per_address {
            _ if self.trusted_proxies.contain(address) => self.limits.max_connections,
            Some(limit) => limit,
            None if address.to_canonical().is_loopback() => self.limits.max_connections,
            None => self.limits.max_connections.div_ceil(2),
        }
    }

    /// Returns true once the shutdown has begun.
    pub(crate) fn is_draining(&self) -> bool {
        self.requests.is_draining()
    }

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        let connections = &self.connections;
        exposition.gauge("plantstore_http_connections", "Open client connections.").sample(&[], connections.count());
        exposition
            .counter("plantstore_http_connections_accepted_total", "Accepted client connections.")
            .sample(&[], connections.accepted.get());
        exposition
            .gauge("plantstore_http_requests_in_flight", "Requests in flight: received, and not yet answered in full.")
            .sample(&[], self.requests.count());
        exposition
            .gauge(
                "plantstore_http2_streams_blocked",
                "HTTP/2 responses that wait for the client's flow-control window.",
            )
            .sample(&[], self.requests.blocked.get());
        exposition
            .gauge("plantstore_draining", "1 while the server shuts down, otherwise 0.")
            .sample(&[], u8::from(self.is_draining()));
    }
}

/// An IPv4 address or an IPv6 /64 network, because an IPv6 host can use any address of its /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientAddress(u128);

impl From<IpAddr> for ClientAddress {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(u128::from(address.to_bits())),
            IpAddr::V6(address) => Self(address.to_bits() >> 64 << 64),
        }
    }
}

/// Limit on the number of open connections, in total and per client address.
pub(super) struct ConnectionLimit {
    total: usize,
    permits: Semaphore,
    open: AtomicUsize,
    accepted: Counter,
    by_address: Mutex<HashMap<ClientAddress, usize>>,
}

/// The limit that a connection exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded {
    Total,
    Address,
}

impl ConnectionLimit {
    pub(super) fn new(limits: &TransportLimits) -> Self {
        let total = limits.max_connections;
        Self {
            total,
            permits: Semaphore::new(total),
            open: AtomicUsize::new(0),
            accepted: Counter::default(),
            by_address: Mutex::default(),
        }
    }

    /// Counts a connection of this client, which may have `max_connections`, as open until the return value is dropped.
    pub(super) fn open(&self, client: IpAddr, max_connections: usize) -> Result<ConnectionPermit<'_>, Exceeded> {
        let permit = self.permits.try_acquire().map_err(|_| Exceeded::Total)?;
        let address = ClientAddress::from(client);
        let mut by_address = self.by_address();
        let open = by_address.entry(address).or_default();
        if *open >= max_connections {
            return Err(Exceeded::Address);
        }
        *open += 1;
        self.open.fetch_add(1, Ordering::Relaxed);
        self.accepted.count();
        Ok(ConnectionPermit { limit: self, address, _permit: permit })
    }

    /// Returns the number of open connections.
    pub(super) fn count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Resolves when no connection is open.
    pub(super) async fn all_closed(&self) {
        let all = u32::try_from(self.total).unwrap_or(u32::MAX);
        let _ = self.permits.acquire_many(all).await;
    }

    fn by_address(&self) -> MutexGuard<'_, HashMap<ClientAddress, usize>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct ConnectionPermit<'a> {
    limit: &'a ConnectionLimit,
    address: ClientAddress,
    _permit: SemaphorePermit<'a>,
}

impl Drop for ConnectionPermit<'_> {
    fn drop(&mut self) {
        self.limit.open.fetch_sub(1, Ordering::Relaxed);
        if let Entry::Occupied(mut open) = self.limit.by_address().entry(self.address) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
    }
}

/// Counts the requests in flight on a listener. The counters are striped, so that threads do not contend for them.
#[derive(Default)]
pub(super) struct RequestTracker {
    begun: Striped<AtomicUsize>,
    ended: Striped<AtomicUsize>,
    /// HTTP/2 responses that wait for the client's flow-control window.
    pub(super) blocked: Gauge,
    /// HTTP/2 responses that last until the client or the server ends them.
    pub(super) open_ended: Gauge,
    draining: AtomicBool,
    changed: Notify,
}

impl RequestTracker {
    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    pub(super) fn start_draining(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub(super) fn count(&self) -> usize {
        let sum = |stripes: &Striped<AtomicUsize>| -> usize {
            stripes.iter().map(|stripe| stripe.load(Ordering::SeqCst)).sum()
        };
        // The order matters: every request in `ended` is also in `begun`, which is read later. So zero means that there was an
        // instant without requests.
        let ended = sum(&self.ended);
        sum(&self.begun) - ended
    }

    /// Resolves when no request is in flight.
    pub(super) async fn idle(&self) {
        loop {
            let changed = self.changed.notified();
            if self.count() == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// A request in flight, from the end of its head to the end of its response.
pub(crate) struct InFlightRequest {
    tracker: &'static RequestTracker,
    /// The state of an HTTP/1.1 connection; `None` for HTTP/2.
    connection: Option<Arc<ConnectionState>>,
    /// Arrival time of its first byte; over HTTP/2, of the end of its head.
    pub(crate) arrived: Instant,
}

impl InFlightRequest {
    pub(super) fn begin(tracker: &'static RequestTracker, connection: Option<&Arc<ConnectionState>>) -> Self {
        tracker.begun.local().fetch_add(1, Ordering::SeqCst);
        let arrived = connection.map_or_else(Instant::now, |connection| connection.begin_request());
        Self { tracker, connection: connection.cloned(), arrived }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            connection.end_request();
        }
        self.tracker.ended.local().fetch_add(1, Ordering::SeqCst);
        if self.tracker.is_draining() {
            self.tracker.changed.notify_waiters();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ShutdownPhase {
    Running,
    /// Clients are asked to send no more requests; those that they send are served.
    Draining,
    /// No request is in flight, and connections are closed.
    Closing,
}

impl ShutdownPhase {
    /// Resolves when the phase has begun.
    pub(super) async fn reached(self, mut phase: watch::Receiver<Self>) {
        // Fails only if the sender is dropped, at the end of the shutdown.
        let _ = phase.wait_for(|current| *current >= self).await;
    }
}

/// The outcome of a shutdown.
#[derive(Clone, Copy, Debug)]
pub struct ShutdownOutcome {
    /// Number of connections that were still open at the deadline.
    pub unfinished: usize,
    /// The end of the grace period.
    pub deadline: Instant,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn one_address_may_have_half_of_the_connections_unless_it_is_loopback() {
        let limits = TransportLimits { max_connections: 5, ..defaults() };
        let by_default = Transport::new(limits.clone(), TrustedProxies::default());
        let limits = TransportLimits { max_connections_per_address: Some(4), ..limits };
        let configured = Transport::new(limits, TrustedProxies::default());
        for (client, default) in
            [("192.0.2.1", 3), ("2001:db8::1", 3), ("127.0.0.2", 5), ("::ffff:127.0.0.1", 5), ("::1", 5)]
        {
            assert_eq!(by_default.connections_from(address(client)), default, "{client}");
            assert_eq!(configured.connections_from(address(client)), 4, "{client}");
        }
    }

    #[test]
    fn ipv6_network_is_one_client() {
        let client = |text| ClientAddress::from(address(text));
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:1"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:10.0.0.1"), client("10.0.0.1"));
        assert_ne!(client("10.0.0.2"), client("10.0.0.1"));
    }
}
