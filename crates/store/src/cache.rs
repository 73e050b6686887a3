//! Bounded caches, which the store uses for versions, and the server for lists and sessions.

use std::hash::Hash;

use foldhash::quality::RandomState;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{UnitWeighter, Weighter};

/// A bounded concurrent cache. Its hash function is faster than the standard library's and randomly seeded as well.
pub type BoundedCache<K, V, W = UnitWeighter> = Cache<K, V, W, RandomState, DefaultLifecycle<K, V>>;

/// Returns a cache for at most `values` entries.
pub fn bounded_cache<K: Eq + Hash, V: Clone>(values: usize) -> BoundedCache<K, V> {
    weighted_cache(values, values as u64, UnitWeighter)
}

/// Returns a cache whose entries have a total weight of at most `weight`; about `values` entries are expected.
pub fn weighted_cache<K: Eq + Hash, V: Clone, W: Weighter<K, V> + Clone>(
    values: usize,
    weight: u64,
    weighter: W,
) -> BoundedCache<K, V, W> {
    Cache::with(values, weight, weighter, RandomState::default(), DefaultLifecycle::default())
}
