//! The state shared by the connections of a listener: its limits, the open connections, the requests in flight, and the phase of
//! the shutdown.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use plantstore_telemetry::metrics::{Exposition, Gauge, Striped};
use tokio::sync::{Notify, watch};

use super::connection_state::ConnectionState;
use super::trusted_proxies::TrustedProxies;
use crate::options::{TransportLimits, defaults};

pub(crate) struct Transport {
    pub(super) limits: TransportLimits,
    pub(super) trusted_proxies: TrustedProxies,
    pub(super) connections: Tracker,
    connections_by_address: KeyedLimit<ClientAddress>,
    pub(super) requests: Tracker,
    /// HTTP/2 responses that wait for the client's flow-control window.
    pub(super) blocked: Gauge,
    /// HTTP/2 responses that last until the client or the server ends them.
    pub(super) open_ended: Gauge,
    /// The configured number of header fields differs from the HTTP library's own limit.
    pub(super) has_custom_header_limit: bool,
    /// Every connection carries one request of HTTP/1.1. If there are too many, the one that is held longest is closed.
    pub(super) single_requests: bool,
}

impl Transport {
    pub(crate) fn new(limits: TransportLimits, trusted_proxies: TrustedProxies) -> Self {
        let has_custom_header_limit = limits.max_headers != defaults::<TransportLimits>().max_headers;
        Self {
            limits,
            trusted_proxies,
            connections: Tracker::default(),
            connections_by_address: KeyedLimit::new(),
            requests: Tracker::default(),
            blocked: Gauge::default(),
            open_ended: Gauge::default(),
            has_custom_header_limit,
            single_requests: false,
        }
    }

    /// Closes every connection after one request, and the one that is held longest if there are too many.
    pub(crate) fn for_single_requests(self) -> Self {
        Self { single_requests: true, ..self }
    }

    /// Counts a connection of this client as open until the return value is dropped. Only the listener calls this, so that no other
    /// connection is opened meanwhile.
    pub(super) fn open(&'static self, client: IpAddr) -> Result<OpenConnection, Exceeded> {
        if self.connections.count() >= self.limits.max_connections {
            return Err(Exceeded::Total);
        }
        let of_address = self.connections_by_address.take(client.into(), self.connections_from(client));
        Ok(OpenConnection { _of_address: of_address.ok_or(Exceeded::Address)?, _tracked: self.connections.begin() })
    }

    /// Returns the maximum number of open event streams, unless one is configured.
    pub(crate) fn default_event_streams(&self) -> usize {
        self.limits.max_connections.div_ceil(2)
    }

    /// Returns the maximum number of connections of this address. By default it is half of all, so that one client cannot use up
    /// the total. It is the total for trusted proxies and for this machine, because a reverse proxy connects for many clients.
    fn connections_from(&self, address: IpAddr) -> usize {
        match self.limits.max_connections_per_address {
            _ if self.trusted_proxies.contain(address) => self.limits.max_connections,
            Some(limit) => limit,
            None if address.to_canonical().is_loopback() => self.limits.max_connections,
            None => self.limits.max_connections.div_ceil(2),
        }
    }

    /// Returns true once the shutdown has begun.
    pub(crate) fn is_draining(&self) -> bool {
        self.requests.is_awaited()
    }

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        exposition
            .gauge("plantstore_http_connections", "Open client connections.")
            .sample(&[], self.connections.count());
        exposition
            .counter("plantstore_http_connections_accepted_total", "Accepted client connections.")
            .sample(&[], sum(&self.connections.begun));
        exposition
            .gauge("plantstore_http_requests_in_flight", "Requests in flight: received, and not yet answered in full.")
            .sample(&[], self.requests.count());
        exposition
            .gauge(
                "plantstore_http2_streams_blocked",
                "HTTP/2 responses that wait for the client's flow-control window.",
            )
            .sample(&[], self.blocked.get());
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

/// The limit that a connection exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded {
    Total,
    Address,
}

/// An open connection, counted until it is dropped.
pub(super) struct OpenConnection {
    _of_address: KeyedPlace<ClientAddress>,
    _tracked: Tracked,
}

