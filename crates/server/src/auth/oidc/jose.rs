//! Algorithm names and base64url, which tokens (JWT) and keys (JWK) share.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Accepted signature algorithms. All are asymmetric, so that a public key cannot be used to sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Es256,
    EdDsa,
}

impl Algorithm {
    /// Returns the algorithm with a name of RFC 7518, RFC 8037 or RFC 9864. `EdDSA` and `Ed25519` are the same here, because no
    /// other curve of EdDSA is accepted.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

/// Decodes base64url without padding and without trailing bits, so that every byte string has exactly one encoding.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}
