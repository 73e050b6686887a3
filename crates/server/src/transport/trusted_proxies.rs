//! Trusted reverse proxies: the option, and the client address of a request.

use std::net::IpAddr;
use std::str::FromStr;

use clap::Args;
use hyper::HeaderMap;
use ipnet::{IpNet, Ipv4Net};

use super::forwarded::HopField;

/// Maximum number of hops that are read of a request, which is far more than there are proxies in a row.
const HOPS_MAX: usize = 32;
/// Length of the prefix of IPv4 addresses within IPv6 (`::ffff:0:0/96`).
const MAPPED_PREFIX: u8 = 96;

/// The addresses of trusted proxies; none by default.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Reverse proxies")]
pub struct TrustedProxies {
    /// The address of a reverse proxy, or its network such as `10.0.0.0/24`, whose `Forwarded` or `X-Forwarded-For` names the
    /// client. Repeat the option, or separate several with commas. None unless given
    #[arg(long = "trusted-proxy", value_name = "CIDR", env = "PLANTSTORE_TRUSTED_PROXY", value_delimiter = ',')]
    networks: Vec<ProxyNetwork>,
}

impl TrustedProxies {
    pub(super) fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.0.contains(&address))
    }

    /// Returns the address of the client that sent a request over a connection from `peer`.
    ///
    /// Only what a trusted proxy has appended is known for certain. If the request has both fields, they must agree: a proxy
    /// maintains one of them, and may pass on the other as the client sent it. Otherwise the client is the peer.
    pub(super) fn client_of(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        if !self.contain(peer) {
            return peer;
        }
        let named_by = |field: HopField| field.hops(headers).map(|hops| self.first_untrusted(peer, hops));
        match (named_by(HopField::Forwarded), named_by(HopField::XForwardedFor)) {
            (Some(one), Some(other)) if one != other => peer,
            (Some(client), _) | (None, Some(client)) => client,
            (None, None) => peer,
        }
    }

    /// Follows the hops from a trusted proxy to the first address that is not one. Stops at the last address that is known if
    /// a hop has none, or there are no more.
    fn first_untrusted(&self, peer: IpAddr, hops: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut known = peer;
        for hop in hops.take(HOPS_MAX) {
            let Some(address) = hop else { break };
            known = address;
            if !self.contain(known) {
                break;
            }
        }
        known
    }
}

/// A network of trusted proxies; IPv4 addresses within IPv6 are stored as IPv4.
#[derive(Clone, Debug)]
struct ProxyNetwork(IpNet);

impl FromStr for ProxyNetwork {
    type Err = ProxyNetworkError;

    fn from_str(text: &str) -> Result<Self, ProxyNetworkError> {
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let network = canonical(network.map_err(|_| ProxyNetworkError::Form)?);
        if network.prefix_len() == 0 {
            return Err(ProxyNetworkError::Everything);
        }
        let first = network.trunc();
        if network == first { Ok(Self(network)) } else { Err(ProxyNetworkError::NotFirst(first)) }
    }
}

fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(within) = network else { return network };
    let prefix = within.prefix_len().checked_sub(MAPPED_PREFIX);
    let mapped = within.addr().to_ipv4_mapped().zip(prefix);
    mapped.and_then(|(address, prefix)| Ipv4Net::new(address, prefix).ok()).map_or(network, IpNet::V4)
}

/// The reason why a network cannot be trusted.
#[derive(Debug, thiserror::Error)]
enum ProxyNetworkError {
    #[error("write an address or a network, for example 10.0.0.5, 10.0.0.0/24 or 2001:db8::/64")]
    Form,
    #[error(
        "this contains every address, so that any client could name an address of its choice: name your own proxies"
    )]
    Everything,
    #[error("the address is not the first of the network: write {0}")]
    NotFirst(IpNet),
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn trusted(networks: &[&str]) -> TrustedProxies {
        TrustedProxies { networks: networks.iter().map(|network| network.parse().expect("a network")).collect() }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn client_of(proxies: &TrustedProxies, peer: &str, fields: &[(&'static str, &str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"));
        }
        proxies.client_of(address(peer), &headers).to_string()
    }

    #[test]
    fn networks_contain_their_addresses() {
        let proxies =
            trusted(&["10.0.0.0/8", "192.0.2.7", "2001:db8::/64", "2001:db8:1::9", "::ffff:198.51.100.0/120"]);
        for inside in ["10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7", "2001:db8::5", "2001:db8:1::9", "198.51.100.8"] {
            assert!(proxies.contain(address(inside)), "{inside}");
        }
        for outside in ["11.0.0.1", "192.0.2.8", "2001:db8:0:1::5", "2001:db8:1::8", "198.51.101.8", "::a00:1"] {
            assert!(!proxies.contain(address(outside)), "{outside}");
        }
        assert!(!TrustedProxies::default().contain(address("127.0.0.1")));
    }

    #[test]
    fn invalid_networks_are_rejected_with_advice() {
        for (text, advice) in [
            ("", "write an address"),
            ("proxy.example", "write an address"),
            ("10.0.0.0/33", "write an address"),
            ("10.0.0/8", "write an address"),
            ("[::1]", "write an address"),
            ("10.0.0.5/24", "write 10.0.0.0/24"),
            ("2001:db8::1/64", "write 2001:db8::/64"),
            ("0.0.0.0/0", "contains every address"),
            ("::/0", "contains every address"),
            ("::ffff:0:0/96", "contains every address"),
        ] {
            let error = text.parse::<ProxyNetwork>().expect_err("an error").to_string();
            assert!(error.contains(advice), "{text}: {error}");
        }
    }

    #[test]
    fn client_is_the_last_address_that_is_not_a_trusted_proxy() {
        let proxies = trusted(&["10.0.0.0/8"]);
        let xff = |value: &str| client_of(&proxies, "10.0.0.1", &[("x-forwarded-for", value)]);
        assert_eq!(xff("203.0.113.1, 192.0.2.1"), "192.0.2.1");
        assert_eq!(xff("203.0.113.1, 192.0.2.1, 10.0.0.2"), "192.0.2.1");
        assert_eq!(xff("10.0.0.3, 10.0.0.2"), "10.0.0.3", "a proxy itself is the client");
        assert_eq!(xff("192.0.2.1, unknown, 10.0.0.2"), "10.0.0.2", "what is before an unknown hop is not certain");
        assert_eq!(xff("192.0.2.1, nonsense"), "10.0.0.1");
        assert_eq!(xff(""), "10.0.0.1");
        let many = ["192.0.2.1".to_owned(), vec!["10.0.0.2"; HOPS_MAX].join(",")].join(",");
        assert_eq!(xff(&many), "10.0.0.2", "there is a limit");
        assert_eq!(client_of(&proxies, "192.0.2.9", &[("x-forwarded-for", "203.0.113.1")]), "192.0.2.9");
        assert_eq!(client_of(&proxies, "10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn two_fields_must_agree() {
        let proxies = trusted(&["10.0.0.0/8"]);
        let both = |forwarded: &str, other: &str| {
            client_of(&proxies, "10.0.0.1", &[("forwarded", forwarded), ("x-forwarded-for", other)])
        };
        assert_eq!(both("for=192.0.2.1", "203.0.113.1, 192.0.2.1"), "192.0.2.1");
        assert_eq!(both("for=203.0.113.1", "192.0.2.1"), "10.0.0.1");
        assert_eq!(both("for=nonsense", "192.0.2.1"), "10.0.0.1");
    }
}
