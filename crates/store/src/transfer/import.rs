//! Import of plants from JSON lines. A thread reads and validates lines while earlier ones are stored, in batches.
//!
//! When an import stops at a line, all lines before it are stored and none after it. It can be resumed from that line, or
//! repeated from the start with existing plants skipped.

use std::future::pending;
use std::io::{self, BufRead, Read};
use std::pin::pin;
use std::thread;

use tokio::sync::mpsc;

use super::line::{ImportOutcome, ImportResult, ImportRow, LineReader, OnDuplicate, StopReason};
use super::snapshot::TransferProgress;
use super::{postgres, sqlite};
use crate::error::StoreError;
use crate::store::{Database, Store, dispatch};
use plantstore_model::plant::PlantId;
use plantstore_model::user::UserName;

/// Maximum size of a batch in bytes. Like [`ImportInput::batch_plants`], it bounds how long a commit blocks the writes of a server.
const BATCH_BYTES: u64 = 1 << 20;
const BATCHES_WAITING: usize = 3;
/// Maximum length of a line. It is enough for the longest owner, name and tag with every character escaped.
const LINE_MAX_BYTES: usize = 32 * 1024;

/// Byte order mark of UTF-8, with which some programs start a file.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

pub struct ImportInput<R> {
    pub lines: R,
    pub size: Option<u64>,
    /// The owner of all plants, instead of those that the lines name.
    pub owner: Option<UserName>,
    /// Number of the first line to import, from 1.
    pub from_line: u64,
    /// Number of invalid lines after which the import stops.
    pub faults_max: u64,
    /// Maximum number of plants that are stored together.
    pub batch_plants: usize,
}

#[derive(Debug)]
pub enum ImportEvent<'a> {
    Progress(TransferProgress),
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

/// Stores batches of plants while servers write to the same store.
enum Importer {
    Sqlite(sqlite::Importer),
    Postgres(postgres::Importer),
}

impl Importer {
    async fn start(store: &Store) -> Result<Self, StoreError> {
        match &store.database {
            Database::Sqlite(engine) => sqlite::Importer::start(engine).map(Self::Sqlite),
            Database::Postgres(engine) => postgres::Importer::start(engine).await.map(Self::Postgres),
        }
    }

    /// Stores a batch in one commit, and creates missing users. Users whose lists change get new versions. The primary key
    /// of the table alone detects duplicate ids. With [`OnDuplicate::Stop`], the batch ends before the first one.
    async fn put(&mut self, batch: &[ImportRow], on_duplicate: OnDuplicate) -> Result<ImportResult, StoreError> {
        dispatch!(Self: self, importer => importer.put(batch, on_duplicate).await)
    }

    /// Stores the plants before the first one that stops the import.
    async fn store(
        &mut self,
        store: &Store,
        mut batch: &[ImportRow],
        on_duplicate: OnDuplicate,
    ) -> Result<ImportResult, StoreError> {
        let rejected = find_rejected_owner(store, batch).await?;
        if let Some((index, _)) = rejected {
            batch = &batch[..index];
        }
        let result = self.put(batch, on_duplicate).await?;
        let duplicate = batch.get(result.outcomes.len()).map(ImportRow::taken);
        Ok(ImportResult { stop: duplicate.or(rejected.map(|(_, reason)| reason)), ..result })
    }
}

