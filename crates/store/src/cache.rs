//! What was asked for lately, within a bound: the one kind of cache there is.

use std::hash::Hash;

use foldhash::quality::RandomState;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{UnitWeighter, Weighter};

/// Remembers values that many threads ask for. Its hashes are cheaper than the standard library's, and seeded anew with every
/// start all the same.
pub type Memory<K, V, W = UnitWeighter> = Cache<K, V, W, RandomState, DefaultLifecycle<K, V>>;

/// A memory of so many values.
pub fn memory<K: Eq + Hash, V: Clone>(values: usize) -> Memory<K, V> {
    weighing(values, values as u64, UnitWeighter)
}

/// A memory of values that weigh so much together; there are about so many of them.
pub fn weighing<K: Eq + Hash, V: Clone, W: Weighter<K, V> + Clone>(
    values: usize,
    weight: u64,
    weighter: W,
) -> Memory<K, V, W> {
    Cache::with(values, weight, weighter, RandomState::default(), DefaultLifecycle::default())
}
