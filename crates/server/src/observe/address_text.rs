//! Text of an IP address, on the stack. Every line of the access log has one.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

/// Length of the longest text of an IPv6 address.
const LENGTH_MAX: usize = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255".len();

pub(super) struct AddressText {
    bytes: [u8; LENGTH_MAX],
    length: usize,
}

impl AddressText {
    pub(super) fn of(address: IpAddr) -> Self {
        let mut text = Self { bytes: [0; LENGTH_MAX], length: 0 };
        match address {
            // Much faster than `Display`, which supports widths and alignment.
            IpAddr::V4(address) => {
                for (index, octet) in address.octets().into_iter().enumerate() {
                    if index > 0 {
                        text.push(b".");
                    }
                    text.push(itoa::Buffer::new().format(octet).as_bytes());
                }
            }
            IpAddr::V6(address) => write!(text, "{address}").expect("it has room for every address"),
        }
        text
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }

    fn push(&mut self, part: &[u8]) {
        self.bytes[self.length..][..part.len()].copy_from_slice(part);
        self.length += part.len();
    }
}

impl fmt::Write for AddressText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.push(part.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_text_of_display() {
        for text in ["0.0.0.0", "127.0.0.1", "255.255.255.255", "::", "::1", "::ffff:192.0.2.1", "2001:db8::7"] {
            assert_eq!(AddressText::of(text.parse().expect("an address")).as_str(), text);
        }
        let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        assert_eq!(AddressText::of(longest.parse().expect("an address")).as_str(), longest);
    }
}
