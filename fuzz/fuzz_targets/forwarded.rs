//! `Forwarded` and `X-Forwarded-For` of a trusted proxy: each line of the input is a value, of one and the other in turn.
#![no_main]
#![allow(dead_code, reason = "a module of the server")]

#[path = "../../crates/server/src/transport/trusted_proxies.rs"]
mod trusted_proxies;

use std::net::IpAddr;

use clap::{Args as _, Command, FromArgMatches as _};
use hyper::HeaderMap;
use hyper::header::{FORWARDED, HeaderValue};
use libfuzzer_sys::fuzz_target;
use trusted_proxies::TrustedProxies;

const CLIENT: &str = "203.0.113.9";

fn proxies(networks: &str) -> Option<TrustedProxies> {
    let command = TrustedProxies::augment_args(Command::new("fuzz")).no_binary_name(true);
    let matches = command.try_get_matches_from([format!("--trusted-proxy={networks}")]).ok()?;
    TrustedProxies::from_arg_matches(&matches).ok()
}

fuzz_target!(|bytes: &[u8]| {
    let trusted = proxies("10.0.0.0/8,fd00::/8").expect("networks");
    let [peer, client] = ["10.0.0.1", CLIENT].map(|address| address.parse::<IpAddr>().expect("an address"));
    let mut headers = HeaderMap::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let Ok(value) = HeaderValue::from_bytes(line) else { return };
        headers.append(if index % 2 == 0 { FORWARDED } else { "x-forwarded-for".parse().expect("a name") }, value);
    }
    assert_eq!(trusted.client_of(client, &headers), client, "an untrusted peer names nobody else");
    trusted.client_of(peer, &headers);
    // Whatever the client has sent, it cannot change what the proxy has appended to each field.
    headers.append(FORWARDED, HeaderValue::from_static("for=203.0.113.9"));
    headers.append("x-forwarded-for", HeaderValue::from_static(CLIENT));
    assert_eq!(trusted.client_of(peer, &headers), client);
    if let Ok(text) = str::from_utf8(bytes) {
        let _ = proxies(text);
    }
});
