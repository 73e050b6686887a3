//! What tokens (JWT) and keys (JWK) have in common: the names of algorithms, and base64url.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The algorithms that are accepted. All are asymmetric, so that a public key cannot sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Es256,
    EdDsa,
}

impl Algorithm {
    /// Reads a name of RFC 7518, RFC 8037 or RFC 9864. The last one gives EdDSA with Ed25519 a name of its own; both names
    /// stand for the same signature, because no other curve of EdDSA is accepted.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

/// Decodes base64url without padding and without trailing bits, so that one text stands for the same bytes.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}
