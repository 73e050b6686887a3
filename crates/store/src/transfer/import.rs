//! Import of plants from JSON lines. A thread reads and validates lines while earlier ones are stored, in batches.
//!
//! When an import stops at a line, all lines before it are stored and none after it. It can be resumed from that line, or
//! repeated from the start with existing plants skipped.

use std::io::{self, BufRead, Read};
use std::pin::pin;
use std::thread;

use tokio::sync::mpsc;

use super::line::{ImportOutcome, ImportResult, ImportRow, LineReader};
use super::progress::TransferProgress;
use super::{postgres, sqlite};
use crate::error::StoreError;
use crate::store::Store;
use plantstore_model::plant::PlantId;
use plantstore_model::user::UserName;

/// Maximum number of plants and bytes in one commit. They bound how long a commit blocks the writes of a server.
const BATCH_PLANTS: usize = 4_096;
const BATCH_BYTES: usize = 1 << 20;
/// Maximum number of batches that wait to be stored.
const BATCHES_WAITING: usize = 3;
/// Maximum length of a line. It is enough for the longest owner, name and tag with every character escaped.
const LINE_MAX_BYTES: usize = 32 * 1024;

/// Byte order mark of UTF-8, with which some programs start a file.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The input of an import.
pub struct ImportInput<R> {
    pub lines: R,
    /// Size in bytes, if it is known.
    pub size: Option<u64>,
    /// Number of the first line to import, from 1.
    pub from_line: u64,
    /// Number of invalid lines after which the import stops.
    pub faults_max: u64,
}

/// Events that an import reports to its caller.
#[derive(Debug)]
pub enum ImportEvent<'a> {
    Progress(TransferProgress),
    /// A line is invalid.
    Fault {
        line: u64,
        reason: &'a str,
    },
    /// A line was skipped because the plant exists with a different name or tag.
    Skipped {
        line: u64,
        owner: &'a UserName,
        id: PlantId,
    },
}

/// Result of an import.
#[derive(Debug, Default)]
pub struct ImportSummary {
    /// Stored plants; valid plants if nothing is stored.
    pub stored: u64,
    /// Plants that existed already with the same name and tag.
    pub same: u64,
    /// Plants that existed already with a different name or tag, and are unchanged.
    pub different: u64,
    pub new_users: u64,
    pub faulty: u64,
    /// Number of the last line up to which everything is stored; the one before the first line if there is none.
    pub through: u64,
    pub stop: Option<StopReason>,
}

/// Reasons why an import ended early.
#[derive(Debug)]
pub enum StopReason {
    /// Some lines are invalid. Nothing from the first of them on is stored.
    Faults,
    /// A plant with this id exists already.
    Taken {
        line: u64,
        owner: UserName,
        id: PlantId,
    },
    Store(StoreError),
    /// The input has fewer lines than `from_line`.
    Short {
        lines: u64,
    },
    Input(io::Error),
    Interrupted,
}

/// Stores batches of plants while servers write to the same store.
enum Importer {
    Sqlite(sqlite::Importer),
    Postgres(postgres::Importer),
}

impl Importer {
    async fn start(store: &Store) -> Result<Self, StoreError> {
        match store {
            Store::Sqlite(engine) => sqlite::Importer::start(engine).map(Self::Sqlite),
            Store::Postgres(engine) => postgres::Importer::start(engine).await.map(Self::Postgres),
        }
    }

    /// Stores a batch in one commit, and creates missing users. Users whose lists change get new versions. The primary key
    /// of the table alone detects duplicate ids. With `stop`, the first duplicate ends the batch.
    async fn put(&mut self, batch: &[ImportRow], stop: bool) -> Result<ImportResult, StoreError> {
        match self {
            Self::Sqlite(importer) => importer.put(batch, stop).await,
            Self::Postgres(importer) => importer.put(batch, stop).await,
        }
    }

    /// Stops the threads of the importer. All stored batches are already durable.
    fn finish(self) {
        match self {
            Self::Sqlite(importer) => importer.finish(),
            // Dropping it closes the connection.
            Self::Postgres(_) => {}
        }
    }
}

/// Stores the plants of the input until `interrupted` resolves. An existing plant stops the import, unless `skip` is set.
pub async fn import(
    store: &Store,
    input: ImportInput<impl BufRead + Send + 'static>,
    skip: bool,
    interrupted: impl Future<Output = ()>,
    on_event: impl FnMut(ImportEvent<'_>),
) -> Result<ImportSummary, StoreError> {
    let mut importer = Importer::start(store).await?;
    let summary = import_with(&mut importer, store, input, skip, interrupted, on_event).await;
    importer.finish();
    Ok(summary)
}

async fn import_with(
    importer: &mut Importer,
    store: &Store,
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
        // Checked between two batches only, so that a batch is always stored completely.
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
            ParserOutput::Batch(batch) => batch,
            other => {
                summary.end(other, &mut on_event);
                continue;
            }
        };
        let (batch, rejected) = match split_at_rejected_owner(store, batch).await {
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
        on_event(ImportEvent::Progress(TransferProgress::of(plants, batch.bytes, size.unwrap_or(0))));
    }
}

