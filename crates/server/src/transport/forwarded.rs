//! Addresses in `Forwarded` (RFC 7239) and `X-Forwarded-For`. Each proxy appends the address that it received a request from.
//!
//! The fields are read from the right: what the client has sent is on the left, and cannot change how the part behind it is read.
//! Read from the left, an opening quote of the client would hide what a proxy appends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hyper::HeaderMap;
use hyper::header::{FORWARDED, HeaderName, HeaderValue};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A header field with the addresses of hops.
#[derive(Clone, Copy, Debug)]
pub(super) enum HopField {
    Forwarded,
    XForwardedFor,
}

impl HopField {
    /// Returns the addresses of the field, the last first: `None` for a hop that has no address, or a malformed one. Empty
    /// elements are skipped, and all lines of the field count as one list. Returns `None` if the request does not have the field.
    pub(super) fn hops(self, headers: &HeaderMap) -> Option<impl Iterator<Item = Option<IpAddr>>> {
        let lines = headers.get_all(self.name());
        lines.iter().next()?;
        let elements = lines.into_iter().rev().flat_map(elements_from_the_right);
        Some(elements.map(move |element| self.address(element)))
    }

    fn name(self) -> HeaderName {
        match self {
            Self::Forwarded => FORWARDED,
            Self::XForwardedFor => X_FORWARDED_FOR,
        }
    }

    fn address(self, element: &[u8]) -> Option<IpAddr> {
        let element = std::str::from_utf8(element).ok()?;
        match self {
            Self::Forwarded => node_address(for_parameter(element)?),
            Self::XForwardedFor => node_address(element),
        }
    }
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

/// Returns the value of the parameter `for`, without quotes. An element that has it twice, or has escaped characters, which no
/// address needs, is malformed.
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
    match value.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"'),
        None => Some(value),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(field: HopField, lines: &[&str]) -> Vec<Option<String>> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(field.name(), HeaderValue::from_bytes(line.as_bytes()).expect("a field"));
        }
        let hops = field.hops(&headers).expect("the field");
        hops.map(|hop| hop.map(|address| address.to_string())).collect()
    }

    fn known(addresses: &[&str]) -> Vec<Option<String>> {
        addresses.iter().map(|address| Some((*address).to_owned())).collect()
    }

    #[test]
    fn addresses_are_read_from_the_right_over_all_lines() {
        let expected = known(&["192.0.2.3", "192.0.2.2", "192.0.2.1"]);
        assert_eq!(hops(HopField::XForwardedFor, &["192.0.2.1,192.0.2.2 ,\t192.0.2.3"]), expected);
        assert_eq!(hops(HopField::XForwardedFor, &["192.0.2.1", "192.0.2.2, , 192.0.2.3,"]), expected);
        assert_eq!(hops(HopField::Forwarded, &["for=192.0.2.1, For=\"192.0.2.2\"", "FOR=192.0.2.3"]), expected);
        assert!(HopField::Forwarded.hops(&HeaderMap::new()).is_none());
        assert_eq!(hops(HopField::XForwardedFor, &[""]), [] as [Option<String>; 0]);
    }

    #[test]
    fn nodes_have_ports_and_brackets() {
        for (node, address) in [
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1:8080", "192.0.2.1"),
            ("192.0.2.1:_hidden", "192.0.2.1"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:DB8:0::1]:443", "2001:db8::1"),
            ("[::ffff:192.0.2.1]", "192.0.2.1"),
        ] {
            assert_eq!(hops(HopField::XForwardedFor, &[node]), known(&[address]), "{node}");
            assert_eq!(hops(HopField::Forwarded, &[&format!("for=\"{node}\"")]), known(&[address]), "{node}");
        }
        for node in [
            "unknown",
            "_hidden",
            "192.0.2",
            "192.0.2.1.5",
            "192.0.2.256",
            "192.0.2.1:",
            "192.0.2.1:x",
            "192.0.2.1:65536",
            "192.0.2.1:+1",
            "192.0.2.1:_",
            "2001:db8::1:http",
            "[192.0.2.1]",
            "[2001:db8::1",
            "[2001:db8::1]443",
            "[fe80::1%eth0]",
            "localhost",
            "192.0.2.1 192.0.2.2",
            "für",
            "\"",
        ] {
            assert_eq!(hops(HopField::XForwardedFor, &[node]), [None], "{node}");
            assert_eq!(hops(HopField::Forwarded, &[&format!("for={node}")]), [None], "{node}");
        }
    }

    #[test]
    fn other_parameters_are_ignored_and_malformed_elements_have_no_address() {
        let address = known(&["192.0.2.1"]);
        for element in [
            "for=192.0.2.1;proto=https;by=203.0.113.43",
            "proto=http; for=192.0.2.1 ;host=\"plants.example;for=x, for=y\"",
            ";for=192.0.2.1;",
        ] {
            assert_eq!(hops(HopField::Forwarded, &[element]), address, "{element}");
        }
        for element in [
            "proto=https",
            "for",
            "for=",
            "for = 192.0.2.1",
            "for=192.0.2.1;for=192.0.2.2",
            "for=\"192.0.2.1",
            "for=192.0.2.1\"",
            "for=\"192.0.2.\\1\"",
            "192.0.2.1",
        ] {
            assert_eq!(hops(HopField::Forwarded, &[element]), [None], "{element}");
        }
    }

    #[test]
    fn text_of_the_client_cannot_hide_what_a_proxy_appends() {
        for client in
            ["for=\"", "for=\"x\\", "\"", "for=192.0.2.9;by=\"", "\\", ",,,,", "for=\"a, b\";host=\"", "\u{ff}"]
        {
            for appended in ["for=192.0.2.1", "for=\"192.0.2.1:80\";proto=https", "for=192.0.2.1;host=\"a,b\""] {
                let hops = hops(HopField::Forwarded, &[&format!("{client}, {appended}")]);
                assert_eq!(hops.first(), known(&["192.0.2.1"]).first(), "{client}, {appended}");
            }
            let hops = hops(HopField::XForwardedFor, &[&format!("{client}, 192.0.2.1")]);
            assert_eq!(hops.first(), known(&["192.0.2.1"]).first(), "{client}");
        }
    }
}
