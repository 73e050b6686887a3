//! The keys of an issuer (JWKS), and whether one of them has signed a token. A key is used in the one way its own type
//! allows, whatever a token asks for.

use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::jwt::{Jwt, decode};

/// Keys taken from a set at the most.
const KEYS_MAX: usize = 100;
/// Bits of an RSA key, at the least and at the most.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;
/// Bytes of a number on the curves of ES256 and EdDSA.
const CURVE_BYTES: usize = 32;
/// How the point of a key on P-256 starts when both of its numbers follow.
const UNCOMPRESSED: u8 = 4;

/// The algorithms that are accepted. All are asymmetric: what is public cannot sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Es256,
    EdDsa,
}

impl Algorithm {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            "EdDSA" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

/// The keys of an issuer that can be used here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeySet(Vec<Key>);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Key {
    id: Option<String>,
    material: Material,
}

#[derive(Debug, PartialEq, Eq)]
enum Material {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl KeySet {
    /// Reads a set, leaving out keys that cannot be used; `None` when it is no set at all.
    pub(super) fn parse(json: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Document<'a> {
            #[serde(borrow)]
            keys: Vec<&'a RawValue>,
        }
        let document: Document<'_> = serde_json::from_slice(json).ok()?;
        let usable = document.keys.iter().filter_map(|key| serde_json::from_str::<Jwk>(key.get()).ok()?.key());
        Some(Self(usable.take(KEYS_MAX).collect()))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The keys that may have signed a token: those of its `kid`; if it has none, the only one of its algorithm.
    pub(super) fn fitting(&self, jwt: &Jwt<'_>) -> impl Iterator<Item = &Key> {
        let of_algorithm = move |key: &&Key| key.algorithm() == jwt.algorithm;
        let alone = self.0.iter().filter(of_algorithm).count() == 1;
        self.0.iter().filter(of_algorithm).filter(move |key| match &jwt.key_id {
            Some(id) => key.id.as_ref() == Some(id),
            None => alone,
        })
    }
}

impl Key {
    fn algorithm(&self) -> Algorithm {
        match self.material {
            Material::Rsa { .. } => Algorithm::Rs256,
            Material::P256(_) => Algorithm::Es256,
            Material::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    pub(super) fn has_signed(&self, jwt: &Jwt<'_>) -> bool {
        let (message, signature) = (jwt.signed, jwt.signature.as_slice());
        let verified = match &self.material {
            Material::Rsa { modulus, exponent } => RsaPublicKeyComponents { n: modulus, e: exponent }.verify(
                &RSA_PKCS1_2048_8192_SHA256,
                message,
                signature,
            ),
            Material::P256(point) => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature),
            Material::Ed25519(point) => UnparsedPublicKey::new(&ED25519, point).verify(message, signature),
        };
        verified.is_ok()
    }
}

/// A key as the issuer writes it.
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
    fn key(self) -> Option<Key> {
        let for_signatures = self.purpose.as_deref().is_none_or(|purpose| purpose == "sig")
            && self.key_ops.as_ref().is_none_or(|uses| uses.iter().any(|used| used == "verify"));
        let material = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => self.rsa(),
            ("EC", Some("P-256")) => self.p256(),
            ("OKP", Some("Ed25519")) => {
                number(self.x.as_ref()).filter(|x| x.len() == CURVE_BYTES).map(Material::Ed25519)
            }
            _ => None,
        }?;
        let key = Key { id: self.kid, material };
        // One that is meant for another algorithm of its type is not for us.
        let meant = self.alg.is_none_or(|name| Algorithm::named(&name) == Some(key.algorithm()));
        (for_signatures && meant).then_some(key)
    }

    fn rsa(&self) -> Option<Material> {
        let [modulus, exponent] = [&self.n, &self.e].map(|encoded| number(encoded.as_ref()));
        let (modulus, exponent) = (without_leading_zeros(modulus?), without_leading_zeros(exponent?));
        let bits = modulus.len() * 8 - modulus.first()?.leading_zeros() as usize;
        RSA_BITS.contains(&bits).then_some(Material::Rsa { modulus, exponent })
    }

    fn p256(&self) -> Option<Material> {
        let [x, y] = [&self.x, &self.y].map(|encoded| number(encoded.as_ref()));
        let (x, y) = (x?, y?);
        let whole = x.len() == CURVE_BYTES && y.len() == CURVE_BYTES;
        whole.then(|| Material::P256([&[UNCOMPRESSED], x.as_slice(), y.as_slice()].concat()))
    }
}

fn number(encoded: Option<&String>) -> Option<Vec<u8>> {
    decode(encoded?).ok()
}

/// Some issuers write a zero in front, as other formats do to tell the number from a negative one.
fn without_leading_zeros(number: Vec<u8>) -> Vec<u8> {
    number.into_iter().skip_while(|byte| *byte == 0).collect()
}
