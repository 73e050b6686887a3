//! Limits of connections. The defaults are the service's contract; operators may change each.

use std::net::IpAddr;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportLimits {
    /// From the first byte of a request's head to its last.
    pub header_timeout: Duration,
    /// Between two requests of one connection.
    pub idle_timeout: Duration,
    /// Without a client reading a single byte of a response.
    pub write_timeout: Duration,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// Header fields of a request.
    pub header_fields: usize,
    /// Connections open concurrently.
    pub connections: usize,
    /// Those of one client address; without a value, [`TransportLimits::connections_from`] decides.
    pub connections_per_address: Option<usize>,
    /// From the signal to stop until connections are closed by force.
    pub shutdown_grace: Duration,
}

impl Default for TransportLimits {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            header_bytes: 16 * 1024,
            header_fields: 100,
            connections: 10_000,
            connections_per_address: None,
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

impl TransportLimits {
    /// Connections that this client may have open. By default half of all, so that one client cannot take every place; all
    /// of them from this machine, where a reverse proxy brings those of many clients.
    pub(super) fn connections_from(&self, client: IpAddr) -> usize {
        match self.connections_per_address {
            Some(most) => most,
            None if client.to_canonical().is_loopback() => self.connections,
            None => self.connections.div_ceil(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_may_have_half_of_the_connections_unless_it_is_loopback() {
        let from = |limits: &TransportLimits, client: &str| limits.connections_from(client.parse().expect("address"));
        let limits = TransportLimits { connections: 5, ..TransportLimits::default() };
        assert_eq!((from(&limits, "192.0.2.1"), from(&limits, "2001:db8::1")), (3, 3));
        assert_eq!((from(&limits, "127.0.0.2"), from(&limits, "::ffff:127.0.0.1"), from(&limits, "::1")), (5, 5, 5));
        let limits = TransportLimits { connections_per_address: Some(4), ..limits };
        assert_eq!((from(&limits, "192.0.2.1"), from(&limits, "::1")), (4, 4));
    }
}
