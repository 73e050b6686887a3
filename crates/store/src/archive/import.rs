//! Lines of JSON into a store. A thread reads and checks them while others are stored, batch by batch.
//!
//! Everything up to the line at which it stops is stored, and nothing after it: an import that goes on from there, or from the
//! start and skips what is there, loses nothing.

use std::io::{self, BufRead, Read};
use std::pin::pin;
use std::thread;

use tokio::sync::mpsc;

use super::line::Reader;
use super::progress::Progress;
use crate::bulk::Importer;
use crate::error::StoreError;
use crate::transfer::{ImportOutcome, ImportRow};
use plantstore_model::plant::PlantId;
use plantstore_model::user::UserName;

/// Plants in one commit at the most, and bytes of lines after which it ends: a server's writes wait for one of ours.
const BATCH_PLANTS: usize = 4_096;
const BATCH_BYTES: usize = 1 << 20;
/// Batches that wait to be stored.
const BATCHES_WAITING: usize = 3;
/// The longest line: with room for the longest plant of the longest owner, even if each of their characters is escaped.
const LINE_MAX_BYTES: usize = 32 * 1024;

/// Some programs start a file of UTF-8 with it.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Lines to be imported.
pub struct ImportInput<R> {
    pub lines: R,
    /// Bytes in all, where that is known.
    pub size: Option<u64>,
    /// The first line that counts, from 1: those before it are passed over.
    pub from_line: u64,
    /// Faulty lines after which it is enough.
    pub faults_max: u64,
}

/// Events of an import, as callers see them.
#[derive(Debug)]
pub enum ImportEvent<'a> {
    Progress(Progress),
    /// A line cannot be stored, for all these reasons.
    Fault {
        line: u64,
        reason: &'a str,
    },
    /// A line was skipped although it says something else than what is stored.
    Skipped {
        line: u64,
        owner: &'a UserName,
        id: PlantId,
    },
}

/// Result of an import.
#[derive(Debug, Default)]
pub struct ImportSummary {
    /// Plants that were stored; or, when they were only checked, that could be.
    pub stored: u64,
    /// Plants that were there already, just so.
    pub same: u64,
    /// Plants that were there already, with another name or tag, and were left so.
    pub different: u64,
    pub new_users: u64,
    pub faulty: u64,
    /// The last line up to which all is stored; the one before the first when there is none.
    pub through: u64,
    /// The reason why it ended before the last line.
    pub stop: Option<StopReason>,
}

/// Reasons why an import ended early.
#[derive(Debug)]
pub enum StopReason {
    /// Some lines have faults; nothing from the first of them on was stored.
    Faults,
    /// A plant of that id was there already.
    Taken {
        line: u64,
        owner: UserName,
        id: PlantId,
    },
    Store(StoreError),
    /// The input ends before the first line that was to be stored.
    Short {
        lines: u64,
    },
    Input(io::Error),
    Interrupted,
}

