//! Token-bucket rate limiter with one bucket per key, and the request quota of each user. Each node counts on its own.
//!
//! The header fields are those of draft-ietf-httpapi-ratelimit-headers, as of its versions 10 and 11.

use std::array;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use plantstore_model::user::UserId;
use plantstore_telemetry::metrics::Counter;

use crate::observe::Context;
use crate::options::Rate;

const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const KEYS_MAX: usize = 65_536;
/// Shards of the map, each with a lock of its own, so that requests and evictions seldom block each other.
const SHARDS: usize = 16;
const SHARD_MAX: usize = KEYS_MAX / SHARDS;
/// Buckets that are evicted together when a shard is full: enough to make evictions rare.
const EVICTED: usize = SHARD_MAX / 8;

/// The state of a bucket after a token was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketLevel {
    /// Whole tokens left.
    left: u32,
    /// Seconds until there is one more token, rounded up.
    pub(super) next_in: u64,
}

/// Token bucket per key, stored as the time at which it will be full again (GCRA).
///
/// Memory is bounded. Full buckets are evicted first, because a full bucket equals a new one. If all are in use, those nearest
/// to full are evicted: these keys regain the few tokens they lack, while exhausted keys stay limited. No key ever loses a
/// token because of others.
pub(crate) struct RateLimiter<K> {
    shards: [Mutex<HashMap<K, Instant>>; SHARDS],
    hasher: RandomState,
    /// Time in which one token is added.
    interval: Duration,
    /// Time in which an empty bucket becomes full.
    capacity: Duration,
}

impl<K: Hash + Eq + Copy> RateLimiter<K> {
    /// Creates the limiter of an average rate and a burst; a burst of 0 counts as 1.
    pub(crate) fn new(rate: Rate, burst: u32) -> Self {
        let interval = rate.period / rate.number;
        let shards = array::from_fn(|_| Mutex::default());
        Self { shards, hasher: RandomState::new(), interval, capacity: interval * burst.max(1) }
    }

    /// Takes a token from the key's bucket; fails if there is none.
    pub(crate) fn take(&self, key: K, now: Instant) -> Result<BucketLevel, BucketLevel> {
        let mut full_at = self.shard(&key);
        let known = full_at.get(&key).copied();
        let missing = known.map_or(Duration::ZERO, |full| full.saturating_duration_since(now));
        let held = self.capacity.saturating_sub(missing);
        let Some(rest) = held.checked_sub(self.interval) else {
            return Err(self.level(held));
        };
        if known.is_none() && full_at.len() >= SHARD_MAX {
            evict_nearest_to_full(&mut full_at, now);
        }
        full_at.insert(key, now + missing + self.interval);
        Ok(self.level(rest))
    }

    /// Returns the seconds in which an empty bucket becomes full, rounded up.
    fn window(&self) -> u64 {
        self.capacity.as_secs() + u64::from(self.capacity.subsec_nanos() > 0)
    }

    fn shard(&self, key: &K) -> MutexGuard<'_, HashMap<K, Instant>> {
        // The map of a shard has another hasher: all its keys have the same remainder under this one, and would collide.
        #[expect(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
        let index = self.hasher.hash_one(key) as usize % SHARDS;
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the level of a bucket, not full, that holds the tokens added in the time `held`.
    fn level(&self, held: Duration) -> BucketLevel {
        let held = held.as_nanos();
        let interval = self.interval.as_nanos();
        let next = interval - held % interval;
        let next_in = next.div_ceil(Duration::from_secs(1).as_nanos());
        BucketLevel {
            left: u32::try_from(held / interval).unwrap_or(u32::MAX),
            next_in: u64::try_from(next_in).unwrap_or(u64::MAX),
        }
    }
}

/// Evicts all full buckets, and at least the [`EVICTED`] that are nearest to full.
fn evict_nearest_to_full<K>(full_at: &mut HashMap<K, Instant>, now: Instant) {
    let mut times: Vec<Instant> = full_at.values().copied().collect();
    let (_, last, _) = times.select_nth_unstable(EVICTED - 1);
    let last = (*last).max(now);
    full_at.retain(|_, full| *full > last);
}

pub(crate) struct UserQuota {
    limiter: RateLimiter<UserId>,
    policy: HeaderValue,
    pub(super) rejected: Counter,
}

