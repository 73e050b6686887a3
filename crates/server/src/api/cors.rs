//! CORS (Fetch standard) for the origins that the operator lists.
//!
//! Browsers do not let a page read responses of another origin unless the responses allow it. Credentials mode is not
//! supported: scripts send the token themselves, and the service uses no cookies.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::response::Response;
use hyper::Method;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;

use super::response::no_content;

/// Response header fields that scripts may read beyond those that the standard always allows.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "ETag, Link, Location, Idempotency-Replayed, RateLimit, RateLimit-Policy, Retry-After, WWW-Authenticate, X-Request-Id",
);
/// Methods that scripts may use. They are the same for all paths: a preflight has no token and must not reveal which paths exist.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE");
const HEADERS: HeaderValue = HeaderValue::from_static(
    "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, Traceparent, Tracestate, X-Request-Id",
);
/// Seconds for which a browser may cache a preflight: the longest time that all browsers accept.
const MAX_AGE: u32 = 7_200;

/// The origins whose pages may read responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors(Origins);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Origins {
    Any,
    /// Exactly as browsers send them.
    Listed(Vec<HeaderValue>),
}

impl Cors {
    /// Parses a list of origins: `*` alone, or each as `scheme://host` or `scheme://host:port`.
    pub fn parse(origins: &[String]) -> Result<Self, OriginError> {
        if origins == ["*"] {
            return Ok(Self(Origins::Any));
        }
        let listed = origins.iter().map(|origin| parse_origin(origin.trim())).collect::<Result<_, _>>()?;
        Ok(Self(Origins::Listed(listed)))
    }

    /// Returns the value of `Access-Control-Allow-Origin` for a request with these headers.
    pub(crate) fn allowed(&self, request: &HeaderMap) -> Option<HeaderValue> {
        match &self.0 {
            // Also without `Origin`, because a cache may later give the response to a page.
            Origins::Any => Some(HeaderValue::from_static("*")),
            Origins::Listed(listed) => {
                let mut named = request.get_all(header::ORIGIN).iter();
                let origin = named.next().filter(|origin| listed.contains(origin))?;
                named.next().is_none().then(|| origin.clone())
            }
        }
    }

    /// Adds the header fields that let the browser pass the response to the page.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap, allowed: Option<HeaderValue>) {
        if let Origins::Listed(_) = self.0 {
            // Also if the origin is missing or not allowed, because caches must store one response per origin.
            headers.append(header::VARY, HeaderValue::from_static("Origin"));
        }
        if let Some(origin) = allowed {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
    }
}

/// Detects a CORS preflight request, which has no token.
pub(crate) fn is_preflight(parts: &Parts) -> bool {
    let has = |name| parts.headers.contains_key(name);
    parts.method == Method::OPTIONS && has(header::ORIGIN) && has(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Returns the response to a preflight from an allowed origin. It does not depend on the request, because the browser compares.
pub(crate) fn preflight() -> Response {
    let mut response = no_content();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(MAX_AGE));
    response
}

/// The reason why an origin cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{origin}`: {kind}")]
pub struct OriginError {
    origin: String,
    kind: OriginErrorKind,
}

/// Browsers serialise an origin in one form. Any other form would never match, so it is rejected with advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum OriginErrorKind {
    #[error("`*` stands for every origin: list it alone, or leave it out")]
    AnyAmongOthers,
    #[error("write scheme://host or scheme://host:port, for example https://app.example or http://localhost:3000")]
    Form,
    #[error("an origin starts with http:// or https://")]
    Scheme,
    #[error("an origin ends with its host or port: leave out the slash and what follows")]
    Path,
    #[error("write it in lower case, as browsers send it")]
    Case,
    #[error("write the host in ASCII, as browsers send it (xn--…)")]
    NotAscii,
    #[error("this is not a host as browsers send it: write a name such as app.example, or an address such as [::1]")]
    Host,
    #[error("a port is a number from 1 to 65535")]
    Port,
    #[error("leave out the port: browsers do not send the default port of a scheme")]
    DefaultPort,
}

