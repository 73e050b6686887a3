//! Lines of JSON into a store. A thread reads and checks them while others are stored, batch by batch.
//!
//! Everything up to the line at which it stops is stored, and nothing after it: whoever goes on from there, or from the start
//! and skips what is there, has lost nothing.

use std::io::{self, BufRead, Read};
use std::pin::pin;
use std::thread;

use tokio::sync::mpsc;

use super::Progress;
use super::line::Reader;
use crate::{Importer, Met, Planting, StoreError};
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

/// Lines to be read.
pub struct Input<R> {
    /// Where they come from.
    pub lines: R,
    /// Bytes there are in all, where that is known.
    pub size: Option<u64>,
    /// The first line that counts, from 1: those before it are passed over.
    pub from_line: u64,
    /// Faulty lines after which it is enough.
    pub faults_max: u64,
}

/// What there is to tell on the way.
#[derive(Debug)]
pub enum Note<'a> {
    /// So far all is well.
    Progress(Progress),
    /// A line cannot be stored.
    Fault {
        /// Which.
        line: u64,
        /// All that is wrong with it.
        why: &'a str,
    },
    /// A line was skipped although it says something else than what is stored.
    Kept {
        /// Which.
        line: u64,
        /// Whose plant it is about.
        owner: &'a UserName,
        /// Which plant.
        id: PlantId,
    },
}

/// What became of the lines.
#[derive(Debug, Default)]
pub struct Summary {
    /// Plants that were stored; or, when they were only checked, that could be.
    pub stored: u64,
    /// Plants that were there already, just so.
    pub same: u64,
    /// Plants that were there already, with another name or tag, and were left so.
    pub different: u64,
    /// Users that were made.
    pub new_users: u64,
    /// Lines with faults.
    pub faulty: u64,
    /// The last line up to which all is stored; the one before the first when there is none.
    pub through: u64,
    /// Why it ended before the last line.
    pub stop: Option<Stop>,
}

/// Why an import ended early.
#[derive(Debug)]
pub enum Stop {
    /// Some lines have faults; nothing from the first of them on was stored.
    Faults,
    /// A plant of that id was there already.
    Taken {
        /// The line that has it.
        line: u64,
        /// Whose it is.
        owner: UserName,
        /// Which plant.
        id: PlantId,
    },
    /// The store failed.
    Store(StoreError),
    /// The input ends before the first line that was to be stored.
    Short {
        /// The lines that it has.
        lines: u64,
    },
    /// The lines could not be read.
    Input(io::Error),
    /// The caller asked for it.
    Interrupted,
}

