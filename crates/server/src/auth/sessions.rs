//! Cache of sessions: the user, scopes and readable collections of a valid token.
//!
//! A session is valid for [`CACHE_TTL`] after its token was looked up or verified, so that a revocation takes effect on every node
//! well within 5 seconds. The session of an issuer's token also ends when the issuer's keys change.
//!
//! Rejected tokens are cached too, so that repeating one costs neither a look-up nor a verification. This is safe for tokens of
//! the store, which are random, so that an unknown one is never created later; and for an issuer's token with a wrong signature
//! as long as the keys stay the same. A token that is not yet valid, or has an unknown key id, is not cached.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quick_cache::Weighter;

use super::oidc::{Cacheable, Issuer, KeySet, TokenVerifier, VerifyError};
use crate::observe::Identity;
use plantstore_model::token::{PlainToken, Scope, Scopes, TOKEN_PREFIX, TokenHash, TokenId, TokenLabel, is_jwt_shaped};
use plantstore_model::user::{Role, UserId, UserName};
use plantstore_store::cache::{BoundedCache, bounded_cache, weighted_cache};
use plantstore_store::{CollectionAccess, Store, StoreError};
use plantstore_telemetry::metrics::{Counter, Exposition, Striped};
use plantstore_telemetry::spans;

/// Time for which a look-up or a verified signature is valid.
const CACHE_TTL: Duration = Duration::from_secs(2);
/// Capacity of the session cache, in collections: a session counts as many as its user may read, at least the user's own.
const COLLECTIONS_MAX: u64 = 100_000;
/// Expected number of sessions, from which the cache derives its number of shards. Each shard must hold the largest session.
const SESSIONS_USUAL: usize = 10_000;
/// Capacity of the cache of rejected tokens.
const REJECTED_MAX: usize = 10_000;
/// Maximum number of recent changes that are stored for look-ups in progress.
const ENDED_MAX: usize = 1_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// The reason why a check before a handler fails.
#[derive(Debug)]
pub(crate) enum AuthError {
    NoToken,
    InvalidToken,
    ScopeMissing(Scope),
    /// More than one `Authorization`, or an invalid `Host`. The text is for the client.
    BadRequest(&'static str),
    /// The client address has exceeded the limit on failed authentications; with the seconds until a retry.
    TooManyFailures(u64),
    /// The user has exceeded the quota; with the seconds until a retry.
    TooManyRequests(u64),
    NoIssuerKeys,
    Unavailable(String),
    Store(StoreError),
}

impl From<StoreError> for AuthError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

pub(crate) struct Session {
    pub(crate) identity: Arc<Identity>,
    pub(crate) scopes: Scopes,
    pub(crate) credential: Credential,
    /// Expiry time of the token; `None` for one that never expires.
    pub(crate) expires: Option<Timestamp>,
    /// Collections that the user may read, including the user's own, sorted by the owners' names.
    pub(crate) collections: Vec<CollectionAccess>,
    /// Time at which the token was looked up or verified.
    checked: Instant,
    /// End of validity without another look-up.
    until: Instant,
}

/// The token that a session was opened with, and the evidence that it is valid.
pub(crate) enum Credential {
    /// A token of the store. `recorded_day` is the start, in seconds, of the last day for which its use is recorded.
    Token { id: TokenId, label: TokenLabel, recorded_day: i64 },
    /// A token of the issuer, which one of these keys has signed.
    Issuer { url: String, keys: Arc<KeySet> },
}

/// The sessions that a change affects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SessionSelector {
    /// Those of a token that was revoked.
    Token(TokenId),
    /// Those of a user who can read other collections than before.
    User(UserName),
}

impl SessionSelector {
    fn includes(&self, identity: &Identity) -> bool {
        match self {
            Self::Token(token) => identity.token == Some(*token),
            Self::User(user) => identity.user == *user,
        }
    }
}