/// Stores the plants of the input until `interrupted` resolves.
pub async fn import(
    store: &Store,
    input: ImportInput<impl BufRead + Send + 'static>,
    on_duplicate: OnDuplicate,
    interrupted: impl Future<Output = ()>,
    on_event: impl FnMut(ImportEvent<'_>),
) -> Result<ImportSummary, StoreError> {
    let mut importer = Importer::start(store).await?;
    Ok(import_with(input, interrupted, on_event, async |batch| importer.store(store, batch, on_duplicate).await).await)
}

/// Validates the input without storing anything.
pub async fn check(
    input: ImportInput<impl BufRead + Send + 'static>,
    on_event: impl FnMut(ImportEvent<'_>),
) -> ImportSummary {
    import_with(input, pending(), on_event, async |batch| {
        Ok(ImportResult { outcomes: vec![ImportOutcome::Stored; batch.len()], ..ImportResult::default() })
    })
    .await
}

/// Validates the input and calls `store` for each batch of plants, until `interrupted` resolves.
pub async fn import_with(
    input: ImportInput<impl BufRead + Send + 'static>,
    interrupted: impl Future<Output = ()>,
    mut on_event: impl FnMut(ImportEvent<'_>),
    mut store: impl AsyncFnMut(&[ImportRow]) -> Result<ImportResult, StoreError>,
) -> ImportSummary {
    let size = input.size.unwrap_or(0);
    let mut summary = ImportSummary { through: input.from_line.saturating_sub(1), ..ImportSummary::default() };
    let mut parsed = parse(input);
    let mut interrupted = pin!(interrupted);
    loop {
        // Checked between two batches only, so that a batch is always stored completely.
        let next = tokio::select! {
            biased;
            () = &mut interrupted => Some(ParserOutput::End(StopReason::Interrupted)),
            next = parsed.recv() => next,
        };
        let stop = match next {
            None => return summary,
            Some(ParserOutput::End(reason)) => Some(reason),
            Some(ParserOutput::Fault(line, reason)) => {
                summary.faulty += 1;
                summary.stop = Some(StopReason::Faults);
                on_event(ImportEvent::Fault { line, reason: &reason });
                None
            }
            Some(ParserOutput::Batch(rows, position)) => match store(&rows).await {
                Ok(result) => {
                    summary.count(&rows, &result, &mut on_event);
                    let plants = summary.stored + summary.same + summary.different;
                    on_event(ImportEvent::Progress(TransferProgress::of(plants, position, size)));
                    result.stop
                }
                Err(error) => Some(StopReason::Store(error)),
            },
        };
        if stop.is_some() {
            return ImportSummary { stop, ..summary };
        }
    }
}

impl ImportSummary {
    fn count(&mut self, rows: &[ImportRow], result: &ImportResult, on_event: &mut impl FnMut(ImportEvent<'_>)) {
        self.new_users += result.new_users;
        let mut all_known = true;
        for (ImportRow { line, owner, plant }, outcome) in rows.iter().zip(&result.outcomes) {
            match outcome {
                ImportOutcome::Stored => self.stored += 1,
                ImportOutcome::Same => self.same += 1,
                ImportOutcome::Different => {
                    self.different += 1;
                    on_event(ImportEvent::Skipped { line: *line, owner, id: plant.id });
                }
                ImportOutcome::Unknown => all_known = false,
            }
            if all_known {
                self.through = *line;
            }
        }
    }
}

/// Finds the first line whose owner does not exist and has a name that is not allowed for new users. Returns its index.
async fn find_rejected_owner(store: &Store, batch: &[ImportRow]) -> Result<Option<(usize, StopReason)>, StoreError> {
    let mut known: Option<&UserName> = None;
    for (index, ImportRow { line, owner, .. }) in batch.iter().enumerate() {
        let Err(fault) = owner.check_new() else { continue };
        if known != Some(owner) && store.find_user(owner).await?.is_none() {
            return Ok(Some((index, StopReason::Rejected { line: *line, reason: format!("`owner`: {fault}") })));
        }
        known = Some(owner);
    }
    Ok(None)
}

enum ParserOutput {
    /// Plants to store together, and the position in the input after them, in bytes.
    Batch(Vec<ImportRow>, u64),
    /// Line number and reason.
    Fault(u64, String),
    /// Ends the import. No output follows.
    End(StopReason),
}

/// Starts a thread that reads and validates the input. It ends with the input, or when the receiver is dropped.
fn parse(input: ImportInput<impl BufRead + Send + 'static>) -> mpsc::Receiver<ParserOutput> {
    let (sender, parsed) = mpsc::channel(BATCHES_WAITING);
    let failed = sender.clone();
    let parser = move || {
        let mut parser = Parser {
            sender,
            reader: LineReader::new(input.owner.clone()),
            batch: Vec::new(),
            batch_plants: input.batch_plants,
            begun: 0,
            position: 0,
            faults: 0,
        };
        // Fails if the receiver is dropped.
        let _ = parser.run(input);
    };
    if let Err(error) = thread::Builder::new().name("parser".to_owned()).spawn(parser) {
        let _ = failed.try_send(ParserOutput::End(StopReason::Input(error)));
    }
    parsed
}

struct Parser {
    sender: mpsc::Sender<ParserOutput>,
    reader: LineReader,
    batch: Vec<ImportRow>,
    batch_plants: usize,
    /// Position in the input before the batch, in bytes.
    begun: u64,
    position: u64,
    faults: u64,
}

/// The receiver was dropped.
struct Disconnected;

impl Parser {
    fn run(&mut self, mut input: ImportInput<impl BufRead>) -> Result<(), Disconnected> {
        for skipped in 1..input.from_line {
            match input.lines.skip_until(b'\n') {
                Err(error) => return self.send(ParserOutput::End(StopReason::Input(error))),
                Ok(0) => return self.send(ParserOutput::End(StopReason::Short { lines: skipped - 1 })),
                Ok(length) => self.position += length as u64,
            }
        }
        let mut line = Vec::new();
        for number in input.from_line.. {
            match next_line(&mut input.lines, &mut line) {
                Err(error) => {
                    self.send_batch()?;
                    return self.send(ParserOutput::End(StopReason::Input(error)));
                }
                Ok(Some(0)) => break,
                Ok(Some(length)) => {
                    self.position += length as u64;
                    self.take(number, &line)?;
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
        match self.reader.read(number, line) {
            Err(reason) => return self.fault(number, reason),
            // Lines after an invalid one are validated, so that all faults are reported, but not stored.
            Ok(_) if self.faults > 0 => {}
            Ok(row) => self.batch.push(row),
        }
        let full = self.batch.len() == self.batch_plants || self.position - self.begun >= BATCH_BYTES;
        if full { self.send_batch() } else { Ok(()) }
    }

    fn fault(&mut self, number: u64, reason: String) -> Result<(), Disconnected> {
        self.send_batch()?;
        self.faults += 1;
        self.send(ParserOutput::Fault(number, reason))
    }

    fn send_batch(&mut self) -> Result<(), Disconnected> {
        self.begun = self.position;
        let rows = std::mem::take(&mut self.batch);
        if rows.is_empty() { Ok(()) } else { self.send(ParserOutput::Batch(rows, self.position)) }
    }

    fn send(&self, parsed: ParserOutput) -> Result<(), Disconnected> {
        self.sender.blocking_send(parsed).map_err(|_| Disconnected)
    }
}

/// Reads the next line and returns its length, 0 at the end of the input; `None` for a line that is too long.
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
