//! Framing of HTTP/1.1 bodies.

use hyper::header::{HeaderMap, HeaderValue, TRANSFER_ENCODING};

use super::rejection::Rejection;

/// Rejects every `Transfer-Encoding` but `chunked` alone. The library looks only at the last coding, and would take the bytes of
/// an encoded body for the body itself.
pub(super) fn check_transfer_encoding(headers: &HeaderMap) -> Option<Rejection> {
    let mut lines = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |line: &HeaderValue| line.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    let is_allowed = lines.next().is_none_or(is_chunked) && lines.next().is_none();
    (!is_allowed).then_some(Rejection::TransferEncoding)
}