/// Cuts the batch before the first line whose owner does not exist and has a name that is not allowed for new users. Also
/// returns the fault of that line.
async fn split_at_rejected_owner(store: &Store, mut batch: Batch) -> Result<(Batch, Option<ParserOutput>), StoreError> {
    let mut known: Option<&UserName> = None;
    for (index, row) in batch.rows.iter().enumerate() {
        let owner = &*row.owner;
        let Err(fault) = owner.check_new() else { continue };
        if known == Some(owner) || store.find_user(owner).await?.is_some() {
            known = Some(owner);
            continue;
        }
        let fault = ParserOutput::Fault(batch.lines[index], format!("`owner`: {fault}"));
        batch.rows.truncate(index);
        return Ok((batch, Some(fault)));
    }
    Ok((batch, None))
}

/// Validates the input without storing anything.
pub async fn check(
    input: ImportInput<impl BufRead + Send + 'static>,
    mut on_event: impl FnMut(ImportEvent<'_>),
) -> ImportSummary {
    let mut summary = ImportSummary::default();
    let size = input.size;
    let mut parsed = parse(input);
    while let Some(parsed) = parsed.recv().await {
        match parsed {
            ParserOutput::Batch(batch) => {
                summary.stored += batch.rows.len() as u64;
                on_event(ImportEvent::Progress(TransferProgress::of(summary.stored, batch.bytes, size.unwrap_or(0))));
            }
            other => summary.end(other, &mut on_event),
        }
    }
    summary
}

impl ImportSummary {
    fn end(&mut self, parsed: ParserOutput, on_event: &mut impl FnMut(ImportEvent<'_>)) {
        match parsed {
            ParserOutput::Batch(_) => {}
            ParserOutput::Fault(line, reason) => {
                self.faulty += 1;
                self.stop = Some(StopReason::Faults);
                on_event(ImportEvent::Fault { line, reason: &reason });
            }
            ParserOutput::Unreadable(error) => self.stop = Some(StopReason::Input(error)),
            ParserOutput::Short(lines) => self.stop = Some(StopReason::Short { lines }),
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

/// Valid lines.
#[derive(Default)]
struct Batch {
    rows: Vec<ImportRow>,
    /// Line number of each row.
    lines: Vec<u64>,
    /// Position in the input after the batch, in bytes.
    bytes: u64,
}

enum ParserOutput {
    Batch(Batch),
    Fault(u64, String),
    Unreadable(io::Error),
    Short(u64),
}

/// Starts a thread that reads and validates the input. It ends with the input, or when the receiver is dropped.
fn parse(input: ImportInput<impl BufRead + Send + 'static>) -> mpsc::Receiver<ParserOutput> {
    let (sender, parsed) = mpsc::channel(BATCHES_WAITING);
    let failed = sender.clone();
    let parser = move || {
        let mut parser = Parser { sender, reader: LineReader::default(), batch: Batch::default(), begun: 0, faults: 0 };
        // Fails if the receiver is dropped.
        let _ = parser.run(input);
    };
    if let Err(error) = thread::Builder::new().name("parser".to_owned()).spawn(parser) {
        let _ = failed.try_send(ParserOutput::Unreadable(error));
    }
    parsed
}

struct Parser {
    sender: mpsc::Sender<ParserOutput>,
    reader: LineReader,
    batch: Batch,
    /// Position in the input before the batch, in bytes.
    begun: u64,
    faults: u64,
}

/// The receiver was dropped.
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
                    return self.send(ParserOutput::Unreadable(error));
                }
                Ok(Some((0, _))) if number < input.from_line => return self.send(ParserOutput::Short(number - 1)),
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
        // Empty lines are ignored.
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        match self.reader.read(line) {
            Err(reason) => return self.fault(number, reason),
            // Lines after an invalid one are validated, so that all faults are reported, but not stored.
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
        self.send(ParserOutput::Fault(number, reason))
    }

    fn send_batch(&mut self) -> Result<(), Disconnected> {
        self.begun = self.batch.bytes;
        let next = Batch { bytes: self.begun, ..Batch::default() };
        let batch = std::mem::replace(&mut self.batch, next);
        if batch.rows.is_empty() { Ok(()) } else { self.send(ParserOutput::Batch(batch)) }
    }

    fn send(&self, parsed: ParserOutput) -> Result<(), Disconnected> {
        self.sender.blocking_send(parsed).map_err(|_| Disconnected)
    }
}

/// Reads the next line and returns its length with the line feed: 0 at the end of the input. A line that is too long is
/// skipped and returns `None`.
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
