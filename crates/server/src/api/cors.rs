//! CORS (Fetch standard) for the origins that the operator lists.
//!
//! Browsers do not let a page read responses of another origin unless the responses allow it. Credentials mode is not
//! supported: scripts send the token themselves, and the service uses no cookies.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

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
pub enum Cors {
    Any,
    /// Exactly as browsers send them.
    Listed(Vec<HeaderValue>),
}

impl Cors {
    /// Parses a list of origins: `*` alone, or each as `scheme://host` or `scheme://host:port`.
    pub fn parse(origins: &[String]) -> Result<Self, OriginError> {
        if origins == ["*"] {
            return Ok(Self::Any);
        }
        let listed = origins.iter().map(|origin| parse_origin(origin.trim())).collect::<Result<_, _>>()?;
        Ok(Self::Listed(listed))
    }

    /// Returns the value of `Access-Control-Allow-Origin` for a request with these headers.
    pub(crate) fn allowed(&self, request: &HeaderMap) -> Option<HeaderValue> {
        match self {
            // Also without `Origin`, because a cache may later give the response to a page.
            Self::Any => Some(HeaderValue::from_static("*")),
            Self::Listed(listed) => {
                let mut named = request.get_all(header::ORIGIN).iter();
                let origin = named.next().filter(|origin| listed.contains(origin))?;
                named.next().is_none().then(|| origin.clone())
            }
        }
    }

    /// Adds the header fields that let the browser pass the response to the page.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap, allowed: Option<HeaderValue>) {
        if let Self::Listed(_) = self {
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

/// The reason why an origin cannot be listed. Browsers serialise an origin in one form, and any other would never match.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{origin}`: {advice}")]
pub struct OriginError {
    origin: String,
    advice: &'static str,
}

fn parse_origin(origin: &str) -> Result<HeaderValue, OriginError> {
    let error = |advice| OriginError { origin: origin.to_owned(), advice };
    check_origin(origin).map_err(error)?;
    HeaderValue::from_str(origin).map_err(|_| error(FORM))
}

const FORM: &str =
    "write scheme://host or scheme://host:port, for example https://app.example or http://localhost:3000";

/// Checks the form of an origin. The error is the advice.
fn check_origin(origin: &str) -> Result<(), &'static str> {
    if origin == "*" {
        return Err("`*` stands for every origin: list it alone, or leave it out");
    }
    if !origin.is_ascii() {
        return Err("write the host in ASCII, as browsers send it (xn--…)");
    }
    if origin.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err("write it in lower case, as browsers send it");
    }
    let (scheme, authority) = origin.split_once("://").ok_or(FORM)?;
    let default_port = match scheme {
        "http" => "80",
        "https" => "443",
        _ => return Err("an origin starts with http:// or https://"),
    };
    if authority.contains(['/', '?', '#']) {
        return Err("an origin ends with its host or port: leave out the slash and what follows");
    }
    // The colons of an IPv6 address are inside brackets.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    if !is_host(host) {
        return Err(
            "this is not a host as browsers send it: write a name such as app.example, or an address such as [::1]",
        );
    }
    match port {
        Some(port) if port == default_port => {
            Err("leave out the port: browsers do not send the default port of a scheme")
        }
        Some(port) if port.parse::<NonZeroU16>().is_ok_and(|parsed| parsed.to_string() == port) => Ok(()),
        Some(_) => Err("a port is a number from 1 to 65535"),
        None => Ok(()),
    }
}

fn is_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        // IPv4-mapped addresses are rejected: the standard library formats them in another way than browsers.
        let is_canonical = |parsed: Ipv6Addr| parsed.to_string() == address && parsed.to_ipv4_mapped().is_none();
        address.parse().is_ok_and(is_canonical)
    } else if host.rsplit('.').next().is_some_and(is_number) {
        // Browsers parse a host whose last label is a number as an IPv4 address.
        host.parse::<Ipv4Addr>().is_ok()
    } else {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        host.split('.').all(|label| !label.is_empty() && label.bytes().all(plain))
    }
}

fn is_number(label: &str) -> bool {
    match label.strip_prefix("0x") {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}
