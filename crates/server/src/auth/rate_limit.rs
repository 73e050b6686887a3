//! Token-bucket rate limiter with one bucket per key.

use std::array;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of buckets.
const KEYS_MAX: usize = 65_536;
/// Shards of the map, each with a lock of its own, so that requests and evictions seldom block each other.
const SHARDS: usize = 16;
const SHARD_MAX: usize = KEYS_MAX / SHARDS;
/// Buckets that are evicted together when a shard is full: enough to make evictions rare.
const EVICTED: usize = SHARD_MAX / 8;
/// Highest number of a rate, in its unit of time.
const RATE_MAX: u32 = 1_000_000;

/// Number of events per period, on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    number: u32,
    period: Duration,
}

impl Rate {
    /// Creates a rate per second, clamped to the allowed range.
    pub(crate) fn per_second(number: u32) -> Self {
        Self { number: number.clamp(1, RATE_MAX), period: Duration::from_secs(1) }
    }

    /// Returns the number of events per period.
    pub(super) fn number(self) -> u32 {
        self.number
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let (number, unit) = text.split_once('/').ok_or(RateError::Form)?;
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            _ => return Err(RateError::Form),
        };
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(RateError::Form);
        }
        match number.parse() {
            Ok(number @ 1..=RATE_MAX) => Ok(Self { number, period: Duration::from_secs(seconds) }),
            _ => Err(RateError::Number),
        }
    }
}

/// The reason why a text is not a [`Rate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    #[error("write a number of requests and a unit of time, for example 100/s, 600/m or 5000/h")]
    Form,
    #[error("the number must be from 1 to {RATE_MAX}")]
    Number,
}

/// An average rate and a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    rate: Rate,
    pub(super) burst: u32,
}

impl Quota {
    /// Creates a quota; a burst of 0 counts as 1.
    pub(crate) fn new(rate: Rate, burst: u32) -> Self {
        Self { rate, burst: burst.max(1) }
    }
}

