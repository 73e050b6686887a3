//! Content negotiation.

use hyper::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderName};

/// Checks that a client accepts gzip and does not prefer `identity` (RFC 9110, 12.5.3).
pub(crate) fn accepts_gzip(request: &HeaderMap) -> bool {
    let (mut gzip, mut identity, mut any) = (None, None, None);
    for (coding, weight) in weighted_items(request, &ACCEPT_ENCODING) {
        match coding.to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => gzip = Some(weight),
            "identity" => identity = Some(weight),
            "*" => any = Some(weight),
            _ => {}
        }
    }
    let gzip = gzip.or(any).unwrap_or(0.0);
    gzip > 0.0 && gzip >= identity.unwrap_or(0.0)
}

/// Checks that a client accepts HTML explicitly, as browsers do when a person opens a URL. A wildcard is not enough.
pub(crate) fn accepts_html(request: &HeaderMap) -> bool {
    weighted_items(request, &ACCEPT)
        .any(|(media_type, weight)| media_type.eq_ignore_ascii_case("text/html") && weight > 0.0)
}

/// Returns the items of a header field such as `Accept`, each with its weight (RFC 9110, 12.4.2). A malformed weight counts as 0.
fn weighted_items<'a>(request: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = (&'a str, f32)> {
    let lines = request.get_all(name).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|item| {
        let mut parts = item.split(';').map(str::trim);
        let value = parts.next().unwrap_or_default();
        let weight = parts.find_map(|parameter| parameter.strip_prefix("q=").or(parameter.strip_prefix("Q=")));
        (value, weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0)))
    })
}
