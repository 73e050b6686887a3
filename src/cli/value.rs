//! Values of options. The messages say what to write instead of a wrong one.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

use super::words::grouped;

/// Reads whole numbers within a range.
pub(super) fn number<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: Copy + Into<u64> + TryFrom<u64>,
{
    let (least, most): (u64, u64) = ((*range.start()).into(), (*range.end()).into());
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match most {
            u64::MAX => format!("write a whole number, {} or more", grouped(least)),
            _ => format!("write a whole number from {} to {}", grouped(least), grouped(most)),
        })
    }
}

/// Reads an address to listen on; a port alone is one of this machine.
pub(super) fn listen_address(text: &str) -> Result<String, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string());
    }
    let complete = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    let wrong = "write HOST:PORT, for example 127.0.0.1:8080, or a port of this machine alone, for example 8080; ports go \
                 up to 65535";
    if complete { Ok(text.to_owned()) } else { Err(wrong.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_their_range_are_rejected_in_words() {
        let port = number(1..=65_535_u32);
        assert_eq!(port("8080"), Ok(8_080));
        for wrong in ["", "0", "65536", "-1", "1.5", "x", "99999999999999999999"] {
            assert_eq!(port(wrong), Err("write a whole number from 1 to 65,535".to_owned()), "{wrong}");
        }
        assert_eq!(number(1..=u64::MAX)("0"), Err("write a whole number, 1 or more".to_owned()));
    }
}
