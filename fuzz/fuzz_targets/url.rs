//! URLs of issuers, collectors and servers, and those of forward proxies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plantstore_client::{Cleartext, HttpUrl, Proxies, UrlTarget};

fuzz_target!(|text: &str| {
    for target in [UrlTarget::None, UrlTarget::Path, UrlTarget::PathAndQuery] {
        if let Ok(url) = HttpUrl::parse(text, Cleartext::Loopback, target) {
            assert!(!url.is_exposed() && !url.authority().is_empty());
        }
    }
    let _ = Proxies::new(text, text, text);
});
