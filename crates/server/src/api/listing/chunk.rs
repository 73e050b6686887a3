//! Chunks of a list: JSON, and the content coding of streamed lists, which is gzip (RFC 1952) for clients that accept it.
//!
//! Chunks are compressed independently, each up to a byte boundary, and together are one gzip member. Between two chunks only the
//! checksum and the length are stored, so that a response that waits for its client holds no compressor.

use std::cell::RefCell;
use std::ops::ControlFlow;

use flate2::{Compress, CompressError, Compression, FlushCompress, Status};
use hyper::header::{self, HeaderMap, HeaderValue};
use plantstore_model::plant::{Plant, PlantId};
use plantstore_store::CollectionAccess;

use super::query::Include;
use crate::api::response::NEGOTIATED;

/// Size of a chunk in bytes. A chunk ends with the plant that reaches this size. 60 KiB leaves space for that plant in a
/// 64 KiB buffer; buffers grow by doubling.
pub(super) const CHUNK_BYTES: usize = 60 * 1024;
/// Size of a chunk in bytes on a connection that has no free buffer.
pub(super) const SMALL_CHUNK_BYTES: usize = 3 * 1024;
/// Size in bytes from which a list is compressed: smaller ones are cached and sent in one piece.
pub(super) const COMPRESSION_MIN: usize = CHUNK_BYTES;
/// Growth of the output buffer in bytes.
const OUTPUT_STEP: usize = 4 * 1024;
/// Deflate, no optional fields, no time, fastest compression, unknown system.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];

thread_local! {
    /// Every thread has its own, because creating one costs more than compressing a small chunk. The level is the fastest, because
    /// the thread serves other requests, too.
    static COMPRESSOR: RefCell<Compress> = RefCell::new(Compress::new(Compression::fast(), false));
}

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
        plant.write_json(&mut self.bytes);
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

/// The content coding of a streamed list.
pub(super) enum Coding {
    /// The list is too small to be compressed for any client.
    NotNegotiated,
    Identity,
    Gzip(GzipState),
}

/// The state of a gzip member between two chunks.
#[derive(Default)]
pub(super) struct GzipState {
    checksum: crc32fast::Hasher,
    length: u64,
}

impl Coding {
    /// Returns the coding of a list that is not small.
    pub(super) fn negotiated(accepts_gzip: bool) -> Self {
        if accepts_gzip { Self::Gzip(GzipState::default()) } else { Self::Identity }
    }

    /// Encodes the next chunk.
    pub(super) fn encode(&mut self, chunk: Vec<u8>, is_last: bool) -> Result<Vec<u8>, CompressError> {
        match self {
            Self::NotNegotiated | Self::Identity => Ok(chunk),
            Self::Gzip(state) => state.encode(&chunk, is_last),
        }
    }

    pub(super) fn add_headers(&self, headers: &mut HeaderMap) {
        if let Self::Gzip(_) = self {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        if !matches!(self, Self::NotNegotiated) {
            headers.insert(header::VARY, NEGOTIATED);
        }
    }
}

impl GzipState {
    fn encode(&mut self, chunk: &[u8], is_last: bool) -> Result<Vec<u8>, CompressError> {
        let mut bytes = Vec::with_capacity(OUTPUT_STEP);
        if self.length == 0 {
            bytes.extend(GZIP_HEADER);
        }
        self.checksum.update(chunk);
        self.length += chunk.len() as u64;
        COMPRESSOR.with_borrow_mut(|compressor| deflate(compressor, chunk, is_last, &mut bytes))?;
        if is_last {
            bytes.extend(std::mem::take(&mut self.checksum).finalize().to_le_bytes());
            // The format has the length modulo 2^32.
            bytes.extend(&self.length.to_le_bytes()[..4]);
        }
        Ok(bytes)
    }
}

/// Compresses a chunk without reference to those before it. The output ends at a byte boundary.
fn deflate(compressor: &mut Compress, chunk: &[u8], is_last: bool, bytes: &mut Vec<u8>) -> Result<(), CompressError> {
    compressor.reset();
    let flush = if is_last { FlushCompress::Finish } else { FlushCompress::Sync };
    let mut read = 0;
    loop {
        bytes.reserve(OUTPUT_STEP);
        let before = compressor.total_in();
        let status = compressor.compress_vec(&chunk[read..], bytes, flush)?;
        read += usize::try_from(compressor.total_in() - before).unwrap_or_default();
        // Room that is left over means that everything is written.
        let is_flushed = !is_last && read == chunk.len() && bytes.len() < bytes.capacity();
        if is_flushed || matches!(status, Status::StreamEnd) {
            return Ok(());
        }
    }
}
