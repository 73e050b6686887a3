//! Export of plants as JSON lines, in the order of their owners' names and of ids, and digests of rows.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::snapshot::{Snapshot, TransferProgress};
use super::table::{Cell, Chunk, PLANTS};
use crate::error::StoreError;
use plantstore_model::text::Hex;

/// Result of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportSummary {
    pub plants: u64,
    /// Users with plants.
    pub owners: u64,
    /// Users in the selection.
    pub users: u64,
    /// Digest of the whole output.
    pub digest: Digest,
}

/// Errors of an export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("reading failed")]
    Store(#[from] StoreError),
    /// The output failed, or its reader has closed it.
    #[error("cannot write")]
    Output(#[from] io::Error),
}

/// Writes the plants of a snapshot to `output`.
pub async fn export(
    mut from: Snapshot,
    output: &mut impl Write,
    mut progress: impl FnMut(TransferProgress),
) -> Result<ExportSummary, ExportError> {
    let start = from.start().await?;
    let mut hasher = TableHasher::default();
    let mut owners = 0;
    let mut last_owner = None;
    while let Some(chunk) = from.next().await? {
        output.write_all(hasher.add(&chunk))?;
        for row in chunk.rows() {
            // The plants of an owner are consecutive.
            let owner = Some(row[0].integer());
            owners += u64::from(owner != last_owner);
            last_owner = owner;
        }
        progress(TransferProgress::of(hasher.rows, hasher.rows, start.plants));
    }
    output.flush()?;
    Ok(ExportSummary { plants: hasher.rows, owners, users: start.users, digest: hasher.finish() })
}

#[derive(Serialize)]
struct PlantLine<'a> {
    owner: &'a str,
    id: i64,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<&'a str>,
}

/// Appends the line of a plant.
fn write_line(buffer: &mut Vec<u8>, plant: &[Cell]) {
    let [_, id, owner, name, tag, _] = plant else { return };
    let line = PlantLine {
        owner: owner.text().unwrap_or_default(),
        id: id.integer(),
        name: name.text().unwrap_or_default(),
        tag: tag.text(),
    };
    serde_json::to_writer(&mut *buffer, &line).expect("serialization to memory succeeds");
    buffer.push(b'\n');
}

/// A SHA-256 digest, displayed in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(formatter)
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
            write_line(&mut self.buffer, row);
        }
        self.hash_buffer(chunk)
    }

    pub(super) fn add_values(&mut self, chunk: &Chunk, values: fn(&[Cell]) -> &[Cell]) -> &[u8] {
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
