//! Limits of connections: the option, default and help text of each. The documentation promises the defaults.

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;

use crate::options::defaults;
use crate::options::value_parser::{duration, number};

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct TransportLimits {
    /// Time limit for the head of a request to arrive
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_HEADER_TIMEOUT", default_value = "10s", value_parser = duration)]
    pub header_timeout: Duration,
    /// Time limit between two requests on a connection
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_IDLE_TIMEOUT", default_value = "75s", value_parser = duration)]
    pub idle_timeout: Duration,
    /// Time limit for a client that reads nothing of its response
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_WRITE_TIMEOUT", default_value = "30s", value_parser = duration)]
    pub write_timeout: Duration,
    /// Maximum size of a request head in bytes
    #[arg(long, value_name = "BYTES", env = "PLANTSTORE_MAX_HEADER_BYTES", default_value_t = 16_384, value_parser = number::<usize>(1_024..=262_144))]
    pub max_header_bytes: usize,
    /// Maximum number of header fields of a request
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_MAX_HEADERS", default_value_t = 100, value_parser = number::<usize>(10..=10_000))]
    pub max_headers: usize,
    /// Maximum number of open connections
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_MAX_CONNECTIONS", default_value_t = 10_000, value_parser = number::<usize>(1..=1_000_000))]
    pub max_connections: usize,
    /// Maximum number of open connections per client address (IPv6: per /64); by default half of the total, and the total for
    /// this machine
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_MAX_CONNECTIONS_PER_ADDRESS", value_parser = number::<usize>(1..=1_000_000))]
    pub max_connections_per_address: Option<usize>,
    /// Time for requests in flight to finish after the signal to stop; then their connections are closed
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_SHUTDOWN_GRACE", default_value = "10s", value_parser = duration)]
    pub shutdown_grace: Duration,
}

impl Default for TransportLimits {
    fn default() -> Self {
        defaults()
    }
}

impl TransportLimits {
    /// Returns the maximum number of connections of this client. By default it is half of all, so that one client cannot use up
    /// the total; for this machine it is the total, because a local reverse proxy connects for many clients.
    pub(super) fn connections_from(&self, client: IpAddr) -> usize {
        match self.max_connections_per_address {
            Some(limit) => limit,
            None if client.to_canonical().is_loopback() => self.max_connections,
            None => self.max_connections.div_ceil(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_may_have_half_of_the_connections_unless_it_is_loopback() {
        let from = |limits: &TransportLimits, client: &str| limits.connections_from(client.parse().expect("address"));
        let limits = TransportLimits { max_connections: 5, ..TransportLimits::default() };
        assert_eq!((from(&limits, "192.0.2.1"), from(&limits, "2001:db8::1")), (3, 3));
        assert_eq!((from(&limits, "127.0.0.2"), from(&limits, "::ffff:127.0.0.1"), from(&limits, "::1")), (5, 5, 5));
        let limits = TransportLimits { max_connections_per_address: Some(4), ..limits };
        assert_eq!((from(&limits, "192.0.2.1"), from(&limits, "::1")), (4, 4));
    }
}
