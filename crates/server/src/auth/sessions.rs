//! Sessions of tokens, cached for a moment.
//!
//! A session is valid for [`FRESH`] after the token was looked up or verified, so that a revocation takes effect on every node
//! well within 5 seconds; a session of an issuer's token no longer than the keys that verified it are the issuer's. Rejected
//! tokens are cached too, so that repeating one costs neither a look-up nor a verification: tokens of the store are random, so
//! an unknown one is never created later; an issuer's token with a wrong signature is rejected while the keys stay the same. A
//! token that time or a new key may make valid is not cached. A token that was never seen is looked up at once, so that a new
//! token works at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quick_cache::Weighter;

use super::error::AuthError;
use super::oidc::{Cacheable, Issuer, KeySet, Refusal, TokenVerifier};
use crate::observe::Identity;
use plantstore_model::token::{PlainToken, Scopes, TOKEN_PREFIX, TokenHash, TokenId, is_jwt_shaped};
use plantstore_model::user::{Role, UserId};
use plantstore_store::cache::{BoundedCache, bounded_cache, weighted_cache};
use plantstore_store::{Collection, Store, StoreError};
use plantstore_telemetry::metrics::{Counter, Page, Striped};
use plantstore_telemetry::spans;

/// Time for which a look-up or a verified signature is valid.
const FRESH: Duration = Duration::from_secs(2);
/// Capacity of the session cache, in collections that the sessions may read. A session with the user's own collection alone
/// counts as one.
const COLLECTIONS_MAX: u64 = 100_000;
/// Expected number of sessions, which decides the number of shards: few enough for each to hold a session with the most
/// collections.
const SESSIONS_USUAL: usize = 10_000;
/// Refused tokens remembered at the most.
const REFUSED_MAX: usize = 10_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// What a client shows, recognised by its looks.
enum Bearer<'a> {
    /// A token of ours.
    Token(&'a str),
    /// What may be a token of an issuer.
    Jwt(&'a str),
}

impl<'a> Bearer<'a> {
    /// Reads what a client shows, refusing whatever cannot be a token without looking anything up.
    fn parse(text: &'a str) -> Option<Self> {
        let jwt = || is_jwt_shaped(text).then_some(Self::Jwt(text));
        if PlainToken::is_one(text) { Some(Self::Token(text)) } else { jwt() }
    }

    fn hash(&self) -> TokenHash {
        let (Self::Token(text) | Self::Jwt(text)) = self;
        TokenHash::of(text)
    }
}

/// A valid token in use.
pub(crate) struct Session {
    pub(crate) identity: Arc<Identity>,
    pub(crate) scopes: Scopes,
    /// All that the user may read, their own included, in the order of the owners' names.
    pub(crate) collections: Vec<Collection>,
    proof: Proof,
    /// The time until which the session is valid without another look-up, and the day's use of the token is recorded.
    until: Instant,
}

/// The user of a valid token, and what it allows.
struct Holder {
    identity: Identity,
    scopes: Scopes,
    /// Another user may share plants with this one.
    shared_with: bool,
    expires: Option<Timestamp>,
    proof: Proof,
}

/// The evidence for a session.
enum Proof {
    /// A token of the store, and the last day, in seconds, whose use was recorded.
    Stored { token: TokenId, noted: i64 },
    /// A token that one of these keys has signed.
    Signed(Arc<KeySet>),
}

/// A token that was refused.
#[derive(Clone)]
struct Refused {
    cacheable: Cacheable,
    checked: Instant,
}

/// Why there is no session.
enum NoSession {
    Refused(Cacheable),
    Failed(AuthError),
}

impl<E: Into<AuthError>> From<E> for NoSession {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A session weighs as much as it holds.
#[derive(Clone)]
struct ByCollections;

impl Weighter<TokenHash, Arc<Session>> for ByCollections {
    fn weight(&self, _hash: &TokenHash, session: &Arc<Session>) -> u64 {
        session.collections.len() as u64
    }
}

pub(crate) struct Sessions {
    valid: BoundedCache<TokenHash, Arc<Session>, ByCollections>,
    refused: BoundedCache<TokenHash, Refused>,
    verifier: Option<TokenVerifier>,
    remembered: Striped<Counter>,
    looked_up: Counter,
}

impl Sessions {
    /// Sessions of our own tokens and, if there is one, of an issuer's.
    pub(crate) fn new(issuer: Option<Issuer>) -> Self {
        let verifier = issuer.map(TokenVerifier::start);
        let valid = weighted_cache(SESSIONS_USUAL, COLLECTIONS_MAX, ByCollections);
        let refused = bounded_cache(REFUSED_MAX);
        Self { valid, refused, verifier, remembered: Striped::default(), looked_up: Counter::default() }
    }

    /// The session of a token; `None` when the token is malformed, unknown, expired, revoked, or not what it claims to be.
    pub(crate) async fn find(&self, store: &Store, token: &str) -> Result<Option<Arc<Session>>, AuthError> {
        let Some(bearer) = Bearer::parse(token) else {
            if let Some(verifier) = self.verifier.as_ref().filter(|_| !token.starts_with(TOKEN_PREFIX)) {
                verifier.report_opaque();
            }
            return Ok(None);
        };
        let (hash, moment) = (bearer.hash(), Instant::now());
        let known = self.valid.get(&hash);
        if known.as_ref().is_some_and(|session| moment < session.until && self.holds(&session.proof)) {
            self.remembered.count();
            return Ok(known);
        }
        if self.is_refused(&hash, moment) {
            self.remembered.count();
            return Ok(None);
        }
        // In a box, because it is rare, and so what every request carries around stays small.
        match Box::pin(self.open(store, &bearer, &hash, moment)).await {
            Ok(session) => {
                let session = Arc::new(session);
                self.valid.insert(hash, Arc::clone(&session));
                Ok(Some(session))
            }
            Err(NoSession::Refused(cacheable)) => {
                self.refuse(hash, cacheable, moment);
                Ok(None)
            }
            Err(NoSession::Failed(error)) => Err(error),
        }
    }

    pub(crate) fn write_metrics(&self, page: &mut Page) {
        page.counter("plantstore_token_cache_lookups_total", "Lookups in the token cache, by result.")
            .sample(&[("result", "hit".into())], self.remembered.get())
            .sample(&[("result", "miss".into())], self.looked_up.get());
        if let Some(verifier) = &self.verifier {
            verifier.write_metrics(page);
        }
    }

    /// Makes the session of a token that is valid now, and lets it be known that it had to be made.
    async fn open(
        &self,
        store: &Store,
        bearer: &Bearer<'_>,
        hash: &TokenHash,
        checked: Instant,
    ) -> Result<Session, NoSession> {
        self.looked_up.count();
        let begun = spans::begin();
        let session = self.look_up(store, bearer, hash, checked).await;
        begun.end("authenticate");
        session
    }

    /// The session of a token as the store or the issuer's keys have it.
    async fn look_up(
        &self,
        store: &Store,
        bearer: &Bearer<'_>,
        hash: &TokenHash,
        checked: Instant,
    ) -> Result<Session, NoSession> {
        let mut holder = match bearer {
            Bearer::Token(_) => stored(store, hash).await?,
            Bearer::Jwt(text) => self.signed(store, text).await?,
        };
        let now = Timestamp::now();
        if holder.expires.is_some_and(|expires| expires <= now) {
            return Err(NoSession::Refused(Cacheable::Always));
        }
        let collections = collections(store, &holder).await?;
        holder.note_use(store, self.valid.get(hash).as_deref(), now);
        let until = checked + holder.believed_from(now);
        let Holder { identity, scopes, proof, .. } = holder;
        Ok(Session { identity: Arc::new(identity), scopes, collections, proof, until })
    }

    /// Returns the user of an issuer's token, who is created at the first use.
    async fn signed(&self, store: &Store, text: &str) -> Result<Holder, NoSession> {
        let Some(verifier) = &self.verifier else {
            return Err(NoSession::Refused(Cacheable::Always));
        };
        let token = verifier.verify(text).await.map_err(|refusal| match refusal {
            Refusal::NoKeys => NoSession::Failed(AuthError::NoIssuerKeys),
            Refusal::Invalid(fault, cacheable) => {
                tracing::debug!(reason = %fault, "issuer token rejected");
                NoSession::Refused(cacheable)
            }
        })?;
        let user_id = store.ensure_user(&token.claims.user).await.map_err(|error| match error {
            StoreError::NewUserName(fault) => {
                tracing::debug!(reason = %fault, "issuer token rejected");
                NoSession::Refused(Cacheable::Always)
            }
            // Whether there is a user now or not: of what the client asked for, nothing was done.
            StoreError::OutcomeUnknown(_) => NoSession::Failed(AuthError::Unavailable(error.to_string())),
            error => error.into(),
        })?;
        Ok(Holder {
            identity: Identity { user: token.claims.user, user_id, token: None },
            scopes: token.claims.scopes,
            shared_with: true,
            expires: Some(token.claims.expires),
            proof: Proof::Signed(token.keys),
        })
    }

    fn holds(&self, proof: &Proof) -> bool {
        match proof {
            Proof::Stored { .. } => true,
            Proof::Signed(keys) => self.are_current(keys),
        }
    }

    fn are_current(&self, keys: &Arc<KeySet>) -> bool {
        self.verifier.as_ref().is_some_and(|verifier| verifier.are_current(keys))
    }

    /// Whether a token was refused a moment ago, and would be again.
    fn is_refused(&self, hash: &TokenHash, moment: Instant) -> bool {
        let still = |refused: Refused| match &refused.cacheable {
            _ if !is_fresh(refused.checked, moment) => false,
            Cacheable::Always => true,
            Cacheable::With(keys) => self.are_current(keys),
            Cacheable::Never => false,
        };
        self.refused.get(hash).is_some_and(still)
    }

    fn refuse(&self, hash: TokenHash, cacheable: Cacheable, checked: Instant) {
        self.valid.remove(&hash);
        if !matches!(cacheable, Cacheable::Never) {
            self.refused.insert(hash, Refused { cacheable, checked });
        }
    }
}

/// Returns the user of a token in the store.
async fn stored(store: &Store, token: &TokenHash) -> Result<Holder, NoSession> {
    let Some(token) = store.find_token(token).await?.filter(|token| token.revoked.is_none()) else {
        return Err(NoSession::Refused(Cacheable::Always));
    };
    let noted = token.last_used.map_or(i64::MIN, Timestamp::as_second);
    Ok(Holder {
        identity: Identity { user: token.user.into_valid()?, user_id: token.user_id, token: Some(token.id) },
        scopes: token.grant.scopes,
        shared_with: token.shared_with,
        expires: token.grant.expires,
        proof: Proof::Stored { token: token.id, noted },
    })
}

/// Returns all collections that the user may read.
async fn collections(store: &Store, holder: &Holder) -> Result<Vec<Collection>, StoreError> {
    let Identity { user, user_id, .. } = &holder.identity;
    let mut collections = if holder.shared_with { store.shared_with(*user_id).await? } else { Vec::new() };
    collections.push(Collection { owner: user.clone(), owner_id: *user_id, role: Role::Editor });
    collections.sort_by(|one, other| one.owner.cmp(&other.owner));
    Ok(collections)
}

fn is_fresh(checked: Instant, moment: Instant) -> bool {
    moment.saturating_duration_since(checked) < FRESH
}

impl Session {
    pub(crate) fn user_id(&self) -> UserId {
        self.identity.user_id
    }
}

impl Proof {
    /// Returns the last day, in seconds, whose use of the token is recorded.
    fn noted(&self) -> i64 {
        match self {
            Self::Stored { noted, .. } => *noted,
            Self::Signed(_) => i64::MIN,
        }
    }
}

impl Holder {
    /// Records that the token is used today, unless that is recorded already, perhaps by a concurrent request.
    fn note_use(&mut self, store: &Store, known: Option<&Session>, now: Timestamp) {
        let Proof::Stored { token, noted } = &mut self.proof else {
            return;
        };
        let today = day_of(now);
        let known = known.map_or(i64::MIN, |session| session.proof.noted());
        if known.max(*noted) < today {
            store.record_token_use(*token, timestamp(today, now));
        }
        *noted = today;
    }

    /// How long all this is believed: until the token expires, or a new day begins whose use is to be noted, if that is soon.
    fn believed_from(&self, now: Timestamp) -> Duration {
        let tomorrow = timestamp(day_of(now) + SECONDS_PER_DAY, Timestamp::MAX);
        let end = self.expires.map_or(tomorrow, |expires| expires.min(tomorrow));
        Duration::try_from(end.duration_since(now)).unwrap_or_default().min(FRESH)
    }
}

/// When the day of a moment began, in seconds.
fn day_of(moment: Timestamp) -> i64 {
    moment.as_second().div_euclid(SECONDS_PER_DAY) * SECONDS_PER_DAY
}

fn timestamp(seconds: i64, beyond: Timestamp) -> Timestamp {
    Timestamp::from_second(seconds).unwrap_or(beyond)
}
