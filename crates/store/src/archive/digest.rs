//! Counts and digests of records: two stores with the same digests have the same contents.

use std::fmt;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::line;
use crate::transfer::{Counts, LastIds, PlantRecord, SnapshotChunk};

/// A SHA-256 digest, displayed in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// Computes a [`ContentDigest`] from chunks.
#[derive(Default)]
pub struct ContentHasher {
    counts: Counts,
    users: Hasher,
    tokens: Hasher,
    shares: Hasher,
    keys: Hasher,
    plants: Hasher,
    versions: Hasher,
    last_ids: LastIds,
}

/// Number and digest of the records of each table. The digest of plants is that of the lines that an export writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentDigest {
    pub counts: Counts,
    pub users: Digest,
    pub tokens: Digest,
    pub shares: Digest,
    pub keys: Digest,
    pub plants: Digest,
    /// Digest of the versions of plants, which are not part of an export.
    versions: Digest,
    last_ids: LastIds,
}

impl ContentDigest {
    /// Returns true if the contents are the same. The last assigned ids may be higher.
    pub(super) fn matches(&self, other: &Self) -> bool {
        let (own, others) = (self.last_ids, other.last_ids);
        Self { last_ids: others, ..*self } == *other && own.user >= others.user && own.token >= others.token
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { users, tokens, shares, keys, plants } = self.counts;
        write!(
            formatter,
            "{users} users ({}), {tokens} tokens ({}), {shares} shares ({}), {keys} idempotency keys ({}), {plants} plants ({})",
            self.users, self.tokens, self.shares, self.keys, self.plants
        )
    }
}

impl ContentHasher {
    pub fn add(&mut self, chunk: &SnapshotChunk) {
        match chunk {
            SnapshotChunk::Total(_) => {}
            SnapshotChunk::LastIds(ids) => self.last_ids = *ids,
            SnapshotChunk::Users(rows) => self.counts.users += self.users.rows(rows),
            SnapshotChunk::Tokens(rows) => self.counts.tokens += self.tokens.rows(rows),
            SnapshotChunk::Shares(rows) => self.counts.shares += self.shares.rows(rows),
            SnapshotChunk::Keys(rows) => self.counts.keys += self.keys.rows(rows),
            SnapshotChunk::Plants(rows) => {
                self.counts.plants += rows.len() as u64;
                self.plants.lines(rows);
                for row in rows {
                    self.versions.hash.update(row.version.to_be_bytes());
                }
            }
        }
    }

    /// Returns the number of plants added so far.
    pub fn plants(&self) -> u64 {
        self.counts.plants
    }

    pub fn finish(self) -> ContentDigest {
        ContentDigest {
            counts: self.counts,
            users: self.users.finish(),
            tokens: self.tokens.finish(),
            shares: self.shares.finish(),
            keys: self.keys.finish(),
            plants: self.plants.finish(),
            versions: self.versions.finish(),
            last_ids: self.last_ids,
        }
    }
}

/// Incremental digest of JSON lines, with a buffer for the lines that are added next.
#[derive(Default)]
pub(super) struct Hasher {
    hash: Sha256,
    buffer: Vec<u8>,
}

impl Hasher {
    fn rows<T: Serialize>(&mut self, rows: &[T]) -> u64 {
        self.buffer.clear();
        for row in rows {
            line::write_json(&mut self.buffer, row);
        }
        self.hash.update(&self.buffer);
        rows.len() as u64
    }

    /// Adds plants, and returns their lines as an export writes them.
    pub(super) fn lines(&mut self, rows: &[PlantRecord]) -> &[u8] {
        self.buffer.clear();
        for row in rows {
            line::write(&mut self.buffer, row);
        }
        self.hash.update(&self.buffer);
        &self.buffer
    }

    pub(super) fn finish(self) -> Digest {
        Digest(self.hash.finalize().into())
    }
}
