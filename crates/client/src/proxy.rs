//! Proxies for outgoing requests, in the syntax of the variables `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`.

use std::fmt;
use std::sync::Arc;

use hyper::Uri;
use hyper::http::uri::Scheme;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

use crate::http_url::is_loopback;

/// Selects the proxy of a destination. Loopback addresses are always reached directly.
#[derive(Clone, Default)]
pub struct Proxies(Option<Arc<Matcher>>);

/// A value is not the URL of a supported proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write the proxy as http://HOST:PORT")]
pub struct ProxyError;

impl Proxies {
    /// Takes the proxies for `http://` and for `https://` (empty for none), and the hosts that are reached without one.
    pub fn new(http: &str, https: &str, none_for: &str) -> Result<Self, ProxyError> {
        if http.is_empty() && https.is_empty() {
            return Ok(Self::default());
        }
        for proxy in [http, https].into_iter().filter(|proxy| !proxy.is_empty()) {
            check(proxy)?;
        }
        let matcher = Matcher::builder().http(http.to_owned()).https(https.to_owned()).no(none_for.to_owned());
        Ok(Self(Some(Arc::new(matcher.build()))))
    }

    pub(crate) fn proxy_for(&self, uri: &Uri) -> Option<Intercept> {
        self.0.as_ref().filter(|_| !is_loopback(uri))?.intercept(uri)
    }
}

/// Rejects values that the matcher would ignore, and proxies that are not reached over plain HTTP.
fn check(proxy: &str) -> Result<(), ProxyError> {
    let matcher = Matcher::builder().all(proxy.to_owned()).build();
    let found = matcher.intercept(&Uri::from_static("http://destination"));
    let usable = found.is_some_and(|found| found.uri().scheme() == Some(&Scheme::HTTP));
    if usable { Ok(()) } else { Err(ProxyError) }
}

/// Omits the URLs, which may contain passwords.
impl fmt::Debug for Proxies {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "Proxies(some)" } else { "Proxies(none)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_is_chosen_by_scheme_and_host() {
        let proxies =
            Proxies::new("http://10.0.0.1:3128", "10.0.0.2:3128", "direct.example, 192.0.2.0/24").expect("proxies");
        let proxy = |uri: &str| {
            let found = proxies.proxy_for(&uri.parse().expect("a URI"));
            found.map(|found| found.uri().authority().expect("an authority").to_string())
        };
        assert_eq!(proxy("http://far.example").as_deref(), Some("10.0.0.1:3128"));
        assert_eq!(proxy("https://far.example:8443").as_deref(), Some("10.0.0.2:3128"));
        for direct in [
            "https://direct.example",
            "https://www.direct.example",
            "http://192.0.2.7",
            "http://127.0.0.1:4318",
            "https://localhost",
            "https://[::1]",
        ] {
            assert_eq!(proxy(direct), None, "{direct}");
        }
        assert!(Proxies::new("", "", "").expect("no proxies").proxy_for(&Uri::from_static("http://x")).is_none());
    }

    #[test]
    fn unusable_proxies_are_rejected() {
        for wrong in ["socks5://10.0.0.1", "https://10.0.0.1", "ftp://x", "://", "a b"] {
            assert_eq!(Proxies::new("", wrong, "").err(), Some(ProxyError), "{wrong}");
            assert_eq!(Proxies::new(wrong, "", "").err(), Some(ProxyError), "{wrong}");
        }
    }
}
