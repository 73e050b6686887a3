//! The choice of a representation: content negotiation, entity tags, and conditional requests with `If-None-Match`.

use std::ops::Range;

use hyper::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH};
use sha2::{Digest, Sha256};

use crate::observe::write_hex;
use plantstore_model::user::UserId;
use plantstore_store::Version;

/// The opaque tag between the quotes, in the value of `ETag`.
const OPAQUE: Range<usize> = 3..35;

/// Checks that a client accepts gzip and does not prefer `identity` (RFC 9110, 12.5.3).
pub(crate) fn accepts_gzip(request: &HeaderMap) -> bool {
    let mut gzip = None;
    let mut identity = None;
    let mut any = None;
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
    gzip > 0.0 && gzip >= identity.unwrap_or_default()
}

/// Checks that a client accepts HTML explicitly, as browsers do when a person opens a URL. A wildcard is not enough.
pub(crate) fn accepts_html(request: &HeaderMap) -> bool {
    weighted_items(request, &ACCEPT)
        .any(|(media_type, weight)| media_type.eq_ignore_ascii_case("text/html") && weight > 0.0)
}

/// Returns the items of a header field such as `Accept`, each with its weight from 0 to 1 (RFC 9110, 12.4.2). A malformed weight
/// counts as 0.
fn weighted_items<'a>(request: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = (&'a str, f32)> {
    let lines = request.get_all(name).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|item| {
        let mut parts = item.split(';').map(str::trim);
        let value = parts.next().unwrap_or_default();
        let weight = parts.find_map(|parameter| parameter.strip_prefix("q=").or(parameter.strip_prefix("Q=")));
        let parse = |weight: &str| weight.parse().ok().filter(|weight| (0.0..=1.0).contains(weight));
        (value, weight.map_or(1.0, |weight| parse(weight).unwrap_or_default()))
    })
}

/// Entity tag of a list: a hash of its owners and their versions. It stays the same while none of them changes, and never
/// stands for different plants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EntityTag(u128);

impl EntityTag {
    pub(crate) fn of(state: impl Iterator<Item = (UserId, Option<Version>)>) -> Self {
        let mut hash = Sha256::new();
        for (owner, version) in state {
            // Clients must not see the ids of users, so the tag is a hash.
            hash.update(owner.get().to_be_bytes());
            hash.update(version.map_or(i64::MIN, Version::get).to_be_bytes());
        }
        Self::from_hash(hash)
    }

    /// Returns the tag of constant bytes.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        Self::from_hash(Sha256::new_with_prefix(bytes))
    }

    fn from_hash(hash: Sha256) -> Self {
        let hash: [u8; 32] = hash.finalize().into();
        Self(hash.iter().take(16).fold(0, |bits, byte| bits << 8 | u128::from(*byte)))
    }

    /// Returns the value of `ETag`: a weak tag, because lists with the same tag are equivalent and may differ in their bytes.
    pub(crate) fn header(self) -> HeaderValue {
        let mut text = *b"W/\"................................\"";
        write_hex(self.0, &mut text[OPAQUE]);
        HeaderValue::from_bytes(&text).expect("hexadecimal digits are a header value")
    }
}

/// The header field `If-None-Match`: entity tags of representations that the client has.
pub(crate) struct IfNoneMatch {
    first: HeaderValue,
    /// Those of further lines.
    others: Vec<HeaderValue>,
}

impl IfNoneMatch {
    /// Returns `None` if the request has no such field.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(IF_NONE_MATCH).iter().cloned();
        Some(Self { first: values.next()?, others: values.collect() })
    }

    /// Checks for the tag of an [`EntityTag::header`] with the weak comparison of RFC 9110. A malformed value matches nothing.
    pub(crate) fn matches(&self, tag: &HeaderValue) -> bool {
        let opaque = &tag.as_bytes()[OPAQUE];
        let mut values = std::iter::once(&self.first).chain(&self.others);
        values.any(|value| value == tag || value.to_str().is_ok_and(|list| list_contains(list, opaque)))
    }
}

/// Checks that a list of tags contains this one; `*` contains all.
fn list_contains(mut list: &str, opaque: &[u8]) -> bool {
    if list.trim() == "*" {
        return true;
    }
    loop {
        list = list.trim_start_matches([' ', '\t', ',']);
        let tag = list.strip_prefix("W/").unwrap_or(list);
        let Some((found, rest)) = tag.strip_prefix('"').and_then(|tag| tag.split_once('"')) else {
            return false;
        };
        if found.as_bytes() == opaque {
            return true;
        }
        list = rest;
    }
}
