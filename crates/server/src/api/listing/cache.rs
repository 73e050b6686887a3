//! Cache of encoded lists.
//!
//! The key holds the [`EntityTag`], which never recurs after a change: a cached list is never stale, it is only no longer
//! requested.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::header::HeaderValue;
use quick_cache::Weighter;

use super::response::respond;
use super::view::View;
use crate::api::entity_tag::EntityTag;
use plantstore_store::cache::{BoundedCache, weighted_cache};
use plantstore_telemetry::metrics::{Counter, Page, Striped};

/// Bytes that an entry takes besides the list itself, about.
const ENTRY_BYTES: usize = 512;
/// Bytes of a list, about, from which the number of entries is guessed.
const USUAL_BYTES: usize = 2_048;

/// All that a response with a list is made of.
#[derive(Clone)]
pub(super) struct CachedList {
    pub(super) body: Bytes,
    pub(super) next: Option<HeaderValue>,
    pub(super) tag: HeaderValue,
}

impl CachedList {
    pub(super) fn respond(self) -> Response {
        respond(Body::from(self.body), self.next, self.tag)
    }
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<(EntityTag, View), CachedList> for ByBytes {
    fn weight(&self, (_, view): &(EntityTag, View), list: &CachedList) -> u64 {
        (list.body.len() + list.next.as_ref().map_or(0, HeaderValue::len) + view.bytes() + ENTRY_BYTES) as u64
    }
}

/// The lists that were requested lately, within a number of bytes.
pub(crate) struct ListCache {
    lists: Option<BoundedCache<(EntityTag, View), CachedList, ByBytes>>,
    /// Bytes of lists that are in memory, in the cache or in a response that outlives its entry there.
    shared: Arc<AtomicUsize>,
    hits: Striped<Counter>,
    misses: Striped<Counter>,
}

/// The bytes of a list, and the total that they are part of.
struct Shared {
    bytes: Box<[u8]>,
    total: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Shared {
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

    pub(super) fn get(&self, tag: EntityTag, view: &View) -> Option<CachedList> {
        let found = self.lists.as_ref()?.get(&(tag, view.clone()));
        found.inspect(|_| self.hits.count())
    }

    /// Counts a list that has to be read.
    pub(super) fn missed(&self) {
        self.misses.count();
    }

    /// Returns true if a list of this many bytes may be stored. Not while responses that clients do not read hold as much as the cache
    /// may hold itself.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        let Some(cache) = &self.lists else { return false };
        (self.shared.load(Ordering::Relaxed) + bytes) as u64 <= 2 * cache.capacity()
    }

    /// Shares the bytes of a list, which count until the last response with them has ended.
    pub(super) fn share(&self, bytes: Vec<u8>) -> Bytes {
        self.shared.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(Shared { bytes: bytes.into_boxed_slice(), total: Arc::clone(&self.shared) })
    }

    pub(super) fn insert(&self, tag: EntityTag, view: View, list: &CachedList) {
        if let Some(cache) = &self.lists {
            cache.insert((tag, view), list.clone());
        }
    }

    pub(crate) fn write_metrics(&self, page: &mut Page) {
        let Some(cache) = &self.lists else { return };
        page.counter("plantstore_list_cache_lookups_total", "Lookups in the list cache, by result.")
            .sample(&[("result", "hit".into())], self.hits.get())
            .sample(&[("result", "miss".into())], self.misses.get());
        page.gauge("plantstore_list_cache_bytes", "Size of the list cache.").sample(&[], cache.weight());
        page.gauge("plantstore_list_cache_capacity_bytes", "Maximum size of the list cache (--list-cache-bytes).")
            .sample(&[], cache.capacity());
    }
}
