//! Counts and digests of rows: two stores with the same digests have the same contents.

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::line;
use super::snapshot::LastIds;
use super::table::{Cell, Chunk, PLANTS, Table};
use plantstore_model::text::Hex;

/// A SHA-256 digest, displayed in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(formatter)
    }
}

/// Number and digest of the rows of a table. The digest of plants is that of the lines that an export writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableDigest {
    pub title: &'static str,
    pub rows: u64,
    pub digest: Digest,
}

/// Contents of a store.
#[derive(Clone, Debug)]
pub struct ContentDigest {
    pub tables: Vec<TableDigest>,
    /// Digest of the versions of plants, which are not part of an export.
    versions: Digest,
    last_ids: LastIds,
}

impl ContentDigest {
    /// Returns true if the contents are the same. The last assigned ids may be higher.
    pub(super) fn matches(&self, other: &Self) -> bool {
        self.tables == other.tables
            && self.versions == other.versions
            && self.last_ids.user >= other.last_ids.user
            && self.last_ids.token >= other.last_ids.token
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = self.tables.iter().map(|table| format!("{} {} ({})", table.rows, table.title, table.digest));
        formatter.write_str(&tables.collect::<Vec<_>>().join(", "))
    }
}

/// Computes a [`ContentDigest`] from chunks.
pub(super) struct ContentHasher {
    tables: [TableHasher; Table::ALL.len()],
    versions: TableHasher,
    last_ids: LastIds,
}

impl ContentHasher {
    pub(super) fn new(last_ids: LastIds) -> Self {
        Self { tables: Default::default(), versions: TableHasher::default(), last_ids }
    }

    pub(super) fn add(&mut self, chunk: &Chunk) {
        let index = Table::ALL.iter().position(|table| table.name == chunk.table.name).unwrap_or_default();
        self.tables[index].add(chunk);
        if chunk.table.name == PLANTS.name {
            self.versions.add_values(chunk, |row| &row[row.len() - 1..]);
        }
    }

    /// Returns the number of plants added so far.
    pub(super) fn plants(&self) -> u64 {
        self.tables[Table::ALL.len() - 1].rows
    }

    pub(super) fn finish(self) -> ContentDigest {
        let digests = Table::ALL.iter().zip(self.tables);
        let tables = digests.map(|(table, hasher)| TableDigest {
            title: table.title,
            rows: hasher.rows,
            digest: hasher.finish(),
        });
        ContentDigest { tables: tables.collect(), versions: self.versions.finish(), last_ids: self.last_ids }
    }
}

/// Incremental digest of rows, with a buffer for those that are added next.
#[derive(Default)]
pub(super) struct TableHasher {
    pub(super) rows: u64,
    hash: Sha256,
    buffer: Vec<u8>,
}

impl TableHasher {
    /// Adds rows, and returns the bytes that represent them: for plants, their lines in an export.
    pub(super) fn add(&mut self, chunk: &Chunk) -> &[u8] {
        if chunk.table.name != PLANTS.name {
            return self.add_values(chunk, |row| row);
        }
        self.buffer.clear();
        for row in chunk.rows() {
            line::write(&mut self.buffer, row);
        }
        self.hash_buffer(chunk)
    }

    fn add_values(&mut self, chunk: &Chunk, values: fn(&[Cell]) -> &[Cell]) -> &[u8] {
        self.buffer.clear();
        for cell in chunk.rows().flat_map(values) {
            cell.write(&mut self.buffer);
        }
        self.hash_buffer(chunk)
    }

    fn hash_buffer(&mut self, chunk: &Chunk) -> &[u8] {
        self.rows += chunk.rows().len() as u64;
        self.hash.update(&self.buffer);
        &self.buffer
    }

    pub(super) fn finish(self) -> Digest {
        Digest(self.hash.finalize().into())
    }
}
