//! Ids of traces and spans.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId(pub(super) [u8; 16]);

/// Id of a span, unique in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanId(pub(super) [u8; 8]);

impl fmt::Display for TraceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl TraceId {
    /// Returns `None` without randomness; the request is then not traced.
    pub(super) fn random() -> Option<Self> {
        random().map(Self)
    }

    /// Returns the bits that W3C Trace Context asks clients to choose at random, by which a trace is sampled.
    pub(super) fn random_part(self) -> u64 {
        let [.., last] = self.0.as_chunks::<8>().0 else { return 0 };
        u64::from_be_bytes(*last) & (u64::MAX >> 8)
    }
}

impl SpanId {
    pub(super) fn random() -> Option<Self> {
        random().map(Self)
    }
}

/// Returns random bytes that are not all zero: all zeros are not a valid id.
pub(super) fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).ok()?;
    bytes.iter().any(|byte| *byte != 0).then_some(bytes)
}