impl UserQuota {
    pub(super) fn new(rate: Rate, burst: u32) -> Self {
        let limiter = RateLimiter::new(rate, burst);
        let policy = format!(r#""user";q={burst};w={}"#, limiter.window());
        let policy = HeaderValue::try_from(policy).expect("digits are a header value");
        Self { limiter, policy, rejected: Counter::default() }
    }

    /// Counts a request of this user; fails, with the seconds until a retry, if the quota is exhausted.
    pub(super) fn count(&self, user: UserId, context: &Context) -> Result<(), u64> {
        let taken = self.limiter.take(user, Instant::now());
        let (Ok(BucketLevel { left, next_in }) | Err(BucketLevel { left, next_in })) = taken;
        if let Ok(value) = HeaderValue::try_from(format!(r#""user";r={left};t={next_in}"#)) {
            let _ = context.rate_limit.set(value);
        }
        taken.map(drop).map_err(|level| {
            self.rejected.count();
            level.next_in
        })
    }

    /// Adds the policy, and the state of the quota if the user is authenticated.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap, context: &Context) {
        headers.insert(RATE_LIMIT_POLICY, self.policy.clone());
        if let Some(value) = context.rate_limit.get() {
            headers.insert(RATE_LIMIT, value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use proptest::prelude::*;

    use super::*;

    fn limiter(rate: &str, burst: u32) -> RateLimiter<u64> {
        RateLimiter::new(rate.parse().expect("a rate"), burst)
    }

    proptest! {
        /// After any pause: exactly the reported number of requests is served at once, a client that waits for the reported time is
        /// served, and one that waits a second less is not; and the bucket is full after its window.
        #[test]
        fn reported_level_is_exact(
            number in 1_u32..200, unit in prop::sample::select(vec!["s", "m", "h"]), burst in 1_u32..50,
            pauses in prop::collection::vec(0_u64..100_000_000_000, 1..100),
        ) {
            let limiter = limiter(&format!("{number}/{unit}"), burst);
            let limiter = &limiter;
            let levels = |now| iter::from_fn(move || limiter.take(0, now).ok()).map(|level| level.left);
            let mut now = Instant::now();
            for pause in pauses {
                let reported: Vec<u32> = levels(now).collect();
                prop_assert!(reported.iter().copied().eq((0..burst).rev().skip(burst as usize - reported.len())));
                let rejected = limiter.take(0, now).expect_err("no token is left");
                now += Duration::from_secs(rejected.next_in - 1);
                prop_assert!(limiter.take(0, now).is_err());
                now += Duration::from_secs(1);
                prop_assert!(limiter.take(0, now).is_ok());
                now += Duration::from_nanos(pause);
            }
            prop_assert!(levels(now + Duration::from_secs(limiter.window())).eq((0..burst).rev()));
        }
    }

    #[test]
    fn memory_is_bounded_and_limited_keys_stay_limited() {
        let limiter = limiter("1/h", 100);
        let mut now = Instant::now();
        let greedy = u64::MAX;
        assert_eq!((0..200).filter(|_| limiter.take(greedy, now).is_ok()).count(), 100);
        for key in 0..3 * KEYS_MAX as u64 {
            now += Duration::from_nanos(1);
            assert_eq!(limiter.take(key, now).map(|level| level.left), Ok(99), "a new key has a full bucket");
        }
        let buckets: usize = limiter.shards.iter().map(|shard| shard.lock().expect("no panic").len()).sum();
        assert!((KEYS_MAX / 2..=KEYS_MAX).contains(&buckets), "{buckets}");
        assert!(limiter.take(greedy, now).is_err(), "an empty bucket is not evicted");
    }

    #[test]
    fn full_buckets_are_evicted_first() {
        let limiter = limiter("1/s", 10);
        let mut now = Instant::now();
        for key in 0..2 * KEYS_MAX as u64 {
            now += Duration::from_nanos(1);
            assert!(limiter.take(key, now).is_ok());
        }
        now += Duration::from_secs(1);
        let in_use = || (0..KEYS_MAX as u64 / 2).map(|key| u64::MAX - key);
        for left in [9, 8] {
            let levels = in_use().map(|key| limiter.take(key, now).map(|level| level.left));
            assert!(levels.eq(in_use().map(|_| Ok(left))), "none of them was evicted");
        }
    }
}
