//! Whom a token acts for, remembered for a moment.
//!
//! A token is believed for [`FRESH`] after it was looked up or verified, so that a revocation holds on every node well within
//! 5 seconds; one of an issuer no longer than the keys it was verified with are the issuer's. A token of ours that was
//! refused is remembered too, so that repeating it costs no look-up: tokens are random, so one that is unknown is never
//! created later. One of an issuer is not: the key that it needs may come any moment. A token that was never seen is looked
//! up at once, so that a creation holds at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quick_cache::sync::Cache;

use super::error::ApiError;
use super::oidc::{self, Issuer, KeySet, Logins, Refusal};
use crate::store::{Collection, Store, StoreError};
use crate::token::{PlainToken, Scopes, TokenHash, TokenId};
use crate::user::{Role, UserId, UserName};

/// How long the store's word on a token is believed, or a signature.
const FRESH: Duration = Duration::from_secs(2);
/// Valid tokens remembered at the most.
const SESSIONS_MAX: usize = 50_000;
/// Refused tokens remembered at the most.
const REFUSED_MAX: usize = 10_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// What a client shows, recognised by its looks.
pub(crate) enum Bearer<'a> {
    /// A token of ours.
    Token(PlainToken),
    /// What may be a token of an issuer.
    Jwt(&'a str),
}

impl<'a> Bearer<'a> {
    /// Reads what a client shows, refusing whatever cannot be a token without looking anything up.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let jwt = || oidc::has_the_shape(text).then_some(Self::Jwt(text));
        PlainToken::parse(text).map(Self::Token).or_else(jwt)
    }

    fn hash(&self) -> TokenHash {
        match self {
            Self::Token(token) => token.hash(),
            Self::Jwt(text) => TokenHash::of(text),
        }
    }
}

/// A valid token at work.
pub(crate) struct Session {
    pub(crate) holder: Holder,
    /// All that the user may read, their own included, in the order of the owners' names.
    pub(crate) collections: Vec<Collection>,
    checked: Instant,
}

/// Whom a valid token acts for, and what it allows.
pub(crate) struct Holder {
    pub(crate) user: UserName,
    pub(crate) user_id: UserId,
    pub(crate) scopes: Scopes,
    /// Whether somebody may share their plants with the user.
    shared_with: bool,
    expires: Option<Timestamp>,
    proof: Proof,
}

/// How that is known.
enum Proof {
    /// A token of ours, and the last day, in seconds, whose use was noted.
    Stored { token: TokenId, noted: AtomicI64 },
    /// A token that one of these keys has signed.
    Signed(Arc<KeySet>),
}

pub(crate) struct Sessions {
    valid: Cache<TokenHash, Arc<Session>>,
    refused: Cache<TokenHash, Instant>,
    logins: Option<Logins>,
}

impl Sessions {
    /// Sessions of our own tokens and, if there is one, of an issuer's.
    pub(crate) fn new(issuer: Option<Issuer>) -> Self {
        let logins = issuer.map(Logins::start);
        Self { valid: Cache::new(SESSIONS_MAX), refused: Cache::new(REFUSED_MAX), logins }
    }

    /// The session of a token; `None` when the token is unknown, expired, revoked, or not what it claims to be.
    pub(crate) async fn find(&self, store: &Store, bearer: &Bearer<'_>) -> Result<Option<Arc<Session>>, ApiError> {
        let (hash, moment) = (bearer.hash(), Instant::now());
        let session = match self.valid.get(&hash) {
            Some(session) if is_fresh(session.checked, moment) && self.holds(&session.holder.proof) => session,
            _ if self.refused.get(&hash).is_some_and(|refused| is_fresh(refused, moment)) => return Ok(None),
            known => {
                let Some(session) = self.open(store, bearer, known.as_deref(), moment).await? else {
                    self.refuse(&hash, bearer, moment);
                    return Ok(None);
                };
                let session = Arc::new(session);
                self.valid.insert(hash, Arc::clone(&session));
                session
            }
        };
        let now = Timestamp::now();
        if session.holder.expires.is_some_and(|expires| expires <= now) {
            self.refuse(&hash, bearer, moment);
            return Ok(None);
        }
        session.note_use(store, now);
        Ok(Some(session))
    }

