//! The client's trace context: `traceparent` and `tracestate` of W3C Trace Context. Malformed ones are ignored; a request is
//! never rejected for them.

use hyper::HeaderMap;

use super::id::{SpanId, TraceId};
use plantstore_model::token::{TOKEN_PREFIX, is_jwt_shaped};

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// Characters of a `traceparent` of version 00; later versions may be longer.
const LENGTH: usize = 55;
/// Characters and members of a `tracestate` that is propagated: the least that the specification demands.
const STATE_MAX: usize = 512;
const MEMBERS_MAX: usize = 32;
/// Characters of a key, and of a value, at most.
const MEMBER_MAX: usize = 256;
/// Flag of traces that the client records.
const SAMPLED: u8 = 1;

/// The span that a request was sent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    pub(super) sampled: bool,
}

impl Parent {
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let value = values.next()?;
        if values.next().is_some() {
            return None;
        }
        Self::parse(value.as_bytes())
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let (known, rest) = text.split_at_checked(LENGTH)?;
        let [version] = decode_hex(&known[..2])?;
        let valid_end = match version {
            0 => rest.is_empty(),
            u8::MAX => false,
            _ => rest.is_empty() || rest.starts_with(b"-"),
        };
        let valid_separators = [2, 35, 52].iter().all(|place| known[*place] == b'-');
        let [flags] = decode_hex(&known[53..])?;
        let (trace, span) = (decode_hex(&known[3..35])?, decode_hex(&known[36..52])?);
        let valid_ids = trace != [0; 16] && span != [0; 8];
        (valid_end && valid_separators && valid_ids).then_some(Self {
            trace: TraceId(trace),
            span: SpanId(span),
            sampled: flags & SAMPLED != 0,
        })
    }
}

/// Decodes hexadecimal digits in lower case.
fn decode_hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

/// Returns the client's `tracestate`, unchanged; `None` if it is malformed, too long, or may hold a token.
pub(super) fn state(headers: &HeaderMap) -> Option<String> {
    let values: Option<Vec<&str>> = headers.get_all(TRACESTATE).iter().map(|value| value.to_str().ok()).collect();
    let state = values?.join(",");
    let fits = (1..=STATE_MAX).contains(&state.len()) && state.split(',').count() <= MEMBERS_MAX;
    (fits && !state.contains(TOKEN_PREFIX) && state.split(',').all(is_member)).then_some(state)
}

/// Checks that a member is `key=value` as specified, or empty, and that its value is not shaped like an issuer's token.
fn is_member(member: &str) -> bool {
    let member = member.trim_matches([' ', '\t']);
    let Some((key, value)) = member.split_once('=') else {
        return member.is_empty();
    };
    let of_key = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
    let valid_start = key.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let of_value = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'=';
    valid_start
        && key.len() <= MEMBER_MAX
        && key.bytes().all(of_key)
        && (1..=MEMBER_MAX).contains(&value.len())
        && value.bytes().all(of_value)
        && !is_jwt_shaped(value)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn tracestate_is_returned_unchanged_or_dropped() {
        let state_of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(TRACESTATE, HeaderValue::from_str(value).expect("a value"));
            }
            state(&headers)
        };
        assert_eq!(state_of(&["a=1, b=2"]).as_deref(), Some("a=1, b=2"));
        assert_eq!(state_of(&["a=1", "b=2"]).as_deref(), Some("a=1,b=2"));
        assert_eq!(state_of(&[]), None);
        assert_eq!(state_of(&[""]), None);
        let long = |length: usize| format!("a={},b={}", "x".repeat(255), "y".repeat(length));
        assert_eq!(state_of(&[&long(252)]).map(|state| state.len()), Some(512));
        assert_eq!(state_of(&[&long(253)]), None);
        assert_eq!(state_of(&[&format!("a={}", "x".repeat(257))]), None);
        assert_eq!(state_of(&["a=1,,tenant@b-_*/=2 3"]).as_deref(), Some("a=1,,tenant@b-_*/=2 3"));
        let token = "a=eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhIn0.c2ln";
        for wrong in ["a", "=1", "A=1", "-a=1", "a=", "a=1=2", "a b=1", token] {
            assert_eq!(state_of(&[wrong]), None, "{wrong}");
        }
        assert_eq!(state_of(&[&["a=1"; 32].join(",")]).map(|state| state.len()), Some(127));
        assert_eq!(state_of(&[&["a=1"; 33].join(",")]), None);
        assert_eq!(state_of(&["a=pst_0123"]), None);
    }

    #[test]
    fn ids_are_written_as_they_were_read() {
        let parent = Parent::parse(format!("00-{TRACE}-{SPAN}-01").as_bytes()).expect("a parent");
        assert_eq!((parent.trace.to_string(), parent.span.to_string()), (TRACE.to_owned(), SPAN.to_owned()));
        assert!(parent.sampled);
    }
}
