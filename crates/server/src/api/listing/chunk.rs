//! Chunks of a list as JSON.

use std::ops::ControlFlow;

use plantstore_model::plant::{Plant, PlantId};
use plantstore_store::CollectionAccess;

use super::parameters::Include;

/// Size of a chunk in bytes. A chunk ends with the plant that reaches this size. 60 KiB leaves space for that plant in a
/// 64 KiB buffer; buffers grow by doubling.
pub(super) const CHUNK_BYTES: usize = 60 * 1024;
/// Size of a chunk in bytes on a connection that has no free buffer.
pub(super) const SMALL_CHUNK_BYTES: usize = 3 * 1024;

/// One chunk of a list as JSON: each plant is preceded by a separator, `[` or `,`.
pub(super) struct JsonChunk<'a> {
    collections: &'a [CollectionAccess],
    include: Include,
    separator: u8,
    /// Size in bytes at which it ends.
    limit: usize,
    pub(super) bytes: Vec<u8>,
    pub(super) count: usize,
    pub(super) last: Option<(PlantId, usize)>,
}

impl<'a> JsonChunk<'a> {
    pub(super) fn new(collections: &'a [CollectionAccess], include: Include, separator: u8, limit: usize) -> Self {
        Self { collections, include, separator, limit, bytes: Vec::with_capacity(1_024), count: 0, last: None }
    }

    pub(super) fn push(&mut self, index: usize, id: PlantId, name: &str, tag: Option<&str>) -> ControlFlow<()> {
        self.bytes.push(self.separator);
        self.separator = b',';
        let owner = self.include.owner.then(|| self.collections[index].owner.as_str());
        let plant = Plant { id: self.include.id.then_some(id), owner, name, tag };
        // Serialising a number and strings to memory cannot fail.
        let _ = serde_json::to_writer(&mut self.bytes, &plant);
        self.count += 1;
        self.last = Some((id, index));
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

/// Ratio of plants to bytes in a chunk.
#[derive(Clone, Copy)]
pub(super) struct Density {
    plants: usize,
    bytes: usize,
}

impl Density {
    /// Returns an upper estimate of the plants in a chunk of this size, as the limit of a query.
    pub(super) fn rows_of(self, bytes: usize) -> usize {
        2 * bytes * self.plants / self.bytes + 1
    }
}
