//! The `Host` header field.

use hyper::Version;
use hyper::header::HOST;
use hyper::http::request::Parts;

use super::error::AuthError;

/// Checks the host of a request. HTTP/1.1 requires exactly one `Host`. HTTP/2 requires `:authority` or `Host`, and that they
/// are equal if there are both.
pub(crate) fn check_host(parts: &Parts) -> Result<(), AuthError> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let (host, more) = (hosts.next(), hosts.next().is_some());
    if host.is_some_and(|host| !is_host(host.as_bytes())) {
        return Err(AuthError::BadRequest("`Host` must be a host name or an address, with or without a port"));
    }
    match parts.version {
        Version::HTTP_2 => match (parts.uri.authority(), host) {
            _ if more => Err(AuthError::BadRequest("send at most one `Host` header")),
            (None, None) => Err(AuthError::BadRequest("send `:authority`, or a `Host` header")),
            (Some(authority), Some(host)) if !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()) => {
                Err(AuthError::BadRequest("`Host` must be the same as `:authority`: leave it out"))
            }
            _ => Ok(()),
        },
        version if more || (host.is_none() && version == Version::HTTP_11) => {
            Err(AuthError::BadRequest("send exactly one `Host` header"))
        }
        _ => Ok(()),
    }
}

/// Checks the characters of a host and its port (RFC 9110, 7.2). An empty one is allowed.
fn is_host(value: &[u8]) -> bool {
    let host = match value.iter().rposition(|byte| *byte == b':') {
        Some(colon) if value[colon + 1..].iter().all(u8::is_ascii_digit) => &value[..colon],
        _ => value,
    };
    let in_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(byte);
    match host.strip_prefix(b"[") {
        Some(address) => {
            address.strip_suffix(b"]").is_some_and(|address| address.iter().all(|byte| *byte == b':' || in_name(byte)))
        }
        None => host.iter().all(in_name),
    }
}
