//! Every limit of the server, and how many requests work at once.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::error::ApiError;
use super::rate::Quota;
use plantstore_telemetry::metrics::{Counter, Page};
use plantstore_telemetry::spans;

/// What the server bounds. The defaults are the service's contract; operators may change each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the first byte of a request's head to its last.
    pub header_timeout: Duration,
    /// From the first byte of a request to the last of its body.
    pub request_timeout: Duration,
    /// Between two requests of one connection.
    pub idle_timeout: Duration,
    /// Without a client taking a single byte of an answer.
    pub write_timeout: Duration,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// Header fields of a request.
    pub header_fields: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Connections open at the same time.
    pub connections: usize,
    /// Those of one client address; without a value, [`Limits::connections_from`] says how many.
    pub connections_per_address: Option<usize>,
    /// Lists that may read the store concurrently.
    pub in_flight: usize,
    /// Lists that may wait for one of those to finish.
    pub waiting: usize,
    /// How long they wait.
    pub waiting_timeout: Duration,
    /// Failed authentications of one address: a second, in the long run.
    pub auth_failures_per_second: u32,
    /// Failed authentications of one address: at once.
    pub auth_failures_burst: u32,
    /// Bytes of lists that are remembered.
    pub list_cache_bytes: usize,
    /// Requests of one user, when they are counted.
    pub user_quota: Option<Quota>,
    /// From the signal to stop until what is unfinished is cut.
    pub shutdown_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            header_bytes: 16 * 1024,
            header_fields: 100,
            body_bytes: 16 * 1024,
            connections: 10_000,
            connections_per_address: None,
            in_flight: 512,
            waiting: 512,
            waiting_timeout: Duration::from_secs(1),
            auth_failures_per_second: 10,
            auth_failures_burst: 100,
            list_cache_bytes: 16 << 20,
            user_quota: None,
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// Connections that this client may have open. By default half of all, so that one client cannot take every place; all
    /// of them from this machine, where a reverse proxy brings those of many clients.
    pub(crate) fn connections_from(&self, client: IpAddr) -> usize {
        match self.connections_per_address {
            Some(most) => most,
            None if client.to_canonical().is_loopback() => self.connections,
            None => self.connections.div_ceil(2),
        }
    }
}

/// Limits the number of lists that read the store concurrently; a few more may wait a little, the rest are rejected at
/// once. Writes are limited by the store's queue instead ([`super::shedding`]).
pub(crate) struct Admission {
    slots: Semaphore,
    waiting: AtomicUsize,
    waiting_max: usize,
    patience: Duration,
    slots_max: usize,
    turned_away: Counter,
}

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            slots: Semaphore::new(limits.in_flight),
            waiting: AtomicUsize::new(0),
            waiting_max: limits.waiting,
            patience: limits.waiting_timeout,
            slots_max: limits.in_flight,
            turned_away: Counter::default(),
        }
    }

    /// Takes a slot. To be called when the whole request is there, so that no slow client holds one.
    pub(crate) async fn enter(&self) -> Result<SemaphorePermit<'_>, ApiError> {
        if let Ok(slot) = self.slots.try_acquire() {
            return Ok(slot);
        }
        let begun = spans::begin();
        let slot = self.wait().await;
        begun.end("wait for a slot");
        slot.ok_or(ApiError::Overloaded).inspect_err(|_| self.turned_away.count())
    }

    /// A slot that another request gives back, if one does in time and not too many wait already.
    async fn wait(&self) -> Option<SemaphorePermit<'_>> {
        let _place = Place::take(&self.waiting, self.waiting_max)?;
        tokio::time::timeout(self.patience, self.slots.acquire()).await.ok()?.ok()
    }

    /// Number of lists that got no slot.
    pub(crate) fn shed(&self) -> u64 {
        self.turned_away.get()
    }

    pub(crate) fn write_metrics(&self, page: &mut Page) {
        let read = [("kind", "read".into())];
        let in_use = self.slots_max - self.slots.available_permits();
        let waiting = self.waiting.load(Ordering::Relaxed).min(self.waiting_max);
        page.gauge("plantstore_slots_in_use", "Lists that read the store, of --max-in-flight.").sample(&read, in_use);
        page.gauge("plantstore_slots", "Most lists that may (--max-in-flight).").sample(&read, self.slots_max);
        page.gauge("plantstore_requests_waiting", "Lists that wait for a slot.").sample(&read, waiting);
    }
}

/// A place in the queue, given back when dropped, also by a client that goes away while waiting.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(taken: &'a AtomicUsize, most: usize) -> Option<Self> {
        let place = Self(taken);
        (taken.fetch_add(1, Ordering::Relaxed) < most).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What counts as one client address: IPv6 hosts have a whole /64 to choose from.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_may_have_half_of_the_connections_unless_it_is_loopback() {
        let from = |limits: &Limits, client: &str| limits.connections_from(client.parse().expect("address"));
        let limits = Limits { connections: 5, ..Limits::default() };
        assert_eq!((from(&limits, "192.0.2.1"), from(&limits, "2001:db8::1")), (3, 3));
        assert_eq!((from(&limits, "127.0.0.2"), from(&limits, "::ffff:127.0.0.1"), from(&limits, "::1")), (5, 5, 5));
        let limits = Limits { connections_per_address: Some(4), ..limits };
        assert_eq!((from(&limits, "192.0.2.1"), from(&limits, "::1")), (4, 4));
    }

    #[test]
    fn an_ipv6_network_is_one_client() {
        let key = |text: &str| ClientAddress::from(text.parse::<IpAddr>().expect("address"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("::ffff:10.0.0.1"), key("10.0.0.1"));
        assert_ne!(key("10.0.0.2"), key("10.0.0.1"));
    }
}
