//! Parsers of option values that only the command line has. Their messages say what to write instead of an invalid value.

use std::net::{Ipv4Addr, SocketAddr};

pub(super) use plantstore_server::value_parser::{duration, number};

/// Parses the variable of an option that has no value. Empty counts as not given.
pub(super) fn switch(text: &str) -> Result<bool, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "" | "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("write true or false"),
    }
}

/// Parses an address to listen on; a port alone means the loopback address.
pub(super) fn listen_address(text: &str) -> Result<String, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string());
    }
    let complete = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    let advice = "write HOST:PORT, for example 127.0.0.1:8080, or a port of this machine alone, for example 8080; ports go \
                  up to 65535";
    if complete { Ok(text.to_owned()) } else { Err(advice.to_owned()) }
}

pub(super) const SHARE_ADVICE: &str = "write a share from 0 (none) to 1 (all), for example 0.05 for one in twenty";

/// Parses a share from 0 to 1.
pub(super) fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| SHARE_ADVICE.to_owned())
}
