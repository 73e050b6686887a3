//! Bounded caches.

use std::hash::Hash;

use foldhash::quality::RandomState;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{UnitWeighter, Weighter};

/// A bounded cache for many threads. Its hashes are cheaper than the standard library's, and seeded anew with every start all
/// the same.
pub type BoundedCache<K, V, W = UnitWeighter> = Cache<K, V, W, RandomState, DefaultLifecycle<K, V>>;

/// Returns a cache of so many values.
pub fn bounded_cache<K: Eq + Hash, V: Clone>(values: usize) -> BoundedCache<K, V> {
    weighted_cache(values, values as u64, UnitWeighter)
}

/// Returns a cache of values that weigh at most `weight` together; about `values` of them are expected.
pub fn weighted_cache<K: Eq + Hash, V: Clone, W: Weighter<K, V> + Clone>(
    values: usize,
    weight: u64,
    weighter: W,
) -> BoundedCache<K, V, W> {
    Cache::with(values, weight, weighter, RandomState::default(), DefaultLifecycle::default())
}