/// The user and the attributes of a valid token.
struct AuthenticatedToken {
    identity: Identity,
    scopes: Scopes,
    credential: Credential,
    /// False if no other user shares plants with this one.
    has_shares: bool,
    expires: Option<Timestamp>,
    /// Time until which the token is accepted.
    accepted_until: Option<Timestamp>,
}

#[derive(Clone)]
struct RejectedToken {
    cacheable: Cacheable,
    checked: Instant,
}

enum SessionError {
    Rejected(Cacheable),
    Failed(AuthError),
}

impl<E: Into<AuthError>> From<E> for SessionError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

#[derive(Clone)]
struct ByCollections;

impl Weighter<TokenKey, Arc<Session>> for ByCollections {
    fn weight(&self, _key: &TokenKey, session: &Arc<Session>) -> u64 {
        session.collections.len() as u64
    }
}

/// Identifies a token in the caches: 128 bits of a hash with a random key of this process, which takes a small part of the
/// instructions of SHA-256. Clients never see it, and cannot compute it.
type TokenKey = [u64; 2];

pub(crate) struct Sessions {
    valid: BoundedCache<TokenKey, Arc<Session>, ByCollections>,
    rejected: BoundedCache<TokenKey, RejectedToken>,
    keyed: RandomState,
    /// Times of the latest changes for which sessions were ended.
    ended: BoundedCache<SessionSelector, Instant>,
    verifier: Option<TokenVerifier>,
    cache_hits: Striped<Counter>,
    cache_misses: Counter,
}

impl Sessions {
    pub(crate) fn new(issuer: Option<Issuer>) -> Self {
        let verifier = issuer.map(TokenVerifier::start);
        let valid = weighted_cache(SESSIONS_USUAL, COLLECTIONS_MAX, ByCollections);
        Self {
            valid,
            rejected: bounded_cache(REJECTED_MAX),
            keyed: RandomState::new(),
            ended: bounded_cache(ENDED_MAX),
            verifier,
            cache_hits: Striped::default(),
            cache_misses: Counter::default(),
        }
    }

    /// Returns the session of a token; `None` if the token is malformed, unknown, expired, revoked or not verified. With `since`, a
    /// token that was looked up earlier is looked up again.
    pub(crate) async fn find(
        &self,
        store: &Store,
        token: &[u8],
        since: Option<Instant>,
    ) -> Result<Option<Arc<Session>>, AuthError> {
        let key = self.key(token);
        let now = Instant::now();
        let known = self.valid.get(&key).filter(|session| since.is_none_or(|since| session.checked >= since));
        if known.as_ref().is_some_and(|session| now < session.until && self.holds(session)) {
            self.cache_hits.count();
            return Ok(known);
        }
        let Ok(token) = str::from_utf8(token) else { return Ok(None) };
        if !PlainToken::is_well_formed(token) && !is_jwt_shaped(token) {
            if let Some(verifier) = self.verifier.as_ref().filter(|_| !token.starts_with(TOKEN_PREFIX)) {
                verifier.report_opaque();
            }
            return Ok(None);
        }
        if self.is_rejected(&key, now) {
            self.cache_hits.count();
            return Ok(None);
        }
        self.cache_misses.count();
        let begun = spans::begin();
        // Boxed, because it is rare, and so the future of every request stays small.
        let session = Box::pin(self.look_up(store, token, &key, now)).await;
        begun.end("authenticate");
        match session {
            Ok(session) => {
                let session = Arc::new(session);
                self.valid.insert(key, Arc::clone(&session));
                // The look-up may have preceded the change, and the insertion may have followed it.
                if self.has_ended_since(&session.identity, now) {
                    self.valid.remove(&key);
                }
                Ok(Some(session))
            }
            Err(SessionError::Rejected(cacheable)) => {
                self.reject(key, cacheable, now);
                Ok(None)
            }
            Err(SessionError::Failed(error)) => Err(error),
        }
    }

