//! Lists remembered as they were sent, so that one that is read again and again is not made again and again.
//!
//! A list is known by its [`Tag`], which is never the same again after a change: what is remembered is never out of date,
//! it is only asked for no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use hyper::header::HeaderValue;
use quick_cache::Weighter;

use super::View;
use super::tag::Tag;
use plantstore_store::cache::{BoundedCache, weighted_cache};
use plantstore_telemetry::metrics::{Counter, Page as MetricsPage, Striped};

/// Bytes that an entry takes besides the list itself, about.
const ENTRY_BYTES: usize = 512;
/// Bytes of a list, about, from which the number of entries is guessed.
const USUAL_BYTES: usize = 2_048;

/// Everything an answer is made of.
#[derive(Clone)]
pub(crate) struct Page {
    pub(crate) body: Bytes,
    pub(crate) next: Option<HeaderValue>,
    pub(crate) tag: HeaderValue,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<(Tag, View), Page> for ByBytes {
    fn weight(&self, (_, view): &(Tag, View), page: &Page) -> u64 {
        (page.body.len() + page.next.as_ref().map_or(0, HeaderValue::len) + view.bytes() + ENTRY_BYTES) as u64
    }
}

/// The lists that were asked for lately, within a number of bytes.
pub(crate) struct PageCache {
    pages: Option<BoundedCache<(Tag, View), Page, ByBytes>>,
    /// Bytes of pages that are in memory, in the cache or in a response that outlives its place there.
    shared: Arc<AtomicUsize>,
    hits: Striped<Counter>,
    misses: Striped<Counter>,
}

/// The bytes of a page, and the sum that they are part of.
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

impl PageCache {
    /// Remembers up to so many bytes; none at all for 0.
    pub(crate) fn new(bytes: usize) -> Self {
        let pages = (bytes > 0).then(|| weighted_cache(bytes / USUAL_BYTES + 1, bytes as u64, ByBytes));
        Self { pages, shared: Arc::default(), hits: Striped::default(), misses: Striped::default() }
    }

    pub(crate) fn get(&self, tag: Tag, view: &View) -> Option<Page> {
        let found = self.pages.as_ref()?.get(&(tag, view.clone()));
        found.inspect(|_| self.hits.count())
    }

    /// A list has to be made.
    pub(crate) fn missed(&self) {
        self.misses.count();
    }

    /// Whether a page of this many bytes may be stored. Not while responses that clients do not read hold as much as the cache
    /// may hold itself.
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        let Some(cache) = &self.pages else { return false };
        (self.shared.load(Ordering::Relaxed) + bytes) as u64 <= 2 * cache.capacity()
    }

    /// The bytes of a page, counted until the last response with them has ended.
    pub(crate) fn share(&self, bytes: Vec<u8>) -> Bytes {
        self.shared.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(Shared { bytes: bytes.into_boxed_slice(), total: Arc::clone(&self.shared) })
    }

    pub(crate) fn keep(&self, tag: Tag, view: View, page: &Page) {
        if let Some(cache) = &self.pages {
            cache.insert((tag, view), page.clone());
        }
    }

    /// Where lists are not remembered, there is nothing to write.
    pub(crate) fn write_metrics(&self, page: &mut MetricsPage) {
        let Some(cache) = &self.pages else { return };
        page.counter("plantstore_list_cache_lookups_total", "Lists by whether they were in memory.")
            .sample(&[("found", "yes".into())], self.hits.get())
            .sample(&[("found", "no".into())], self.misses.get());
        page.gauge("plantstore_list_cache_bytes", "Lists in memory.").sample(&[], cache.weight());
        page.gauge("plantstore_list_cache_capacity_bytes", "How much there may be (--list-cache-bytes).")
            .sample(&[], cache.capacity());
    }
}
