//! Counts and digests of what is transferred: two stores with the same digest hold the same.

use std::fmt;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::line;
use crate::transfer::{Chunk, Counts, LastIds, PlantRecord};

/// A SHA-256, shown in hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// Counts and digests chunks.
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

/// Counts and digests of all chunks. The digest of each kind is over its rows in their order; that of plants over the very lines that an
/// export writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentDigest {
    pub counts: Counts,
    pub users: Digest,
    pub tokens: Digest,
    pub shares: Digest,
    pub keys: Digest,
    pub plants: Digest,
    /// Versions of the plants, which an export does not have.
    versions: Digest,
    last_ids: LastIds,
}

impl ContentDigest {
    /// Returns whether a store with these counts and digests holds all of another one. It may have given out more ids before.
    pub(super) fn holds(&self, other: &Self) -> bool {
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
    pub fn add(&mut self, chunk: &Chunk) {
        match chunk {
            Chunk::Total(_) => {}
            Chunk::LastIds(ids) => self.last_ids = *ids,
            Chunk::Users(rows) => self.counts.users += self.users.rows(rows),
            Chunk::Tokens(rows) => self.counts.tokens += self.tokens.rows(rows),
            Chunk::Shares(rows) => self.counts.shares += self.shares.rows(rows),
            Chunk::Keys(rows) => self.counts.keys += self.keys.rows(rows),
            Chunk::Plants(rows) => {
                self.counts.plants += rows.len() as u64;
                self.plants.lines(rows);
                for row in rows {
                    self.versions.hash.update(row.version.to_be_bytes());
                }
            }
        }
    }

    /// Returns the number of plants so far.
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

/// A digest in progress, with a buffer for what is added next.
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

    /// Digests plants, and returns their lines, as an export has them.
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