    fn key(&self, token: &[u8]) -> TokenKey {
        [0, 1].map(|half| {
            let mut hasher = self.keyed.build_hasher();
            hasher.write_u8(half);
            hasher.write(token);
            hasher.finish()
        })
    }

    /// Ends the cached sessions that a change affects. A look-up that began before is not cached.
    pub(crate) fn end(&self, affected: &SessionSelector) {
        self.ended.insert(affected.clone(), Instant::now());
        self.valid.retain(|_, session| !affected.includes(&session.identity));
    }

    fn has_ended_since(&self, identity: &Identity, start: Instant) -> bool {
        let token = identity.token.map(SessionSelector::Token);
        let mut affected = token.into_iter().chain([SessionSelector::User(identity.user.clone())]);
        affected.any(|affected| self.ended.get(&affected).is_some_and(|ended| ended >= start))
    }

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        exposition
            .counter("plantstore_token_cache_lookups_total", "Lookups in the token cache, by result.")
            .sample(&[("result", "hit".into())], self.cache_hits.get())
            .sample(&[("result", "miss".into())], self.cache_misses.get());
        if let Some(verifier) = &self.verifier {
            verifier.write_metrics(exposition);
        }
    }

    /// Creates a session.
    async fn look_up(
        &self,
        store: &Store,
        token: &str,
        key: &TokenKey,
        checked: Instant,
    ) -> Result<Session, SessionError> {
        let mut authenticated = if PlainToken::is_well_formed(token) {
            look_up_stored(store, token).await?
        } else {
            self.verify_signed(store, token).await?
        };
        let now = Timestamp::now();
        if authenticated.accepted_until.is_some_and(|end| end <= now) {
            return Err(SessionError::Rejected(Cacheable::Always));
        }
        let collections = collections(store, &authenticated).await?;
        authenticated.record_use(store, self.valid.get(key).as_deref(), now);
        let until = checked + authenticated.validity_from(now);
        let AuthenticatedToken { identity, scopes, credential, expires, .. } = authenticated;
        Ok(Session { identity: Arc::new(identity), scopes, credential, expires, collections, checked, until })
    }

    /// Verifies a token of the issuer, and creates its user at the first use.
    async fn verify_signed(&self, store: &Store, text: &str) -> Result<AuthenticatedToken, SessionError> {
        let Some(verifier) = &self.verifier else {
            return Err(SessionError::Rejected(Cacheable::Always));
        };
        let token = verifier.verify(text).await.map_err(|error| match error {
            VerifyError::NoKeys => SessionError::Failed(AuthError::NoIssuerKeys),
            VerifyError::Invalid(error, cacheable) => {
                tracing::debug!(reason = %error, "issuer token rejected");
                SessionError::Rejected(cacheable)
            }
        })?;
        let user_id = store.ensure_user(&token.claims.user).await.map_err(|error| match error {
            StoreError::NewUserName(error) => {
                tracing::debug!(reason = %error, "issuer token rejected");
                SessionError::Rejected(Cacheable::Always)
            }
            // Only the creation of the user is in doubt: the request itself was not executed.
            StoreError::OutcomeUnknown(_) => SessionError::Failed(AuthError::Unavailable(error.to_string())),
            error => error.into(),
        })?;
        Ok(AuthenticatedToken {
            identity: Identity { user: token.claims.user, user_id, token: None },
            scopes: token.claims.scopes,
            credential: Credential::Issuer { url: verifier.issuer().to_owned(), keys: token.keys },
            has_shares: true,
            expires: Some(token.claims.expires),
            accepted_until: Some(token.claims.accepted_until),
        })
    }

    /// Checks, without a look-up, that the issuer still has the key that has signed the token.
    pub(crate) fn holds(&self, session: &Session) -> bool {
        match &session.credential {
            Credential::Token { .. } => true,
            Credential::Issuer { keys, .. } => self.are_current(keys),
        }
    }

    fn are_current(&self, keys: &Arc<KeySet>) -> bool {
        self.verifier.as_ref().is_some_and(|verifier| verifier.are_current(keys))
    }

    /// Checks for a cached rejection that still applies.
    fn is_rejected(&self, key: &TokenKey, now: Instant) -> bool {
        let applies = |rejected: RejectedToken| match &rejected.cacheable {
            _ if now.saturating_duration_since(rejected.checked) >= CACHE_TTL => false,
            Cacheable::Always => true,
            Cacheable::With(keys) => self.are_current(keys),
            Cacheable::Never => false,
        };
        self.rejected.get(key).is_some_and(applies)
    }

    fn reject(&self, key: TokenKey, cacheable: Cacheable, checked: Instant) {
        self.valid.remove(&key);
        if !matches!(cacheable, Cacheable::Never) {
            self.rejected.insert(key, RejectedToken { cacheable, checked });
        }
    }
}

