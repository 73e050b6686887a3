//! Export of plants as JSON lines, in the order of their owners' names and of ids, and digests of rows.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::snapshot::{Snapshot, TransferProgress};
use super::table::{Cell, Chunk, PLANTS};
use crate::error::StoreError;
use plantstore_model::text::Hex;

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

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("reading failed")]
    Store(#[from] StoreError),
    /// The output failed, or its reader has closed it.
    #[error("cannot write")]
    Output(#[from] io::Error),
}

pub async fn export(
    mut from: Snapshot,
    output: &mut impl Write,
    mut progress: impl FnMut(TransferProgress),
) -> Result<ExportSummary, ExportError> {
    let start = from.start().await?;
    let mut lines = LineWriter::new(output);
    while let Some(chunk) = from.next().await? {
        let plants = lines.write(chunk.rows().map(PlantLine::of))?;
        progress(TransferProgress::of(plants, plants, start.plants));
    }
    Ok(ExportSummary { users: start.users, ..lines.finish()? })
}

/// Writes lines of plants, counts them and computes their digest.
pub struct LineWriter<'a, W> {
    output: &'a mut W,
    lines: RowHasher,
    owners: u64,
    last_owner: String,
}

impl<'a, W: Write> LineWriter<'a, W> {
    pub fn new(output: &'a mut W) -> Self {
        Self { output, lines: RowHasher::default(), owners: 0, last_owner: String::new() }
    }

    /// Writes some plants, and returns the number of all so far. Those of an owner must be consecutive.
    pub fn write<'p>(&mut self, plants: impl Iterator<Item = PlantLine<'p>>) -> Result<u64, ExportError> {
        let lines = self.lines.add_lines(plants.inspect(|plant| {
            if plant.owner != self.last_owner {
                plant.owner.clone_into(&mut self.last_owner);
                self.owners += 1;
            }
        }));
        self.output.write_all(lines)?;
        Ok(self.lines.rows)
    }

    /// Returns the summary of all lines. Its users are those with plants.
    pub fn finish(self) -> Result<ExportSummary, ExportError> {
        self.output.flush()?;
        let Self { lines, owners, .. } = self;
        Ok(ExportSummary { plants: lines.rows, owners, users: owners, digest: lines.finish() })
    }
}

#[derive(Serialize)]
pub struct PlantLine<'a> {
    pub owner: &'a str,
    pub id: i64,
    pub name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<&'a str>,
}

impl<'a> PlantLine<'a> {
    fn of(row: &'a [Cell]) -> Self {
        Self {
            owner: row[2].text().unwrap_or_default(),
            id: row[1].integer(),
            name: row[3].text().unwrap_or_default(),
            tag: row[4].text(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(formatter)
    }
}

/// Incremental digest of rows, with a buffer for those that are added next.
#[derive(Default)]
pub(super) struct RowHasher {
    pub(super) rows: u64,
    hash: Sha256,
    buffer: Vec<u8>,
}

impl RowHasher {
    /// Adds rows: plants as their lines in an export, others with all their values.
    pub(super) fn add(&mut self, chunk: &Chunk) {
        if chunk.table.name == PLANTS.name {
            self.add_lines(chunk.rows().map(PlantLine::of));
        } else {
            self.add_values(chunk, |row| row);
        }
    }

    /// Adds lines of plants, and returns their text.
    fn add_lines<'p>(&mut self, plants: impl Iterator<Item = PlantLine<'p>>) -> &[u8] {
        self.buffer.clear();
        for plant in plants {
            self.rows += 1;
            serde_json::to_writer(&mut self.buffer, &plant).expect("serialization to memory succeeds");
            self.buffer.push(b'\n');
        }
        self.hash.update(&self.buffer);
        &self.buffer
    }

    pub(super) fn add_values(&mut self, chunk: &Chunk, values: fn(&[Cell]) -> &[Cell]) {
        self.buffer.clear();
        for row in chunk.rows() {
            self.rows += 1;
            for cell in values(row) {
                cell.write(&mut self.buffer);
            }
        }
        self.hash.update(&self.buffer);
    }

    pub(super) fn finish(self) -> Digest {
        Digest(self.hash.finalize().into())
    }
}
