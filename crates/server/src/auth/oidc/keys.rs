//! The keys of an issuer (JWKS), and verification of signatures with them. The type of a key decides its algorithm.

use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::issuer::quoted;
use super::jwt::{Algorithm, Jwt, decode};

const KEYS_MAX: usize = 100;
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;
/// Bytes of a coordinate on the curves of ES256 and EdDSA.
const CURVE_BYTES: usize = 32;
/// First byte of an uncompressed P-256 point; both coordinates follow.
const UNCOMPRESSED: u8 = 4;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeySet(Vec<VerificationKey>);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct VerificationKey {
    id: Option<String>,
    material: Material,
}

#[derive(Debug, PartialEq, Eq)]
enum Material {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct SkippedKey {
    /// Its `kid`, quoted.
    pub(super) id: Option<String>,
    pub(super) reason: SkipReason,
}

/// The reason why a key cannot be used. The texts are for the log.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SkipReason {
    #[error("it is not a JSON Web Key")]
    Malformed,
    #[error("its `use` or `key_ops` does not allow it to verify signatures")]
    Purpose,
    #[error("its type is {0}, and not one of RSA, EC with P-256 and OKP with Ed25519")]
    Type(String),
    #[error("its numbers are missing or malformed")]
    Numbers,
    #[error("it has {0} bits, not {min} to {max}", min = RSA_BITS.start(), max = RSA_BITS.end())]
    RsaBits(usize),
    #[error("its `alg` is {0}, and not the one that is accepted for its type: RS256, ES256, EdDSA or Ed25519")]
    Algorithm(String),
    #[error("more than {KEYS_MAX} keys come before it")]
    TooMany,
}

impl KeySet {
    /// Parses a key set into usable and skipped keys; `None` if it is not a key set.
    pub(super) fn parse(json: &[u8]) -> Option<(Self, Vec<SkippedKey>)> {
        #[derive(Deserialize)]
        struct Document<'a> {
            #[serde(borrow)]
            keys: Vec<&'a RawValue>,
        }
        let document: Document<'_> = serde_json::from_slice(json).ok()?;
        let mut usable = Vec::new();
        let mut skipped = Vec::new();
        for key in document.keys {
            match Jwk::parse(key.get()) {
                Ok(key) if usable.len() < KEYS_MAX => usable.push(key),
                Ok(key) => {
                    skipped.push(SkippedKey { id: key.id.as_deref().map(quoted), reason: SkipReason::TooMany });
                }
                Err(key) => skipped.push(key),
            }
        }
        Some((Self(usable), skipped))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the keys with the algorithm and the `kid` of a token; without `kid`, the only key of its algorithm.
    pub(super) fn candidates(&self, jwt: &Jwt<'_>) -> impl Iterator<Item = &VerificationKey> {
        let has_algorithm = move |key: &&VerificationKey| key.material.algorithm() == jwt.algorithm;
        let is_only_one = self.0.iter().filter(has_algorithm).count() == 1;
        self.0.iter().filter(has_algorithm).filter(move |key| match &jwt.key_id {
            Some(id) => key.id.as_ref() == Some(id),
            None => is_only_one,
        })
    }
}

impl Material {
    fn algorithm(&self) -> Algorithm {
        match self {
            Self::Rsa { .. } => Algorithm::Rs256,
            Self::P256(_) => Algorithm::Es256,
            Self::Ed25519(_) => Algorithm::EdDsa,
        }
    }
}

impl VerificationKey {
    pub(super) fn has_signed(&self, jwt: &Jwt<'_>) -> bool {
        let Jwt { signed, signature, .. } = jwt;
        let verified = match &self.material {
            Material::Rsa { modulus, exponent } => RsaPublicKeyComponents { n: modulus, e: exponent }.verify(
                &RSA_PKCS1_2048_8192_SHA256,
                signed,
                signature,
            ),
            Material::P256(point) => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(signed, signature),
            Material::Ed25519(point) => UnparsedPublicKey::new(&ED25519, point).verify(signed, signature),
        };
        verified.is_ok()
    }
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: Option<String>,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Jwk {
    fn parse(json: &str) -> Result<VerificationKey, SkippedKey> {
        let jwk: Self =
            serde_json::from_str(json).map_err(|_| SkippedKey { id: None, reason: SkipReason::Malformed })?;
        match jwk.material() {
            Ok(material) => Ok(VerificationKey { id: jwk.kid, material }),
            Err(reason) => Err(SkippedKey { id: jwk.kid.as_deref().map(quoted), reason }),
        }
    }

    fn material(&self) -> Result<Material, SkipReason> {
        let for_signatures = self.purpose.as_deref().is_none_or(|purpose| purpose == "sig")
            && self.key_ops.as_ref().is_none_or(|operations| operations.iter().any(|operation| operation == "verify"));
        if !for_signatures {
            return Err(SkipReason::Purpose);
        }
        let material = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => self.rsa(),
            ("EC", Some("P-256")) => {
                let [x, y] = [coordinate(self.x.as_ref())?, coordinate(self.y.as_ref())?];
                Ok(Material::P256([vec![UNCOMPRESSED], x, y].concat()))
            }
            ("OKP", Some("Ed25519")) => coordinate(self.x.as_ref()).map(Material::Ed25519),
            (kind, None) => Err(SkipReason::Type(quoted(kind))),
            (kind, Some(curve)) => Err(SkipReason::Type(format!("{} with {}", quoted(kind), quoted(curve)))),
        }?;
        // A key may be restricted to another algorithm of its type.
        match &self.alg {
            Some(name) if Algorithm::from_name(name) != Some(material.algorithm()) => {
                Err(SkipReason::Algorithm(quoted(name)))
            }
            _ => Ok(material),
        }
    }

    fn rsa(&self) -> Result<Material, SkipReason> {
        let modulus = without_leading_zeros(number(self.n.as_ref())?);
        let exponent = without_leading_zeros(number(self.e.as_ref())?);
        let first = modulus.first().ok_or(SkipReason::Numbers)?;
        let bits = modulus.len() * 8 - first.leading_zeros() as usize;
        if RSA_BITS.contains(&bits) { Ok(Material::Rsa { modulus, exponent }) } else { Err(SkipReason::RsaBits(bits)) }
    }
}

fn number(encoded: Option<&String>) -> Result<Vec<u8>, SkipReason> {
    encoded.and_then(|encoded| decode(encoded)).ok_or(SkipReason::Numbers)
}

fn coordinate(encoded: Option<&String>) -> Result<Vec<u8>, SkipReason> {
    Some(number(encoded)?).filter(|number| number.len() == CURVE_BYTES).ok_or(SkipReason::Numbers)
}

/// Removes leading zero bytes, which some issuers write as in the two's complement of ASN.1.
fn without_leading_zeros(number: Vec<u8>) -> Vec<u8> {
    number.into_iter().skip_while(|byte| *byte == 0).collect()
}
