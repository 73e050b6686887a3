//! Content negotiation.

use hyper::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderName};

/// Weight of an item without one, in thousandths.
const WEIGHT_MAX: u16 = 1_000;

/// Checks that a client accepts gzip and does not prefer `identity` (RFC 9110, 12.5.3).
pub(crate) fn accepts_gzip(request: &HeaderMap) -> bool {
    let (mut gzip, mut identity, mut any) = (None, None, None);
    for (coding, weight) in weighted_items(request, &ACCEPT_ENCODING) {
        let is = |name: &str| coding.eq_ignore_ascii_case(name);
        if is("gzip") || is("x-gzip") {
            gzip = Some(weight);
        } else if is("identity") {
            identity = Some(weight);
        } else if coding == "*" {
            any = Some(weight);
        }
    }
    let gzip = gzip.or(any).unwrap_or_default();
    gzip > 0 && gzip >= identity.unwrap_or_default()
}

/// Checks that a client accepts HTML explicitly, as browsers do when a person opens a URL. A wildcard is not enough.
pub(crate) fn accepts_html(request: &HeaderMap) -> bool {
    weighted_items(request, &ACCEPT)
        .any(|(media_type, weight)| media_type.eq_ignore_ascii_case("text/html") && weight > 0)
}

/// Returns the items of a header field such as `Accept`, each with its weight in thousandths (RFC 9110, 12.4.2). A
/// malformed weight counts as 0.
fn weighted_items<'a>(request: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = (&'a str, u16)> {
    let lines = request.get_all(name).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|item| {
        let mut parts = item.split(';').map(str::trim);
        let value = parts.next().unwrap_or_default();
        let weight = parts.find_map(|parameter| parameter.strip_prefix("q=").or(parameter.strip_prefix("Q=")));
        (value, weight.map_or(WEIGHT_MAX, |weight| parse_weight(weight).unwrap_or_default()))
    })
}

/// Parses a weight, from `0` to `1` with up to three decimals.
fn parse_weight(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = decimals.bytes().chain([b'0'; 3]).take(3).map(|digit| u16::from(digit - b'0'));
    match (whole, digits.fold(0, |sum, digit| 10 * sum + digit)) {
        ("0", thousandths) => Some(thousandths),
        ("1", 0) => Some(WEIGHT_MAX),
        _ => None,
    }
}
