//! Cache of encoded lists.
//!
//! A cached list has the [`ListState`] of its plants, which never stands for different plants. It is used only for requests that
//! need this state, so a response is never stale.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::response::Response;
use bytes::Bytes;
use hyper::header::HeaderValue;
use quick_cache::Weighter;

use super::query::ListOptions;
use crate::api::collections::{ListId, ListState};
use crate::api::response;
use plantstore_store::cache::{BoundedCache, weighted_cache};
use plantstore_telemetry::metrics::{Counter, Exposition, Striped};

/// Approximate size of an entry without the list itself.
const ENTRY_BYTES: usize = 512;
/// Expected size of a list, from which the number of entries is estimated.
const USUAL_BYTES: usize = 2_048;

/// The variable parts of a response with a list, and what the list contains.
pub(super) struct CachedList {
    pub(super) state: ListState,
    pub(super) body: Bytes,
    pub(super) next: Option<HeaderValue>,
    pub(super) tag: HeaderValue,
}

impl CachedList {
    pub(super) fn respond(&self) -> Response {
        response::plants(self.body.clone(), self.next.clone(), self.tag.clone())
    }
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<(ListId, ListOptions), Arc<CachedList>> for ByBytes {
    fn weight(&self, (_, parameters): &(ListId, ListOptions), list: &Arc<CachedList>) -> u64 {
        (list.body.len() + list.next.as_ref().map_or(0, HeaderValue::len) + parameters.bytes() + ENTRY_BYTES) as u64
    }
}

/// Cache of recently requested lists, bounded by their size in bytes.
pub(crate) struct ListCache {
    lists: Option<BoundedCache<(ListId, ListOptions), Arc<CachedList>, ByBytes>>,
    /// Total size of the lists in memory: in the cache, or in a response that is still being sent after eviction.
    shared: Arc<AtomicUsize>,
    /// Lists that were sent from the cache.
    pub(super) hits: Striped<Counter>,
    /// Lists that were read from the store.
    pub(super) misses: Striped<Counter>,
}

/// The bytes of a list, which count towards a total until they are dropped.
struct CountedBytes {
    bytes: Box<[u8]>,
    total: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

impl ListCache {
    /// Creates a cache of this many bytes; 0 turns it off.
    pub(crate) fn new(bytes: usize) -> Self {
        let lists = (bytes > 0).then(|| weighted_cache(bytes / USUAL_BYTES + 1, bytes as u64, ByBytes));
        Self { lists, shared: Arc::default(), hits: Striped::default(), misses: Striped::default() }
    }

    /// Returns the list if it is cached in this state. A list that has changed since it was cached is removed: it may be too long
    /// to be cached now, so that no new entry would replace it.
    pub(super) fn get(&self, id: ListId, state: ListState, parameters: &ListOptions) -> Option<Arc<CachedList>> {
        let cache = self.lists.as_ref()?;
        let key = (id, parameters.clone());
        let list = cache.get(&key)?;
        if list.state != state {
            cache.remove(&key);
            return None;
        }
        Some(list)
    }

    /// Returns true if the list is cached, in any state.
    pub(super) fn contains(&self, id: ListId, parameters: &ListOptions) -> bool {
        self.lists.as_ref().is_some_and(|cache| cache.contains_key(&(id, parameters.clone())))
    }

    /// Returns true if a list of this size may be stored. False while lists that are evicted but still being sent take up as much
    /// memory as the cache may.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        let Some(cache) = &self.lists else { return false };
        (self.shared.load(Ordering::Relaxed) + bytes) as u64 <= 2 * cache.capacity()
    }

    /// Makes the bytes of a list shareable by responses. They count towards the total until the last response has ended.
    pub(super) fn share(&self, bytes: Vec<u8>) -> Bytes {
        self.shared.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(CountedBytes { bytes: bytes.into_boxed_slice(), total: Arc::clone(&self.shared) })
    }

    pub(super) fn insert(&self, id: ListId, parameters: ListOptions, list: Arc<CachedList>) {
        if let Some(cache) = &self.lists {
            cache.insert((id, parameters), list);
        }
    }

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        let Some(cache) = &self.lists else { return };
        exposition
            .counter(
                "plantstore_list_cache_lookups_total",
                "Lists from the list cache (hit), and lists that were read (miss).",
            )
            .sample(&[("result", "hit".into())], self.hits.get())
            .sample(&[("result", "miss".into())], self.misses.get());
        exposition.gauge("plantstore_list_cache_bytes", "Size of the list cache.").sample(&[], cache.weight());
        exposition
            .gauge("plantstore_list_cache_capacity_bytes", "Maximum size of the list cache (--list-cache-bytes).")
            .sample(&[], cache.capacity());
    }
}
