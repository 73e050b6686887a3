//! Entity tags, and conditional requests with `If-None-Match`.

use axum::body::Body;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderValue, IF_NONE_MATCH};
use sha2::{Digest, Sha256};

use crate::observe::write_hex;
use plantstore_model::user::UserId;
use plantstore_store::Version;

/// Characters of a tag between its quotes.
const OPAQUE: usize = 32;

/// Returns the response to a client that has the representation already, without header fields.
pub(crate) fn not_modified() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response
}

/// Identifies the state of a list: the owners of its plants and their versions. It stays the same while none of them changes,
/// and never recurs afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EntityTag(u128);

impl EntityTag {
    pub(crate) fn of(state: impl Iterator<Item = (UserId, Option<Version>)>) -> Self {
        let mut hash = Sha256::new();
        for (owner, version) in state {
            // Ids of users are internal to the store: clients see a hash.
            hash.update(owner.get().to_be_bytes());
            hash.update(version.map_or(i64::MIN, Version::get).to_be_bytes());
        }
        Self::from_hash(hash)
    }

    /// The tag of bytes that do not change as long as the program runs.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        Self::from_hash(Sha256::new_with_prefix(bytes))
    }

    fn from_hash(hash: Sha256) -> Self {
        let hash: [u8; 32] = hash.finalize().into();
        Self(hash.iter().take(16).fold(0, |bits, byte| bits << 8 | u128::from(*byte)))
    }

    fn opaque(self) -> [u8; OPAQUE] {
        let mut opaque = [0; OPAQUE];
        write_hex(self.0, &mut opaque);
        opaque
    }

    /// The tag as the `ETag` header has it. It is a weak one: the bytes of two lists with it may differ in nothing that
    /// matters.
    pub(crate) fn header(self) -> HeaderValue {
        let mut text = *b"W/\"................................\"";
        text[3..][..OPAQUE].copy_from_slice(&self.opaque());
        HeaderValue::from_bytes(&text).expect("hexadecimal digits are a header value")
    }
}

/// What a client has already, as it says with `If-None-Match`.
pub(crate) struct IfNoneMatch(Vec<HeaderValue>);

impl IfNoneMatch {
    /// `None` when the client does not say.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let values: Vec<_> = headers.get_all(IF_NONE_MATCH).iter().cloned().collect();
        (!values.is_empty()).then_some(Self(values))
    }

    /// Whether the client has what the tag stands for, weakly compared (RFC 9110). What is not well-formed matches nothing.
    pub(crate) fn matches(&self, tag: EntityTag) -> bool {
        let opaque = tag.opaque();
        self.0.iter().filter_map(|value| value.to_str().ok()).any(|value| lists(value, &opaque))
    }
}

/// Whether a list of tags, or `*`, has this one.
fn lists(mut list: &str, opaque: &[u8]) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_found_in_lists() {
        let has = |list: &str| lists(list, b"abc");
        for list in ["*", " * ", r#""abc""#, r#"W/"abc""#, r#""x", W/"abc""#, r#"W/"a,b" ,, "abc","y""#, "\t\"abc\"\t"]
        {
            assert!(has(list), "{list}");
        }
        for list in
            ["", "abc", r#""ab""#, r#""abcd""#, r#"w/"abc""#, r#""x" *"#, r#"W/ "abc""#, r#""abc"#, r#"x,"abc""#]
        {
            assert!(!has(list), "{list}");
        }
    }

    #[test]
    fn a_tag_tells_owners_and_versions_apart() {
        let tag = |state: &[(i64, Option<i64>)]| {
            EntityTag::of(state.iter().map(|(owner, version)| (UserId::new(*owner), version.map(Version::new))))
        };
        let states: [&[(i64, Option<i64>)]; 7] = [
            &[(1, Some(1))],
            &[(1, Some(2))],
            &[(2, Some(1))],
            &[(1, None)],
            &[],
            &[(1, Some(1)), (2, Some(1))],
            &[(2, Some(1)), (1, Some(1))],
        ];
        for (index, state) in states.iter().enumerate() {
            for other in &states[..index] {
                assert_ne!(tag(state), tag(other));
            }
        }
    }
}
