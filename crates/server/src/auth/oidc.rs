//! OpenID Connect: verification of JWTs that an issuer has signed.
//!
//! [`jwt`] parses a token and checks its claims; [`keys`] verifies its signature; [`key_cache`] fetches and caches the keys of
//! the [`issuer`]. The key decides the algorithm, never the token. Warnings for operators quote values of the issuer or a client,
//! but never a token.

mod issuer;
mod jwt;
mod key_cache;
mod keys;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

pub use self::issuer::{IssuerUrl, IssuerUrlError};
use self::jwt::{Claims, ExpectedClaims, Jwt, TokenError};
use self::key_cache::KeyCache;
pub(crate) use self::keys::KeySet;
use plantstore_client::trust::TrustError;
use plantstore_client::{Cleartext, Client, Proxies, Settings};
use plantstore_telemetry::metrics::Exposition;

/// Maximum size of a document of the issuer in bytes.
const DOCUMENT_MAX: usize = 1 << 20;
/// Minimum time between two warnings of one kind about rejected tokens, because any client can cause them.
const REJECTION_INTERVAL: Duration = Duration::from_secs(60);

/// An issuer whose tokens are accepted, and the claims that they must have.
pub struct Issuer {
    url: IssuerUrl,
    expected: ExpectedClaims,
    client: Client,
}

impl Issuer {
    /// Creates an issuer whose tokens have this audience, and the name of their user in `user_claim`.
    pub fn new(
        url: IssuerUrl,
        audience: String,
        user_claim: String,
        authorities: Option<&Path>,
        proxies: Proxies,
    ) -> Result<Self, TrustError> {
        let client = Client::new(Settings {
            url: &url.discovery,
            authorities,
            ca_option: "--oidc-ca",
            cleartext: Cleartext::Loopback,
            proxies,
            response_max: DOCUMENT_MAX,
        })?;
        let expected = ExpectedClaims { issuer: url.as_str().to_owned(), audience, user_claim };
        Ok(Self { url, expected, client })
    }
}

pub(crate) struct TokenVerifier {
    expected: ExpectedClaims,
    key_cache: Arc<KeyCache>,
    opaque_reports: ReportLimit,
    audience_reports: ReportLimit,
}

pub(crate) struct VerifiedToken {
    pub(crate) claims: Claims,
    /// The set with the key that has signed it. The token is valid only while the set is current.
    pub(crate) keys: Arc<KeySet>,
}

pub(crate) enum VerifyError {
    Invalid(TokenError, Cacheable),
    /// The issuer's keys could not be fetched yet, so the token may be valid.
    NoKeys,
}

/// Lifetime of a rejection in the cache.
#[derive(Clone)]
pub(crate) enum Cacheable {
    Always,
    /// While this key set is current.
    With(Arc<KeySet>),
    /// Not cached, because time or a new key may make the token valid.
    Never,
}

impl From<TokenError> for VerifyError {
    fn from(error: TokenError) -> Self {
        let cacheable = if error.is_transient() { Cacheable::Never } else { Cacheable::Always };
        Self::Invalid(error, cacheable)
    }
}

impl TokenVerifier {
    /// Starts to fetch the issuer's keys, in a task that runs as long as the runtime.
    pub(crate) fn start(issuer: Issuer) -> Self {
        let key_cache = KeyCache::start(issuer.url, issuer.client);
        Self {
            expected: issuer.expected,
            key_cache,
            opaque_reports: ReportLimit::default(),
            audience_reports: ReportLimit::default(),
        }
    }

    /// Verifies a token: the claims first, so that only a token with valid claims can cause a request to the issuer.
    pub(crate) async fn verify(&self, text: &str) -> Result<VerifiedToken, VerifyError> {
        let verified = self.check(text).await;
        if let Err(VerifyError::Invalid(error, _)) = &verified {
            self.report(error);
        }
        verified
    }

    pub(crate) fn issuer(&self) -> &str {
        &self.expected.issuer
    }

    /// Reports a bearer token that is neither a token of this service nor a JWT.
    pub(crate) fn report_opaque(&self) {
        self.report(&TokenError::Malformed);
    }

    async fn check(&self, text: &str) -> Result<VerifiedToken, VerifyError> {
        let jwt = Jwt::parse(text)?;
        jwt.check(&self.expected, Timestamp::now())?;
        let has_candidate = |keys: &KeySet| keys.candidates(&jwt).next().is_some();
        let Some(keys) = self.key_cache.find(has_candidate).await else {
            let has_keys = self.key_cache.current().is_some();
            return Err(if has_keys { TokenError::UnknownKey.into() } else { VerifyError::NoKeys });
        };
        if !keys.candidates(&jwt).any(|key| key.has_signed(&jwt)) {
            return Err(VerifyError::Invalid(TokenError::Signature, Cacheable::With(keys)));
        }
        // Checked again, because the token may have expired during a fetch of the keys.
        let claims = jwt.check(&self.expected, Timestamp::now())?;
        Ok(VerifiedToken { claims, keys })
    }

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        self.key_cache.write_metrics(exposition);
    }

    /// Warns of errors that a wrong configuration can cause, once in [`REJECTION_INTERVAL`] for each kind.
    fn report(&self, error: &TokenError) {
        let ExpectedClaims { issuer, audience, .. } = &self.expected;
        match error {
            TokenError::Malformed => {
                if let Some(suppressed) = self.opaque_reports.pass() {
                    let message = "bearer token rejected: it is neither a JWT nor a token of this service; let the \
                        issuer issue access tokens as JWTs";
                    tracing::warn!(issuer, suppressed, "{message}");
                }
            }
            TokenError::Audience(found) => {
                if let Some(suppressed) = self.audience_reports.pass() {
                    let found = found.as_deref().unwrap_or("missing");
                    let message = "issuer token rejected: its `aud` does not contain --oidc-audience";
                    tracing::warn!(issuer, expected = audience, found, suppressed, "{message}");
                }
            }
            _ => {}
        }
    }

    pub(crate) fn are_current(&self, keys: &Arc<KeySet>) -> bool {
        self.key_cache.current().is_some_and(|current| Arc::ptr_eq(&current, keys))
    }
}

/// The time of the last report of a kind, and the number of those suppressed since.
#[derive(Default)]
struct ReportLimit(Mutex<(Option<Instant>, u64)>);

impl ReportLimit {
    /// Returns the number of reports suppressed since the last one, or `None` to suppress this one as well.
    fn pass(&self) -> Option<u64> {
        let (last, suppressed) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < REJECTION_INTERVAL) {
            *suppressed += 1;
            return None;
        }
        *last = Some(Instant::now());
        Some(std::mem::take(suppressed))
    }
}
