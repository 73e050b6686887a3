//! Trusted reverse proxies: the option, and the client address of a request, from `Forwarded` (RFC 7239) and `X-Forwarded-For`.
//! Each proxy appends the address that it received a request from.
//!
//! The fields are read from the right: what the client has sent is on the left, and cannot change how the part behind it is read.
//! Read from the left, an opening quote of the client would hide what a proxy appends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clap::Args;
use hyper::HeaderMap;
use hyper::header::{FORWARDED, HeaderName, HeaderValue};
use ipnet::{IpNet, Ipv4Net};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
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
    #[arg(long = "trusted-proxy", value_name = "CIDR", env = "PLANTSTORE_TRUSTED_PROXY", value_delimiter = ',', value_parser = proxy_network)]
    networks: Vec<IpNet>,
}

impl TrustedProxies {
    pub(super) fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// Returns the address of the client that sent a request over a connection from `peer`.
    ///
    /// Only what a trusted proxy has appended is known for certain. If the request has both fields, they must agree: a proxy
    /// maintains one of them, and may pass on the other as the client sent it. Otherwise the client is the peer.
    pub(super) fn client_of(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        if !self.contain(peer) {
            return peer;
        }
        let forwarded = self.client_in(headers, FORWARDED, peer, |element| node_address(for_parameter(element)?));
        match (forwarded, self.client_in(headers, X_FORWARDED_FOR, peer, node_address)) {
            (Some(one), Some(other)) if one != other => peer,
            (Some(client), _) | (None, Some(client)) => client,
            (None, None) => peer,
        }
    }

    /// Returns the client that a field names: the first address from the right that is not a trusted proxy, or the last one that is
    /// known if an element has no address or there are no more. Empty elements are skipped, and all lines of the field count as one
    /// list. Returns `None` if the request does not have the field.
    fn client_in(
        &self,
        headers: &HeaderMap,
        field: HeaderName,
        peer: IpAddr,
        address_of: fn(&str) -> Option<IpAddr>,
    ) -> Option<IpAddr> {
        let lines = headers.get_all(field);
        lines.iter().next()?;
        let mut known = peer;
        for element in lines.into_iter().rev().flat_map(elements_from_the_right).take(HOPS_MAX) {
            let Some(address) = std::str::from_utf8(element).ok().and_then(address_of) else { break };
            known = address;
            if !self.contain(known) {
                break;
            }
        }
        Some(known)
    }
}

/// Parses a network of trusted proxies. IPv4 addresses within IPv6 become IPv4.
fn proxy_network(text: &str) -> Result<IpNet, String> {
    let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let network =
        canonical(network.map_err(|_| {
            "write an address or a network, for example 10.0.0.5, 10.0.0.0/24 or 2001:db8::/64".to_owned()
        })?);
    let first = network.trunc();
    if network.prefix_len() == 0 {
        Err("this contains every address, so that any client could name an address of its choice: name your own proxies"
            .to_owned())
    } else if network != first {
        Err(format!("the address is not the first of the network: write {first}"))
    } else {
        Ok(network)
    }
}

fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(within) = network else { return network };
    let prefix = within.prefix_len().checked_sub(MAPPED_PREFIX);
    let mapped = within.addr().to_ipv4_mapped().zip(prefix);
    mapped.and_then(|(address, prefix)| Ipv4Net::new(address, prefix).ok()).map_or(network, IpNet::V4)
}

/// Returns the elements of a list, the last first, without empty ones. A comma in quotes does not separate.
fn elements_from_the_right(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let mut quoted = false;
    let is_separator = move |byte: &u8| {
        quoted ^= *byte == b'"';
        *byte == b',' && !quoted
    };
    line.as_bytes().rsplit(is_separator).map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// Returns the value of `for`, without quotes; `None` if it is given twice or has escapes, which no address needs.
fn for_parameter(element: &str) -> Option<&str> {
    if element.contains('\\') {
        return None;
    }
    let mut quoted = false;
    let parameters = element.split(|character| {
        quoted ^= character == '"';
        character == ';' && !quoted
    });
    let mut values = parameters.filter_map(|parameter| {
        let (name, value) = parameter.trim().split_once('=')?;
        name.eq_ignore_ascii_case("for").then_some(value)
    });
    let value = values.next().filter(|_| values.next().is_none())?;
    value.strip_prefix('"').map_or(Some(value), |rest| rest.strip_suffix('"'))
}

/// Returns the address of a node: IPv4, or IPv6 with or without brackets. A port is allowed behind IPv4 and behind brackets.
/// `unknown` and obfuscated identifiers have no address.
fn node_address(node: &str) -> Option<IpAddr> {
    let address = if let Some(rest) = node.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        address.parse::<Ipv6Addr>().ok().filter(|_| port.is_empty() || is_port(port))?.into()
    } else if let Ok(address) = node.parse::<IpAddr>() {
        address
    } else {
        let (address, port) = node.split_at_checked(node.find(':')?)?;
        address.parse::<Ipv4Addr>().ok().filter(|_| is_port(port))?.into()
    };
    Some(address.to_canonical())
}

/// Checks a colon and a port, which is a number or obfuscated (RFC 7239, 6.3).
fn is_port(text: &str) -> bool {
    let in_identifier = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let Some(port) = text.strip_prefix(':') else { return false };
    match port.strip_prefix('_') {
        Some(identifier) => !identifier.is_empty() && identifier.bytes().all(in_identifier),
        None => port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok(),
    }
}
