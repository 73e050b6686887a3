//! Pages of other origins: the CORS protocol of the Fetch standard, for the origins that the operator lists.
//!
//! Browsers do not let a page read responses of another origin unless the responses allow it. This does not protect the
//! service: a request without a token is rejected, from any origin. There is no credentials mode, because scripts send the
//! token themselves, and the service never acts for a browser that happens to be signed in.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::body::Body;
use axum::response::Response;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};

/// What scripts may read beyond the few header fields they always may.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "ETag, Link, Location, Idempotency-Replayed, RateLimit, RateLimit-Policy, Retry-After, WWW-Authenticate, X-Request-Id",
);
/// What scripts may send. The same for all addresses: a preflight needs no token, so it must not tell them apart.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, DELETE");
const HEADERS: HeaderValue = HeaderValue::from_static(
    "Authorization, Content-Type, Idempotency-Key, If-None-Match, Traceparent, Tracestate, X-Request-Id",
);
/// Seconds for which a browser need not ask again: the most that all of them go along with.
const MAX_AGE: u32 = 7_200;

/// The origins whose pages may read our answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors(Origins);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Origins {
    Any,
    /// These, exactly as browsers send them.
    Listed(Vec<HeaderValue>),
}

impl Cors {
    /// Reads a list of origins: `*` alone, or each written `scheme://host` or `scheme://host:port`.
    pub fn parse(origins: &[String]) -> Result<Self, OriginFault> {
        if origins == ["*"] {
            return Ok(Self(Origins::Any));
        }
        let listed = origins.iter().map(|origin| parse_origin(origin.trim())).collect::<Result<_, _>>()?;
        Ok(Self(Origins::Listed(listed)))
    }

    /// What to answer a request with these headers as its allowed origin.
    pub(crate) fn allowed(&self, request: &HeaderMap) -> Option<HeaderValue> {
        match &self.0 {
            // Also where no origin is named: a cache may give the answer to a page later.
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
            // Also where the origin is not allowed, or not even named: caches keep one answer for each.
            headers.append(header::VARY, HeaderValue::from_static("Origin"));
        }
        if let Some(origin) = allowed {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
    }
}

/// Whether a browser asks, on behalf of a page and without its token, if it may send a request.
pub(crate) fn is_preflight(parts: &Parts) -> bool {
    let has = |name| parts.headers.contains_key(name);
    parts.method == Method::OPTIONS && has(header::ORIGIN) && has(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to a preflight from an allowed origin, whatever it asks for: the browser compares.
pub(crate) fn preflight() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(MAX_AGE));
    response
}

/// Why an origin cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{origin}`: {fault}")]
pub struct OriginFault {
    origin: String,
    fault: Fault,
}

/// Browsers send an origin in one form only. Another one would never match, so it is refused with that form as advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
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
    #[error("leave out the port: browsers do not send the usual one of a scheme")]
    UsualPort,
}

fn parse_origin(origin: &str) -> Result<HeaderValue, OriginFault> {
    let wrong = |fault| OriginFault { origin: origin.to_owned(), fault };
    check_origin(origin).map_err(wrong)?;
    HeaderValue::from_str(origin).map_err(|_| wrong(Fault::Form))
}

fn check_origin(origin: &str) -> Result<(), Fault> {
    if origin == "*" {
        return Err(Fault::AnyAmongOthers);
    }
    if !origin.is_ascii() {
        return Err(Fault::NotAscii);
    }
    if origin.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(Fault::Case);
    }
    let (scheme, authority) = origin.split_once("://").ok_or(Fault::Form)?;
    let usual_port = match scheme {
        "http" => "80",
        "https" => "443",
        _ => return Err(Fault::Scheme),
    };
    if authority.contains(['/', '?', '#']) {
        return Err(Fault::Path);
    }
    // The colons of an IPv6 address stand in brackets.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    check_host(host)?;
    match port {
        Some(port) if port == usual_port => Err(Fault::UsualPort),
        Some(port) if !is_port(port) => Err(Fault::Port),
        _ => Ok(()),
    }
}

fn check_host(host: &str) -> Result<(), Fault> {
    let is_sent = if let Some(address) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        // An IPv4 address within one of IPv6 is spelt otherwise here than in browsers; no page lives there.
        let as_sent = |parsed: Ipv6Addr| parsed.to_string() == address && parsed.to_ipv4_mapped().is_none();
        address.parse().is_ok_and(as_sent)
    } else if host.rsplit('.').next().is_some_and(is_number) {
        // Browsers take what ends in a number for an address.
        host.parse::<Ipv4Addr>().is_ok()
    } else {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        host.split('.').all(|label| !label.is_empty() && label.bytes().all(plain))
    };
    if is_sent { Ok(()) } else { Err(Fault::Host) }
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
    fn origins_are_listed_as_browsers_send_them() {
        for origin in [
            "https://app.example",
            "http://localhost:3000",
            "https://a-b.c_d.xn--bcher-kva.example:8443",
            "http://127.0.0.1:8080",
            "http://[::1]:8080",
            "https://[2001:db8::1]",
            "http://localhost:443",
            "https://7zip.example",
            "https://example.3com",
        ] {
            assert_eq!(check_origin(origin), Ok(()), "{origin}");
        }
        for (origin, fault) in [
            ("", Fault::Form),
            ("null", Fault::Form),
            ("app.example", Fault::Form),
            ("//app.example", Fault::Form),
            ("localhost:3000", Fault::Form),
            ("ftp://app.example", Fault::Scheme),
            ("file://", Fault::Scheme),
            ("://app.example", Fault::Scheme),
            ("https://app.example/", Fault::Path),
            ("https://app.example/app", Fault::Path),
            ("https://app.example?x", Fault::Path),
            ("https://app.example#x", Fault::Path),
            ("https://App.example", Fault::Case),
            ("HTTPS://app.example", Fault::Case),
            ("https://bücher.example", Fault::NotAscii),
            ("https://", Fault::Host),
            ("https://*.example", Fault::Host),
            ("https://user@app.example", Fault::Host),
            ("https://app..example", Fault::Host),
            ("https://app.example.", Fault::Host),
            ("https://a b", Fault::Host),
            ("https://a\tb", Fault::Host),
            ("https://::1", Fault::Host),
            ("https://[::1", Fault::Host),
            ("https://[0:0::1]", Fault::Host),
            ("https://[::ffff:1.2.3.4]", Fault::Host),
            ("https://[app.example]", Fault::Host),
            ("https://127.1", Fault::Host),
            ("https://1.2.3.04", Fault::Host),
            ("https://1.2.3.0x4", Fault::Host),
            ("https://:8443", Fault::Host),
            ("https://app.example:", Fault::Port),
            ("https://app.example:0", Fault::Port),
            ("https://app.example:08443", Fault::Port),
            ("https://app.example:+1", Fault::Port),
            ("https://app.example:65536", Fault::Port),
            ("https://app.example:443", Fault::UsualPort),
            ("http://[::1]:80", Fault::UsualPort),
            ("*", Fault::AnyAmongOthers),
        ] {
            assert_eq!(check_origin(origin), Err(fault), "{origin}");
        }
    }
}
