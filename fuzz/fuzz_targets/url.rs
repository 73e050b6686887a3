//! URLs of issuers, collectors, servers and stores, and those of forward proxies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plantstore_client::{Cleartext, HttpUrl, Proxies, UrlTarget};
use plantstore_store::StoreUrl;

fuzz_target!(|text: &str| {
    for target in [UrlTarget::None, UrlTarget::Path, UrlTarget::PathAndQuery] {
        if let Ok(url) = HttpUrl::parse(text, Cleartext::Loopback, target) {
            assert!(!url.is_exposed() && !url.authority().is_empty());
        }
    }
    let _ = Proxies::new(text, text, text);
    if let Ok(url) = text.parse::<StoreUrl>() {
        assert!(!url.to_string().is_empty());
    }
});