    /// Makes the session of a token that is valid now, as the store or the issuer's keys have it.
    async fn open(
        &self,
        store: &Store,
        bearer: &Bearer<'_>,
        known: Option<&Session>,
        checked: Instant,
    ) -> Result<Option<Session>, ApiError> {
        let found = match bearer {
            Bearer::Token(token) => stored(store, token, known).await?,
            Bearer::Jwt(text) => self.signed(store, text).await?,
        };
        let Some(holder) = found else {
            return Ok(None);
        };
        let collections = collections(store, &holder).await?;
        Ok(Some(Session { holder, collections, checked }))
    }

    /// Whom a token of the issuer acts for, who is made at the first use.
    async fn signed(&self, store: &Store, text: &str) -> Result<Option<Holder>, ApiError> {
        let Some(logins) = &self.logins else {
            return Ok(None);
        };
        let verified = match logins.verify(text).await {
            Ok(verified) => verified,
            Err(Refusal::NoKeys) => return Err(ApiError::NoIssuerKeys),
            Err(Refusal::Invalid(fault)) => {
                tracing::debug!(reason = %fault, "a token of the issuer was refused");
                return Ok(None);
            }
        };
        let user_id = store.ensure_user(&verified.claims.user).await.map_err(|error| match error {
            // Whether there is a user now or not: of what the client asked for, nothing was done.
            StoreError::OutcomeUnknown(_) => ApiError::Unavailable(error.to_string()),
            error => error.into(),
        })?;
        Ok(Some(Holder {
            user: verified.claims.user,
            user_id,
            scopes: verified.claims.scopes,
            shared_with: true,
            expires: Some(verified.claims.expires),
            proof: Proof::Signed(verified.keys),
        }))
    }

    fn holds(&self, proof: &Proof) -> bool {
        match proof {
            Proof::Stored { .. } => true,
            Proof::Signed(keys) => self.logins.as_ref().is_some_and(|logins| logins.are_current(keys)),
        }
    }

    fn refuse(&self, hash: &TokenHash, bearer: &Bearer<'_>, moment: Instant) {
        self.valid.remove(hash);
        if let Bearer::Token(_) = bearer {
            self.refused.insert(*hash, moment);
        }
    }
}

/// Whom a token of ours acts for.
async fn stored(store: &Store, token: &PlainToken, known: Option<&Session>) -> Result<Option<Holder>, StoreError> {
    let Some(token) = store.find_token(&token.hash()).await?.filter(|token| token.revoked.is_none()) else {
        return Ok(None);
    };
    let stored = token.last_used.map_or(i64::MIN, Timestamp::as_second);
    let noted = known.map_or(stored, |session| session.noted().max(stored));
    Ok(Some(Holder {
        user: token.user,
        user_id: token.user_id,
        scopes: token.grant.scopes,
        shared_with: token.shared_with,
        expires: token.grant.expires,
        proof: Proof::Stored { token: token.id, noted: AtomicI64::new(noted) },
    }))
}

/// All that somebody may read.
async fn collections(store: &Store, holder: &Holder) -> Result<Vec<Collection>, StoreError> {
    let mut collections = if holder.shared_with { store.shared_with(holder.user_id).await? } else { Vec::new() };
    collections.push(Collection { owner: holder.user.clone(), owner_id: holder.user_id, role: Role::Editor });
    collections.sort_by(|one, other| one.owner.cmp(&other.owner));
    Ok(collections)
}

fn is_fresh(checked: Instant, moment: Instant) -> bool {
    moment.saturating_duration_since(checked) < FRESH
}

impl Session {
    /// The number of the token, if it is one of ours.
    pub(crate) fn token(&self) -> Option<TokenId> {
        match self.holder.proof {
            Proof::Stored { token, .. } => Some(token),
            Proof::Signed(_) => None,
        }
    }

    fn noted(&self) -> i64 {
        match &self.holder.proof {
            Proof::Stored { noted, .. } => noted.load(Ordering::Relaxed),
            Proof::Signed(_) => i64::MIN,
        }
    }

    fn note_use(&self, store: &Store, now: Timestamp) {
        let Proof::Stored { token, noted } = &self.holder.proof else {
            return;
        };
        let today = now.as_second().div_euclid(SECONDS_PER_DAY) * SECONDS_PER_DAY;
        if noted.fetch_max(today, Ordering::Relaxed) < today {
            store.note_use(*token, Timestamp::from_second(today).unwrap_or(now));
        }
    }
}