/// Stores lines, until `interrupted` resolves. Plants that are there already end it, or are skipped.
pub async fn import(
    mut importer: Importer,
    input: Input<impl BufRead + Send + 'static>,
    skip: bool,
    interrupted: impl Future<Output = ()>,
    note: impl FnMut(Note<'_>),
) -> Summary {
    let summary = store(&mut importer, input, skip, interrupted, note).await;
    importer.finish();
    summary
}

async fn store(
    importer: &mut Importer,
    input: Input<impl BufRead + Send + 'static>,
    skip: bool,
    interrupted: impl Future<Output = ()>,
    mut note: impl FnMut(Note<'_>),
) -> Summary {
    let mut interrupted = pin!(interrupted);
    let mut summary = Summary { through: input.from_line.saturating_sub(1), ..Summary::default() };
    let size = input.size;
    let mut parsed = parse(input);
    loop {
        // Looked at between two batches only: one that is being stored is stored.
        let next = tokio::select! {
            biased;
            () = &mut interrupted => {
                summary.stop = Some(Stop::Interrupted);
                return summary;
            }
            next = parsed.recv() => next,
        };
        let Some(parsed) = next else { return summary };
        let batch = match parsed {
            Parsed::Batch(batch) => batch,
            other => {
                summary.end(other, &mut note);
                continue;
            }
        };
        let (batch, rejected) = match split_at_rejected_owner(importer, batch).await {
            Ok(split) => split,
            Err(error) => {
                summary.stop = Some(Stop::Store(error));
                return summary;
            }
        };
        match importer.put(&batch.plantings, !skip).await {
            Err(error) => {
                summary.stop = Some(Stop::Store(error));
                return summary;
            }
            Ok(done) => {
                summary.new_users += done.new_users;
                summary.count(&batch, &done.met, skip, &mut note);
                if matches!(summary.stop, Some(Stop::Taken { .. })) {
                    return summary;
                }
            }
        }
        if let Some(fault) = rejected {
            summary.end(fault, &mut note);
            return summary;
        }
        let plants = summary.stored + summary.same + summary.different;
        note(Note::Progress(Progress::of(plants, batch.bytes, size.unwrap_or(0))));
    }
}

/// Returns the lines before the first whose owner would be a new user with a name that none can have, and the fault of that
/// line. Whether an owner is new is known to the store alone.
async fn split_at_rejected_owner(importer: &Importer, mut batch: Batch) -> Result<(Batch, Option<Parsed>), StoreError> {
    let mut known: Option<&UserName> = None;
    for (place, planting) in batch.plantings.iter().enumerate() {
        let owner = &*planting.owner;
        let Err(fault) = owner.check_new() else { continue };
        if known == Some(owner) || importer.has_user(owner).await? {
            known = Some(owner);
            continue;
        }
        let fault = Parsed::Fault(batch.lines[place], format!("`owner`: {fault}"));
        batch.plantings.truncate(place);
        return Ok((batch, Some(fault)));
    }
    Ok((batch, None))
}

/// Checks lines, and stores none.
pub async fn check(input: Input<impl BufRead + Send + 'static>, mut note: impl FnMut(Note<'_>)) -> Summary {
    let mut summary = Summary::default();
    let size = input.size;
    let mut parsed = parse(input);
    while let Some(parsed) = parsed.recv().await {
        match parsed {
            Parsed::Batch(batch) => {
                summary.stored += batch.plantings.len() as u64;
                note(Note::Progress(Progress::of(summary.stored, batch.bytes, size.unwrap_or(0))));
            }
            other => summary.end(other, &mut note),
        }
    }
    summary
}

impl Summary {
    fn end(&mut self, parsed: Parsed, note: &mut impl FnMut(Note<'_>)) {
        match parsed {
            Parsed::Batch(_) => {}
            Parsed::Fault(line, why) => {
                self.faulty += 1;
                self.stop = Some(Stop::Faults);
                note(Note::Fault { line, why: &why });
            }
            Parsed::Unreadable(error) => self.stop = Some(Stop::Input(error)),
            Parsed::Short(lines) => self.stop = Some(Stop::Short { lines }),
        }
    }

    fn count(&mut self, batch: &Batch, met: &[Met], skip: bool, note: &mut impl FnMut(Note<'_>)) {
        for ((planting, line), met) in batch.plantings.iter().zip(&batch.lines).zip(met) {
            let (owner, id) = (&planting.owner, planting.plant.id);
            match met {
                Met::Nothing => self.stored += 1,
                Met::Same | Met::Different if !skip => {
                    self.stop = Some(Stop::Taken { line: *line, owner: (**owner).clone(), id });
                    return;
                }
                Met::Same => self.same += 1,
                Met::Different => {
                    self.different += 1;
                    note(Note::Kept { line: *line, owner, id });
                }
            }
            self.through = *line;
        }
    }
}

/// Lines that are fit to be stored.
#[derive(Default)]
struct Batch {
    plantings: Vec<Planting>,
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

/// Reads and checks lines on a thread of its own. It ends with the input, or when nobody listens any more.
fn parse(input: Input<impl BufRead + Send + 'static>) -> mpsc::Receiver<Parsed> {
    let (sender, parsed) = mpsc::channel(BATCHES_WAITING);
    let failed = sender.clone();
    let parser = move || {
        let mut parser = Parser { sender, reader: Reader::default(), batch: Batch::default(), begun: 0, faults: 0 };
        // Without anybody to tell, there is nothing to do about it.
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

/// Nobody listens any more.
struct Gone;

impl Parser {
    fn run(&mut self, mut input: Input<impl BufRead>) -> Result<(), Gone> {
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

    fn take(&mut self, number: u64, line: &[u8]) -> Result<(), Gone> {
        let line = if number == 1 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line };
        // A line without anything in it says nothing wrong.
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        match self.reader.read(line) {
            Err(why) => return self.fault(number, why),
            // What comes after a fault is checked, so that all faults are told at once, and not stored.
            Ok(_) if self.faults > 0 => {}
            Ok(planting) => {
                self.batch.plantings.push(planting);
                self.batch.lines.push(number);
            }
        }
        let full = self.batch.plantings.len() == BATCH_PLANTS || self.batch.bytes - self.begun >= BATCH_BYTES as u64;
        if full { self.send_batch() } else { Ok(()) }
    }

    fn fault(&mut self, number: u64, why: String) -> Result<(), Gone> {
        self.send_batch()?;
        self.faults += 1;
        self.send(Parsed::Fault(number, why))
    }

    fn send_batch(&mut self) -> Result<(), Gone> {
        self.begun = self.batch.bytes;
        let next = Batch { bytes: self.begun, ..Batch::default() };
        let batch = std::mem::replace(&mut self.batch, next);
        if batch.plantings.is_empty() { Ok(()) } else { self.send(Parsed::Batch(batch)) }
    }

    fn send(&self, parsed: Parsed) -> Result<(), Gone> {
        self.sender.blocking_send(parsed).map_err(|_| Gone)
    }
}

/// Reads the next line and says how long it is, its end included: 0 after the last; `None` when it is too long, and then it is
/// passed over without being kept.
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
