//! Chunks of a list as JSON.

use std::ops::ControlFlow;

use plantstore_model::plant::{Plant, PlantId};
use plantstore_store::Collection;

use super::view::Include;

/// Bytes of JSON after which a chunk ends; the plant that crosses the line is the last. Mostly that is within 64 KiB, a size
/// that the buffer reaches by doubling.
pub(super) const CHUNK_BYTES: usize = 60 * 1024;
/// The same where other responses of the connection hold as many buffers as they may.
pub(super) const SMALL_CHUNK_BYTES: usize = 3 * 1024;

/// One chunk of a list as JSON: every plant behind its separator.
pub(super) struct Chunk<'a> {
    collections: &'a [Collection],
    include: Include,
    separator: u8,
    /// Bytes after which it ends.
    limit: usize,
    pub(super) bytes: Vec<u8>,
    pub(super) count: usize,
    pub(super) last: Option<(PlantId, usize)>,
}

impl<'a> Chunk<'a> {
    pub(super) fn new(collections: &'a [Collection], include: Include, separator: u8, limit: usize) -> Self {
        Self { collections, include, separator, limit, bytes: Vec::with_capacity(1_024), count: 0, last: None }
    }

    pub(super) fn push(&mut self, place: usize, id: PlantId, name: &str, tag: Option<&str>) -> ControlFlow<()> {
        self.bytes.push(self.separator);
        self.separator = b',';
        let owner = self.include.owner.then(|| self.collections[place].owner.as_str());
        let plant = Plant { id: self.include.id.then_some(id), owner, name, tag };
        // Writing a number and strings to memory does not fail.
        let _ = serde_json::to_writer(&mut self.bytes, &plant);
        self.count += 1;
        self.last = Some((id, place));
        if self.bytes.len() < self.limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    pub(super) fn density(&self) -> Density {
        Density { plants: self.count.max(1), bytes: self.bytes.len().max(1) }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        if self.count == 0 && self.separator == b'[' {
            self.bytes.push(b'[');
        }
        self.bytes.push(b']');
        self.bytes
    }
}

/// Ratio of plants to bytes, as seen in one chunk.
#[derive(Clone, Copy)]
pub(super) struct Density {
    plants: usize,
    bytes: usize,
}

impl Density {
    /// Returns an upper estimate of the plants in a chunk of this many bytes: more rows need not be queried.
    pub(super) fn rows_of(self, bytes: usize) -> usize {
        2 * bytes * self.plants / self.bytes + 1
    }
}