fn parse_origin(origin: &str) -> Result<HeaderValue, OriginError> {
    let error = |kind| OriginError { origin: origin.to_owned(), kind };
    check_origin(origin).map_err(error)?;
    HeaderValue::from_str(origin).map_err(|_| error(OriginErrorKind::Form))
}

fn check_origin(origin: &str) -> Result<(), OriginErrorKind> {
    if origin == "*" {
        return Err(OriginErrorKind::AnyAmongOthers);
    }
    if !origin.is_ascii() {
        return Err(OriginErrorKind::NotAscii);
    }
    if origin.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(OriginErrorKind::Case);
    }
    let (scheme, authority) = origin.split_once("://").ok_or(OriginErrorKind::Form)?;
    let default_port = match scheme {
        "http" => "80",
        "https" => "443",
        _ => return Err(OriginErrorKind::Scheme),
    };
    if authority.contains(['/', '?', '#']) {
        return Err(OriginErrorKind::Path);
    }
    // The colons of an IPv6 address are inside brackets.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    check_host(host)?;
    match port {
        Some(port) if port == default_port => Err(OriginErrorKind::DefaultPort),
        Some(port) if !is_port(port) => Err(OriginErrorKind::Port),
        _ => Ok(()),
    }
}

fn check_host(host: &str) -> Result<(), OriginErrorKind> {
    let is_canonical = if let Some(address) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        // IPv4-mapped addresses are rejected: the standard library formats them in another way than browsers.
        let is_canonical = |parsed: Ipv6Addr| parsed.to_string() == address && parsed.to_ipv4_mapped().is_none();
        address.parse().is_ok_and(is_canonical)
    } else if host.rsplit('.').next().is_some_and(is_number) {
        // Browsers parse a host whose last label is a number as an IPv4 address.
        host.parse::<Ipv4Addr>().is_ok()
    } else {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        host.split('.').all(|label| !label.is_empty() && label.bytes().all(plain))
    };
    if is_canonical { Ok(()) } else { Err(OriginErrorKind::Host) }
}

fn is_number(label: &str) -> bool {
    match label.strip_prefix("0x") {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok_and(|port| port > 0 && port.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_origins_in_the_form_of_browsers_are_accepted() {
        let accepted = "https://app.example http://localhost:3000 https://a-b.c_d.xn--bcher-kva.example:8443 \
            http://127.0.0.1:8080 http://[::1]:8080 https://[2001:db8::1] http://localhost:443 https://7zip.example \
            https://example.3com";
        for origin in accepted.split(' ') {
            assert_eq!(check_origin(origin), Ok(()), "{origin}");
        }
        let rejected = [
            (OriginErrorKind::AnyAmongOthers, "*"),
            (OriginErrorKind::Form, " null app.example //app.example localhost:3000"),
            (OriginErrorKind::Scheme, "ftp://app.example file:// ://app.example"),
            (
                OriginErrorKind::Path,
                "https://app.example/ https://app.example/app https://app.example?x https://app.example#x",
            ),
            (OriginErrorKind::Case, "https://App.example HTTPS://app.example"),
            (OriginErrorKind::NotAscii, "https://bücher.example"),
            (
                OriginErrorKind::Host,
                "https:// https://*.example https://user@app.example https://app..example https://app.example. \
                 https://a\tb https://::1 https://[::1 https://[0:0::1] https://[::ffff:1.2.3.4] https://[app.example] \
                 https://127.1 https://1.2.3.04 https://1.2.3.0x4 https://:8443",
            ),
            (
                OriginErrorKind::Port,
                "https://app.example: https://app.example:0 https://app.example:08443 https://app.example:+1 \
                 https://app.example:65536",
            ),
            (OriginErrorKind::DefaultPort, "https://app.example:443 http://[::1]:80"),
        ];
        for (kind, origins) in rejected {
            for origin in origins.split(' ') {
                assert_eq!(check_origin(origin), Err(kind), "{origin}");
            }
        }
        assert_eq!(check_origin("https://a b"), Err(OriginErrorKind::Host));
    }
}