/// Looks up a token of the store.
async fn look_up_stored(store: &Store, token: &str) -> Result<AuthenticatedToken, SessionError> {
    let Some(token) = store.find_token(&TokenHash::of(token)).await?.filter(|token| token.revoked.is_none()) else {
        return Err(SessionError::Rejected(Cacheable::Always));
    };
    let recorded_day = token.last_used.map_or(i64::MIN, Timestamp::as_second);
    Ok(AuthenticatedToken {
        identity: Identity { user: token.user.into_valid()?, user_id: token.user_id, token: Some(token.id) },
        scopes: token.attributes.scopes,
        credential: Credential::Token { id: token.id, label: token.attributes.label, recorded_day },
        has_shares: token.shared_with,
        expires: token.attributes.expires,
        accepted_until: token.attributes.expires,
    })
}

async fn collections(store: &Store, authenticated: &AuthenticatedToken) -> Result<Vec<CollectionAccess>, StoreError> {
    let Identity { user, user_id, .. } = &authenticated.identity;
    let mut collections = if authenticated.has_shares { store.shared_with(*user_id).await? } else { Vec::new() };
    collections.push(CollectionAccess { owner: user.clone(), owner_id: *user_id, role: Role::Editor });
    collections.sort_by(|one, other| one.owner.cmp(&other.owner));
    Ok(collections)
}

impl Session {
    pub(crate) fn user_id(&self) -> UserId {
        self.identity.user_id
    }
}

impl AuthenticatedToken {
    /// Records that the token is used today, unless this or a concurrent request has recorded it already.
    fn record_use(&mut self, store: &Store, known: Option<&Session>, now: Timestamp) {
        let Credential::Token { id, recorded_day, .. } = &mut self.credential else { return };
        let today = day_of(now);
        let known = match known.map(|session| &session.credential) {
            Some(Credential::Token { recorded_day, .. }) => *recorded_day,
            _ => i64::MIN,
        };
        if known.max(*recorded_day) < today {
            store.record_token_use(*id, timestamp(today, now));
        }
        *recorded_day = today;
    }

    /// Returns the lifetime of the session: [`CACHE_TTL`], or less if the token expires or the day ends earlier, because the use of
    /// the token is recorded for each day.
    fn validity_from(&self, now: Timestamp) -> Duration {
        let tomorrow = timestamp(day_of(now) + SECONDS_PER_DAY, Timestamp::MAX);
        let end = self.accepted_until.map_or(tomorrow, |end| end.min(tomorrow));
        Duration::try_from(end.duration_since(now)).unwrap_or_default().min(CACHE_TTL)
    }
}

/// Returns the start of the day, in seconds.
fn day_of(time: Timestamp) -> i64 {
    time.as_second().div_euclid(SECONDS_PER_DAY) * SECONDS_PER_DAY
}

fn timestamp(seconds: i64, default: Timestamp) -> Timestamp {
    Timestamp::from_second(seconds).unwrap_or(default)
}