/// The state of a bucket after a token was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketLevel {
    /// Whole tokens left.
    pub(super) left: u32,
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
    pub(crate) fn new(quota: Quota) -> Self {
        let interval = quota.rate.period / quota.rate.number;
        Self {
            shards: array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            interval,
            capacity: interval * quota.burst,
        }
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
    pub(super) fn window(&self) -> u64 {
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
        let (held, interval) = (held.as_nanos(), self.interval.as_nanos());
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

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    fn limiter(rate: &str, burst: u32) -> RateLimiter<u64> {
        RateLimiter::new(Quota::new(rate.parse().expect("a rate"), burst))
    }

    fn level(left: u32, next_in: u64) -> BucketLevel {
        BucketLevel { left, next_in }
    }

    fn bucket_count(limiter: &RateLimiter<u64>) -> usize {
        limiter.shards.iter().map(|shard| shard.lock().expect("no panic").len()).sum()
    }

    #[test]
    fn rates_are_parsed() {
        let rate = |number, seconds| Ok(Rate { number, period: Duration::from_secs(seconds) });
        assert_eq!(
            ["100/s".parse(), "20/m".parse(), "1000000/h".parse()],
            [rate(100, 1), rate(20, 60), rate(1_000_000, 3_600)]
        );
        for wrong in [
            "", "100", "/s", "100/", "100/d", "100/S", "100/sec", "-1/s", "+1/s", "1.5/s", "1 /s", "1/s ", "1//s",
            "１/s",
        ] {
            assert_eq!(wrong.parse::<Rate>(), Err(RateError::Form), "{wrong}");
        }
        for wrong in ["0/s", "1000001/s", "99999999999999999999/h"] {
            assert_eq!(wrong.parse::<Rate>(), Err(RateError::Number), "{wrong}");
        }
    }

    #[test]
    fn a_bucket_empties_and_fills() {
        let limiter = limiter("10/s", 3);
        let start = Instant::now();
        let taken = |after: u64| limiter.take(1, start + Duration::from_millis(after));
        assert_eq!([taken(0), taken(0), taken(0)], [Ok(level(2, 1)), Ok(level(1, 1)), Ok(level(0, 1))]);
        assert_eq!(
            [taken(0), taken(99), taken(100), taken(101)].map(|taken| taken.is_ok()),
            [false, false, true, false]
        );
        assert_eq!(
            [taken(10_000), taken(10_000), taken(10_000), taken(10_000)].map(|taken| taken.is_ok()),
            [true, true, true, false]
        );
        assert_eq!(limiter.take(2, start), Ok(level(2, 1)), "another key has a bucket of its own");
    }

    #[test]
    fn wait_is_rounded_up_to_seconds() {
        let limiter = limiter("20/m", 2);
        let start = Instant::now();
        let taken = |after: f64| limiter.take(1, start + Duration::from_secs_f64(after));
        assert_eq!([taken(0.0), taken(0.0)], [Ok(level(1, 3)), Ok(level(0, 3))]);
        assert_eq!(taken(0.0), Err(level(0, 3)), "three whole seconds are three");
        assert_eq!(taken(0.000_000_001), Err(level(0, 3)));
        assert_eq!(taken(0.999_999_999), Err(level(0, 3)), "a little more than two are three");
        assert_eq!(taken(1.0), Err(level(0, 2)));
        assert_eq!(taken(2.0), Err(level(0, 1)));
        assert_eq!(taken(2.999_999_999), Err(level(0, 1)), "never 0: that would not be enough");
        assert_eq!(taken(3.0), Ok(level(0, 3)), "rejections take no tokens");
        assert_eq!(taken(7.0), Ok(level(0, 2)), "a third of a token is left over");
    }

    proptest! {
        /// For any sequence of requests: a client that waits for the reported time is served, and one that waits a second less
        /// is not; exactly the reported number of requests is served at once; and the bucket is full after its window.
        #[test]
        fn reported_level_is_exact(
            number in 1_u32..200, unit in prop::sample::select(vec!["s", "m", "h"]), burst in 1_u32..50,
            pauses in prop::collection::vec(0_u64..100_000_000_000, 1..100),
        ) {
            let quota = Quota::new(format!("{number}/{unit}").parse().expect("a rate"), burst);
            let limiter = RateLimiter::new(quota);
            // Returns the level after the next request without making it.
            let preview = |now: Instant| {
                let other = RateLimiter::new(quota);
                if let Some(full) = limiter.shard(&0_u64).get(&0) {
                    other.shard(&0).insert(0, *full);
                }
                other.take(0, now)
            };
            let mut now = Instant::now();
            for pause in pauses {
                now += Duration::from_nanos(pause);
                match limiter.take(0, now) {
                    Ok(level) => prop_assert!(preview(now).is_ok() == (level.left > 0)),
                    Err(level) => {
                        prop_assert_eq!(level.left, 0);
                        prop_assert!(level.next_in >= 1);
                        prop_assert!(preview(now + Duration::from_secs(level.next_in)).is_ok());
                        prop_assert!(preview(now + Duration::from_secs(level.next_in - 1)).is_err());
                    }
                }
            }
            now += Duration::from_secs(limiter.window());
            for left in (0..burst).rev() {
                prop_assert_eq!(limiter.take(0, now).map(|level| level.left), Ok(left));
            }
            prop_assert!(limiter.take(0, now).is_err());
        }
    }

    #[test]
    fn window_is_the_time_to_fill_an_empty_bucket() {
        for (rate, burst, window) in [
            ("100/s", 200, 2),
            ("3/s", 3, 1),
            ("3/s", 4, 2),
            ("20/m", 1, 3),
            ("7/h", 7, 3_600),
            ("1/h", 1_000_000, 3_600_000_000),
        ] {
            assert_eq!(limiter(rate, burst).window(), window, "{rate} {burst}");
        }
    }

    #[test]
    fn concurrent_callers_get_no_more_tokens_than_the_burst() {
        let limiter = limiter("1/h", 1_000);
        let now = Instant::now();
        let granted = thread::scope(|scope| {
            let takers: Vec<_> =
                (0..8).map(|_| scope.spawn(|| (0..500).filter(|_| limiter.take(1, now).is_ok()).count())).collect();
            takers.into_iter().map(|taker| taker.join().expect("no panic")).sum::<usize>()
        });
        assert_eq!(granted, 1_000);
    }

    #[test]
    fn memory_is_bounded_and_limited_keys_stay_limited() {
        let limiter = limiter("1/h", 100);
        let start = Instant::now();
        let greedy = u64::MAX;
        assert_eq!((0..200).filter(|_| limiter.take(greedy, start).is_ok()).count(), 100);
        let mut now = start;
        for key in 0..3 * KEYS_MAX as u64 {
            now += Duration::from_nanos(1);
            assert_eq!(limiter.take(key, now), Ok(level(99, 3_600)), "a new key has a full bucket");
        }
        assert!((KEYS_MAX / 2..=KEYS_MAX).contains(&bucket_count(&limiter)), "{}", bucket_count(&limiter));
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
        assert!(in_use().all(|key| limiter.take(key, now) == Ok(level(9, 1))));
        assert!(in_use().all(|key| limiter.take(key, now) == Ok(level(8, 1))), "none of them was evicted");
        assert!(bucket_count(&limiter) <= KEYS_MAX);
    }
}
