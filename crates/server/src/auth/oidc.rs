//! OpenID Connect: tokens that an issuer has signed (JWTs), accepted beside those of the store.
//!
//! [`jwt`] reads a token and checks its claims; [`keys`] verifies its signature; [`key_cache`] fetches and caches the issuer's
//! keys from the URLs that [`issuer`] finds; [`report`] warns operators about keys and tokens that cannot be used. A token
//! never chooses the way in which it is verified.

mod issuer;
mod jose;
mod jwt;
mod key_cache;
mod keys;
mod quote;
mod report;

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;

pub use self::issuer::{IssuerUrl, IssuerUrlFault};
use self::jwt::{Claims, Expected, Fault, Jwt};
use self::key_cache::{KeyCache, Missing};
pub(crate) use self::keys::KeySet;
use self::report::RejectionReports;
use plantstore_client::trust::{self, TrustFault};
use plantstore_client::{Cleartext, Client, Proxies, Settings};
use plantstore_telemetry::metrics::Page;

/// Bytes of a document of the issuer at most.
const DOCUMENT_MAX: usize = 1 << 20;

/// An issuer whose tokens are accepted, and what they must claim.
pub struct Issuer {
    url: IssuerUrl,
    expected: Expected,
    client: Client,
}

impl Issuer {
    /// Takes the issuer at `url`, whose tokens must be meant for `audience` and name their user in `user_claim`. Its
    /// certificate must be signed by an authority in the file, or by one that the system trusts.
    pub fn new(
        url: IssuerUrl,
        audience: String,
        user_claim: String,
        authorities: Option<&Path>,
        proxies: Proxies,
    ) -> Result<Self, TrustFault> {
        let ca_option = "--oidc-ca";
        let roots = trust::authorities_for(url.discovery(), authorities, ca_option)?;
        let (cleartext, response_max) = (Cleartext::Loopback, DOCUMENT_MAX);
        let client = Client::new(Settings { roots, ca_option, cleartext, proxies, response_max });
        let expected = Expected { issuer: url.as_str().to_owned(), audience, user_claim };
        Ok(Self { url, expected, client })
    }
}

/// Verifies the tokens of one issuer.
pub(crate) struct TokenVerifier {
    expected: Expected,
    key_cache: KeyCache,
    reports: RejectionReports,
}

/// A token that is what it claims to be.
pub(crate) struct Verified {
    pub(crate) claims: Claims,
    /// The keys of which one has signed it: what it is worth ends with them.
    pub(crate) keys: Arc<KeySet>,
}

/// Why a token is not accepted.
pub(crate) enum Refusal {
    Invalid(Fault, Cacheable),
    /// The issuer's keys were never there: it may be valid.
    NoKeys,
}

/// How long the rejection of a token may be cached.
#[derive(Clone)]
pub(crate) enum Cacheable {
    Always,
    /// As long as these are the issuer's keys.
    With(Arc<KeySet>),
    /// Not at all: time, or a new key, may make the token valid.
    Never,
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        let cacheable = if fault.may_pass() { Cacheable::Never } else { Cacheable::Always };
        Self::Invalid(fault, cacheable)
    }
}

impl TokenVerifier {
    /// Begins to fetch the issuer's keys, and goes on for as long as the runtime lives.
    pub(crate) fn start(issuer: Issuer) -> Self {
        let key_cache = KeyCache::start(issuer.url, issuer.client);
        Self { expected: issuer.expected, key_cache, reports: RejectionReports::default() }
    }

    /// Checks a token. What no key could make valid is refused before any is looked for: only a token that is right in
    /// all else makes the service ask its issuer.
    pub(crate) async fn verify(&self, text: &str) -> Result<Verified, Refusal> {
        let verified = self.check(text).await;
        if let Err(Refusal::Invalid(fault, _)) = &verified {
            self.reports.report(fault, &self.expected);
        }
        verified
    }

    /// Reports a bearer token that is neither a token of ours nor a JWT.
    pub(crate) fn report_opaque(&self) {
        self.reports.report(&Fault::Malformed, &self.expected);
    }

    async fn check(&self, text: &str) -> Result<Verified, Refusal> {
        let jwt = Jwt::parse(text)?;
        jwt.check(&self.expected, Timestamp::now())?;
        let keys =
            self.key_cache.keys_with(|keys| keys.fitting(&jwt).next().is_some()).await.map_err(
                |missing| match missing {
                    Missing::Key => Fault::UnknownKey.into(),
                    Missing::Keys => Refusal::NoKeys,
                },
            )?;
        if !keys.fitting(&jwt).any(|key| key.has_signed(&jwt)) {
            return Err(Refusal::Invalid(Fault::Signature, Cacheable::With(keys)));
        }
        // Again, because it may have waited for the keys.
        let claims = jwt.check(&self.expected, Timestamp::now())?;
        Ok(Verified { claims, keys })
    }

    pub(crate) fn write_metrics(&self, page: &mut Page) {
        self.key_cache.write_metrics(page);
    }

    /// Whether these are the issuer's keys, as far as is known.
    pub(crate) fn are_current(&self, keys: &Arc<KeySet>) -> bool {
        self.key_cache.current().is_some_and(|current| Arc::ptr_eq(&current, keys))
    }
}
