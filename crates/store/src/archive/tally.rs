//! Counts and digests of what passes: two stores with the same hold the same.

use std::fmt;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::line;
use crate::{Counts, Numbers, Piece, PlantRecord};

/// A SHA-256, shown in hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// What has passed so far.
#[derive(Default)]
pub struct Tally {
    counts: Counts,
    users: Hasher,
    tokens: Hasher,
    shares: Hasher,
    keys: Hasher,
    plants: Hasher,
    versions: Hasher,
    numbers: Numbers,
}

/// What has passed in all. The digest of each kind is over its rows in their order; that of plants over the very lines that an
/// export writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tallied {
    pub counts: Counts,
    pub users: Digest,
    pub tokens: Digest,
    pub shares: Digest,
    pub keys: Digest,
    pub plants: Digest,
    /// Of the plants, which an export does not show.
    versions: Digest,
    numbers: Numbers,
}

impl Tallied {
    /// Returns whether a store with these counts and digests holds all of another one. It may have given out more numbers before.
    pub(super) fn holds(&self, other: &Self) -> bool {
        let (own, others) = (self.numbers, other.numbers);
        Self { numbers: others, ..*self } == *other && own.user >= others.user && own.token >= others.token
    }
}

impl fmt::Display for Tallied {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { users, tokens, shares, keys, plants } = self.counts;
        write!(
            formatter,
            "{users} users ({}), {tokens} tokens ({}), {shares} shares ({}), {keys} idempotency keys ({}), {plants} plants ({})",
            self.users, self.tokens, self.shares, self.keys, self.plants
        )
    }
}

impl Tally {
    /// Counts and digests a piece.
    pub fn add(&mut self, piece: &Piece) {
        match piece {
            Piece::Total(_) => {}
            Piece::Numbers(numbers) => self.numbers = *numbers,
            Piece::Users(rows) => self.counts.users += self.users.rows(rows),
            Piece::Tokens(rows) => self.counts.tokens += self.tokens.rows(rows),
            Piece::Shares(rows) => self.counts.shares += self.shares.rows(rows),
            Piece::Keys(rows) => self.counts.keys += self.keys.rows(rows),
            Piece::Plants(rows) => {
                self.counts.plants += rows.len() as u64;
                self.plants.lines(rows);
                for row in rows {
                    self.versions.hash.update(row.version.to_be_bytes());
                }
            }
        }
    }

    /// Plants so far.
    pub fn plants(&self) -> u64 {
        self.counts.plants
    }

    /// All of it.
    pub fn finish(self) -> Tallied {
        Tallied {
            counts: self.counts,
            users: self.users.finish(),
            tokens: self.tokens.finish(),
            shares: self.shares.finish(),
            keys: self.keys.finish(),
            plants: self.plants.finish(),
            versions: self.versions.finish(),
            numbers: self.numbers,
        }
    }
}

/// A digest that is under way, and room for what goes into it next.
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

    /// Digests plants; their lines, as an export has them, are there until the next call.
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