/// Stores lines, until `interrupted` resolves. Plants that are there already end it, or are skipped.
pub async fn import(
    mut importer: Importer,
    input: ImportInput<impl BufRead + Send + 'static>,
    skip: bool,
    interrupted: impl Future<Output = ()>,
    on_event: impl FnMut(ImportEvent<'_>),
) -> ImportSummary {
    let summary = store(&mut importer, input, skip, interrupted, on_event).await;
    importer.finish();
    summary
}

async fn store(
    importer: &mut Importer,
    input: ImportInput<impl BufRead + Send + 'static>,
    skip: bool,
    interrupted: impl Future<Output = ()>,
    mut on_event: impl FnMut(ImportEvent<'_>),
) -> ImportSummary {
    let mut interrupted = pin!(interrupted);
    let mut summary = ImportSummary { through: input.from_line.saturating_sub(1), ..ImportSummary::default() };
    let size = input.size;
    let mut parsed = parse(input);
    loop {
        // Looked at between two batches only: one that is being stored is stored.
        let next = tokio::select! {
            biased;
            () = &mut interrupted => {
                summary.stop = Some(StopReason::Interrupted);
                return summary;
            }
            next = parsed.recv() => next,
        };
        let Some(parsed) = next else { return summary };
        let batch = match parsed {
            Parsed::Batch(batch) => batch,
            other => {
                summary.end(other, &mut on_event);
                continue;
            }
        };
        let (batch, rejected) = match split_at_rejected_owner(importer, batch).await {
            Ok(split) => split,
            Err(error) => {
                summary.stop = Some(StopReason::Store(error));
                return summary;
            }
        };
        match importer.put(&batch.rows, !skip).await {
            Err(error) => {
                summary.stop = Some(StopReason::Store(error));
                return summary;
            }
            Ok(done) => {
                summary.new_users += done.new_users;
                summary.count(&batch, &done.outcomes, skip, &mut on_event);
                if matches!(summary.stop, Some(StopReason::Taken { .. })) {
                    return summary;
                }
            }
        }
        if let Some(fault) = rejected {
            summary.end(fault, &mut on_event);
            return summary;
        }
        let plants = summary.stored + summary.same + summary.different;
        on_event(ImportEvent::Progress(Progress::of(plants, batch.bytes, size.unwrap_or(0))));
    }
}

/// Returns the lines before the first whose owner would be a new user with a name that none can have, and the fault of that
/// line. Whether an owner is new is known to the store alone.
async fn split_at_rejected_owner(importer: &Importer, mut batch: Batch) -> Result<(Batch, Option<Parsed>), StoreError> {
    let mut known: Option<&UserName> = None;
    for (place, row) in batch.rows.iter().enumerate() {
        let owner = &*row.owner;
        let Err(fault) = owner.check_new() else { continue };
        if known == Some(owner) || importer.has_user(owner).await? {
            known = Some(owner);
            continue;
        }
        let fault = Parsed::Fault(batch.lines[place], format!("`owner`: {fault}"));
        batch.rows.truncate(place);
        return Ok((batch, Some(fault)));
    }
    Ok((batch, None))
}

/// Checks lines, and stores none.
pub async fn check(
    input: ImportInput<impl BufRead + Send + 'static>,
    mut on_event: impl FnMut(ImportEvent<'_>),
) -> ImportSummary {
    let mut summary = ImportSummary::default();
    let size = input.size;
    let mut parsed = parse(input);
    while let Some(parsed) = parsed.recv().await {
        match parsed {
            Parsed::Batch(batch) => {
                summary.stored += batch.rows.len() as u64;
                on_event(ImportEvent::Progress(Progress::of(summary.stored, batch.bytes, size.unwrap_or(0))));
            }
            other => summary.end(other, &mut on_event),
        }
    }
    summary
}

impl ImportSummary {
    fn end(&mut self, parsed: Parsed, on_event: &mut impl FnMut(ImportEvent<'_>)) {
        match parsed {
            Parsed::Batch(_) => {}
            Parsed::Fault(line, reason) => {
                self.faulty += 1;
                self.stop = Some(StopReason::Faults);
                on_event(ImportEvent::Fault { line, reason: &reason });
            }
            Parsed::Unreadable(error) => self.stop = Some(StopReason::Input(error)),
            Parsed::Short(lines) => self.stop = Some(StopReason::Short { lines }),
        }
    }

    fn count(
        &mut self,
        batch: &Batch,
        outcomes: &[ImportOutcome],
        skip: bool,
        on_event: &mut impl FnMut(ImportEvent<'_>),
    ) {
        for ((row, line), outcome) in batch.rows.iter().zip(&batch.lines).zip(outcomes) {
            let (owner, id) = (&row.owner, row.plant.id);
            match outcome {
                ImportOutcome::Stored => self.stored += 1,
                ImportOutcome::Same | ImportOutcome::Different if !skip => {
                    self.stop = Some(StopReason::Taken { line: *line, owner: (**owner).clone(), id });
                    return;
                }
                ImportOutcome::Same => self.same += 1,
                ImportOutcome::Different => {
                    self.different += 1;
                    on_event(ImportEvent::Skipped { line: *line, owner, id });
                }
            }
            self.through = *line;
        }
    }
}

/// Lines that are fit to be stored.
#[derive(Default)]
struct Batch {
    rows: Vec<ImportRow>,
    /// The number of each one's line.
    lines: Vec<u64>,
    /// Bytes of the input up to its end.
    bytes: u64,
}

enum Parsed {
    Batch(Batch),
    Fault(u64, String),
    Unreadable(io::Error),
    Short(u64),
}

/// Reads and checks lines on a thread of its own. It ends with the input, or when the import stops receiving.
fn parse(input: ImportInput<impl BufRead + Send + 'static>) -> mpsc::Receiver<Parsed> {
    let (sender, parsed) = mpsc::channel(BATCHES_WAITING);
    let failed = sender.clone();
    let parser = move || {
        let mut parser = Parser { sender, reader: Reader::default(), batch: Batch::default(), begun: 0, faults: 0 };
        // Without a receiver, there is nothing to do about it.
        let _ = parser.run(input);
    };
    if let Err(error) = thread::Builder::new().name("parser".to_owned()).spawn(parser) {
        let _ = failed.try_send(Parsed::Unreadable(error));
    }
    parsed
}

struct Parser {
    sender: mpsc::Sender<Parsed>,
    reader: Reader,
    batch: Batch,
    /// Bytes of the input up to where the batch begins.
    begun: u64,
    faults: u64,
}

/// The import has stopped receiving.
struct Disconnected;

impl Parser {
    fn run(&mut self, mut input: ImportInput<impl BufRead>) -> Result<(), Disconnected> {
        let mut line = Vec::new();
        for number in 1.. {
            let read = if number < input.from_line {
                input.lines.skip_until(b'\n').map(|length| Some((length, false)))
            } else {
                next_line(&mut input.lines, &mut line).map(|length| length.map(|length| (length, true)))
            };
            match read {
                Err(error) => {
                    self.send_batch()?;
                    return self.send(Parsed::Unreadable(error));
                }
                Ok(Some((0, _))) if number < input.from_line => return self.send(Parsed::Short(number - 1)),
                Ok(Some((0, _))) => break,
                Ok(Some((length, counts))) => {
                    self.batch.bytes += length as u64;
                    if counts {
                        self.take(number, &line)?;
                    }
                }
                Ok(None) => self.fault(number, format!("it is longer than {LINE_MAX_BYTES} bytes"))?,
            }
            if self.faults >= input.faults_max {
                break;
            }
        }
        self.send_batch()
    }

    fn take(&mut self, number: u64, line: &[u8]) -> Result<(), Disconnected> {
        let line = if number == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line };
        // A line without anything in it says nothing wrong.
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        match self.reader.read(line) {
            Err(reason) => return self.fault(number, reason),
            // What comes after a fault is checked, so that all faults are reported at once, and not stored.
            Ok(_) if self.faults > 0 => {}
            Ok(row) => {
                self.batch.rows.push(row);
                self.batch.lines.push(number);
            }
        }
        let full = self.batch.rows.len() == BATCH_PLANTS || self.batch.bytes - self.begun >= BATCH_BYTES as u64;
        if full { self.send_batch() } else { Ok(()) }
    }

    fn fault(&mut self, number: u64, reason: String) -> Result<(), Disconnected> {
        self.send_batch()?;
        self.faults += 1;
        self.send(Parsed::Fault(number, reason))
    }

    fn send_batch(&mut self) -> Result<(), Disconnected> {
        self.begun = self.batch.bytes;
        let next = Batch { bytes: self.begun, ..Batch::default() };
        let batch = std::mem::replace(&mut self.batch, next);
        if batch.rows.is_empty() { Ok(()) } else { self.send(Parsed::Batch(batch)) }
    }

    fn send(&self, parsed: Parsed) -> Result<(), Disconnected> {
        self.sender.blocking_send(parsed).map_err(|_| Disconnected)
    }
}

/// Reads the next line and returns its length, its end included: 0 after the last; `None` when it is too long, and then it is
/// skipped.
fn next_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<usize>> {
    line.clear();
    let length = lines.take(LINE_MAX_BYTES as u64 + 1).read_until(b'\n', line)?;
    if length <= LINE_MAX_BYTES {
        return Ok(Some(length));
    }
    if !line.ends_with(b"\n") {
        lines.skip_until(b'\n')?;
    }
    Ok(None)
}
