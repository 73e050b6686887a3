//! Whom a token acts for, remembered for a moment.
//!
//! A found token is believed for [`FRESH`], so that a revocation holds on every node well within 5 seconds. A token that
//! was refused is remembered too, so that repeating it costs no look-up: tokens are random, so one that is unknown is
//! never created later. A token that was never seen is looked up at once, so that a creation holds at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quick_cache::sync::Cache;

use crate::store::{Collection, Store, StoreError, StoredToken};
use crate::token::TokenHash;
use crate::user::Role;

/// How long the store's word on a token is believed.
const FRESH: Duration = Duration::from_secs(2);
/// Valid tokens remembered at the most.
const SESSIONS_MAX: usize = 50_000;
/// Refused tokens remembered at the most.
const REFUSED_MAX: usize = 10_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// A valid token at work.
pub(crate) struct Session {
    pub(crate) token: StoredToken,
    /// All that the user may read, their own included, in the order of the owners' names.
    pub(crate) collections: Vec<Collection>,
    checked: Instant,
    /// The last day, in seconds, whose use was noted.
    noted: AtomicI64,
}

pub(crate) struct Sessions {
    valid: Cache<TokenHash, Arc<Session>>,
    refused: Cache<TokenHash, Instant>,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        Self { valid: Cache::new(SESSIONS_MAX), refused: Cache::new(REFUSED_MAX) }
    }

    /// The session of a token; `None` when the token is unknown, expired or revoked.
    pub(crate) async fn find(&self, store: &Store, hash: &TokenHash) -> Result<Option<Arc<Session>>, StoreError> {
        let (moment, now) = (Instant::now(), Timestamp::now());
        let is_fresh = |checked: Instant| moment.saturating_duration_since(checked) < FRESH;
        let known = self.valid.get(hash);
        let session = match known {
            Some(session) if is_fresh(session.checked) => session,
            _ if self.refused.get(hash).is_some_and(is_fresh) => return Ok(None),
            known => {
                let Some(token) = store.find_token(hash).await?.filter(|token| token.revoked.is_none()) else {
                    self.refuse(hash, moment);
                    return Ok(None);
                };
                let stored = token.last_used.map_or(i64::MIN, Timestamp::as_second);
                let noted = known.map_or(stored, |session| session.noted.load(Ordering::Relaxed).max(stored));
                let collections = collections(store, &token).await?;
                let session = Arc::new(Session { token, collections, checked: moment, noted: AtomicI64::new(noted) });
                self.valid.insert(*hash, Arc::clone(&session));
                session
            }
        };
        if session.token.grant.expired(now) {
            self.refuse(hash, moment);
            return Ok(None);
        }
        session.note_use(store, now);
        Ok(Some(session))
    }

    fn refuse(&self, hash: &TokenHash, moment: Instant) {
        self.valid.remove(hash);
        self.refused.insert(*hash, moment);
    }
}

/// All that the user of a token may read.
async fn collections(store: &Store, token: &StoredToken) -> Result<Vec<Collection>, StoreError> {
    let mut collections = if token.shared_with { store.shared_with(token.user_id).await? } else { Vec::new() };
    collections.push(Collection { owner: token.user.clone(), owner_id: token.user_id, role: Role::Editor });
    collections.sort_by(|one, other| one.owner.cmp(&other.owner));
    Ok(collections)
}

impl Session {
    fn note_use(&self, store: &Store, now: Timestamp) {
        let today = now.as_second().div_euclid(SECONDS_PER_DAY) * SECONDS_PER_DAY;
        if self.noted.fetch_max(today, Ordering::Relaxed) < today {
            store.note_use(self.token.id, Timestamp::from_second(today).unwrap_or(now));
        }
    }
}