/// Limit on the places that are taken concurrently for one key.
pub(crate) struct KeyedLimit<K: 'static>(Mutex<HashMap<K, usize>>);

impl<K: Copy + Eq + Hash> KeyedLimit<K> {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Takes a place until the return value is dropped; `None` if `max` places of the key are taken.
    pub(crate) fn take(&'static self, key: K, max: usize) -> Option<KeyedPlace<K>> {
        let mut places = self.places();
        let taken = places.entry(key).or_default();
        (*taken < max).then(|| {
            *taken += 1;
            KeyedPlace { limit: self, key }
        })
    }

    fn places(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct KeyedPlace<K: Copy + Eq + Hash + 'static> {
    limit: &'static KeyedLimit<K>,
    key: K,
}

impl<K: Copy + Eq + Hash> Drop for KeyedPlace<K> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut taken) = self.limit.places().entry(self.key) {
            *taken.get_mut() -= 1;
            if *taken.get() == 0 {
                taken.remove();
            }
        }
    }
}

/// Counts what is in flight, and reports the end of the last. The counters are striped, so that threads do not contend for them.
#[derive(Default)]
pub(crate) struct Tracker {
    begun: Striped<AtomicUsize>,
    ended: Striped<AtomicUsize>,
    is_awaited: AtomicBool,
    changed: Notify,
}

impl Tracker {
    /// Counts one more until the return value is dropped.
    pub(crate) fn begin(&'static self) -> Tracked {
        self.begun.local().fetch_add(1, Ordering::SeqCst);
        Tracked(self)
    }

    pub(super) fn count(&self) -> usize {
        // The order matters: all that is in `ended` is also in `begun`, which is read later. So zero means that there was an
        // instant with none in flight.
        let ended = sum(&self.ended);
        sum(&self.begun) - ended
    }

    /// Returns true once the end of all is awaited.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::SeqCst)
    }

    /// Resolves when none is in flight. The end is awaited from the call on.
    pub(crate) fn idle(&self) -> impl Future<Output = ()> {
        self.is_awaited.store(true, Ordering::SeqCst);
        async {
            let mut changed = self.changed.notified();
            while self.count() > 0 {
                changed.await;
                changed = self.changed.notified();
            }
        }
    }
}

fn sum(stripes: &Striped<AtomicUsize>) -> usize {
    stripes.iter().map(|stripe| stripe.load(Ordering::SeqCst)).sum()
}

pub(crate) struct Tracked(&'static Tracker);

impl Drop for Tracked {
    fn drop(&mut self) {
        self.0.ended.local().fetch_add(1, Ordering::SeqCst);
        if self.0.is_awaited() {
            self.0.changed.notify_waiters();
        }
    }
}

/// A request in flight, from the end of its head to the end of its response.
pub(crate) struct InFlightRequest {
    /// The state of an HTTP/1.1 connection; `None` for HTTP/2.
    connection: Option<Arc<ConnectionState>>,
    /// Arrival time of its first byte; over HTTP/2, of the end of its head.
    pub(crate) arrived: Instant,
    _tracked: Tracked,
}

impl InFlightRequest {
    pub(super) fn begin(tracker: &'static Tracker, connection: Option<&Arc<ConnectionState>>) -> Self {
        let arrived = connection.map_or_else(Instant::now, |connection| connection.lock().begin_request());
        Self { connection: connection.cloned(), arrived, _tracked: tracker.begin() }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            connection.lock().end_request();
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

    #[test]
    fn one_address_may_have_half_of_the_connections_unless_it_is_loopback() {
        let limits = TransportLimits { max_connections: 5, ..defaults() };
        let by_default = Transport::new(limits.clone(), TrustedProxies::default());
        let limits = TransportLimits { max_connections_per_address: Some(4), ..limits };
        let configured = Transport::new(limits, TrustedProxies::default());
        for (client, default) in
            [("192.0.2.1", 3), ("2001:db8::1", 3), ("127.0.0.2", 5), ("::ffff:127.0.0.1", 5), ("::1", 5)]
        {
            let address = client.parse().expect("an address");
            assert_eq!(by_default.connections_from(address), default, "{client}");
            assert_eq!(configured.connections_from(address), 4, "{client}");
        }
    }
}
