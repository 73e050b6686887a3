//! Files as a power cut may leave them: computed from the system calls of a program, which strace has recorded.
//!
//! A call that has begun before the cut may have taken effect, wholly or for some sectors. What a finished sync covers has: all
//! calls that had ended before the sync began. Each file and each name is on its own: of the changes of one sector or one name, a later
//! one takes effect only after the earlier ones. Entries of the directory are covered by its own sync.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{Random, wait_for};

/// Smallest unit that a disk writes as a whole.
const SECTOR: usize = 512;
/// Calls that change files, or send responses. All are recorded, so that one that is not modelled is noticed.
const CALLS: &str = "trace=openat,creat,write,writev,pwrite64,pwritev,pwritev2,ftruncate,truncate,fallocate,fsync,fdatasync,\
    syncfs,sync_file_range,rename,renameat,renameat2,unlink,unlinkat,link,linkat,symlink,symlinkat,mkdir,mkdirat,\
    copy_file_range,sendfile,splice,lseek,sendto,sendmsg";

/// Moments at which a call began and ended, as lines of the trace.
#[derive(Clone, Copy)]
struct Span {
    begun: usize,
    ended: usize,
}

struct Change {
    span: Span,
    offset: usize,
    bytes: Vec<u8>,
    /// Length of the file afterwards.
    length: usize,
}

#[derive(Default)]
struct File {
    /// Content before the recording.
    base: Vec<u8>,
    changes: Vec<Change>,
    syncs: Vec<Sync>,
}

struct Sync {
    span: Span,
    /// SQLite requests it with `synchronous=NORMAL`, too.
    is_of_normal: bool,
}

/// Last call of a thread on the write-ahead log.
enum LogCall {
    Header,
    /// Numbers of the file and of the sync.
    Sync(usize, usize),
}

/// State of the program at a moment of the trace.
struct Replay<'a> {
    /// Files by name.
    names: BTreeMap<String, usize>,
    /// Positions of open files by descriptor.
    positions: HashMap<String, usize>,
    /// By thread.
    log_calls: HashMap<&'a str, LogCall>,
}

/// Change of a directory entry: the file that the name has afterwards.
struct Entry {
    span: Span,
    name: String,
    file: Option<usize>,
}

/// State of the calls that no sync covers.
#[derive(Clone, Copy)]
enum Unsynced {
    Lost,
    Written,
    /// Each sector, each length and each name stopped at a call of its own.
    Torn,
}

/// Syncs that the disk ignores, for control experiments.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Syncs {
    Honest,
    /// Those of commits, which SQLite does not request with `synchronous=NORMAL`.
    NotOfCommits,
}

pub(crate) struct RecordedDisk {
    directory: PathBuf,
    files: Vec<File>,
    /// Entries before the recording.
    base: BTreeMap<String, usize>,
    entries: Vec<Entry>,
    directory_syncs: Vec<Span>,
    /// Moments at which the server began to send responses, by request id.
    responses: HashMap<String, usize>,
    /// Number of lines: a cut at this moment is after the end of the program.
    pub(crate) end: usize,
}

/// Returns the command that records the program that follows it; -D lets that keep the process id.
pub(crate) fn recorder(trace: &Path) -> Vec<&str> {
    let trace = trace.to_str().expect("UTF-8");
    vec!["strace", "-D", "-f", "-q", "-y", "-xx", "-s", "100000000", "-a", "0", "-o", trace, "-e", CALLS]
}

impl RecordedDisk {
    /// Returns the directory as it is now, before a recording.
    pub(crate) fn of(directory: &Path) -> Self {
        let mut disk = Self {
            directory: directory.canonicalize().expect("a directory"),
            files: Vec::new(),
            base: BTreeMap::new(),
            entries: Vec::new(),
            directory_syncs: Vec::new(),
            responses: HashMap::new(),
            end: 0,
        };
        for entry in fs::read_dir(directory).expect("a directory") {
            let entry = entry.expect("an entry");
            let base = fs::read(entry.path()).expect("a file");
            disk.base.insert(entry.file_name().into_string().expect("UTF-8"), disk.files.len());
            disk.files.push(File { base, ..File::default() });
        }
        disk
    }

    /// Adds the calls of a trace, once it is complete.
    pub(crate) fn replay(mut self, process: u32, trace: &Path) -> Self {
        let process = process.to_string();
        let trace = wait_for("the end of the trace", || {
            let trace = fs::read_to_string(trace).unwrap_or_default();
            // Short process ids are followed by several spaces.
            let (last, call) = trace.lines().next_back()?.split_once(' ')?;
            (last == process && call.trim_start().starts_with("+++ ")).then_some(trace)
        });
        let mut state = Replay { names: self.base.clone(), positions: HashMap::new(), log_calls: HashMap::new() };
        let mut unfinished: HashMap<&str, (usize, String)> = HashMap::new();
        let mut calls = Vec::new();
        for (ended, line) in trace.lines().enumerate() {
            let (process, call) = line.split_once(' ').expect("a process and a call");
            let call = call.trim_start();
            if let Some(first) = call.strip_suffix(" <unfinished ...>") {
                unfinished.insert(process, (ended, first.to_owned()));
            } else if let Some(rest) = call.strip_prefix("<... ") {
                let (begun, first) = unfinished.remove(process).expect("the beginning of a call");
                let rest = rest.split_once(" resumed>").expect("the rest of a call").1;
                calls.push((Span { begun, ended }, process, first + rest));
            } else if !call.starts_with("+++") && !call.starts_with("---") {
                calls.push((Span { begun: ended, ended }, process, call.to_owned()));
            }
            self.end = ended + 1;
        }
        // Calls that the end of the program has interrupted.
        let interrupted = unfinished.into_iter();
        calls.extend(
            interrupted.map(|(process, (begun, call))| (Span { begun, ended: usize::MAX }, process, call + ") = ?")),
        );
        calls.sort_by_key(|(span, ..)| span.begun);
        for (span, process, call) in calls {
            self.apply(span, process, &call, &mut state);
        }
        self
    }

    fn apply<'a>(&mut self, span: Span, process: &'a str, call: &str, state: &mut Replay<'a>) {
        let Replay { names, positions, log_calls } = state;
        let (function, rest) = call.split_once('(').expect("a function");
        let (arguments, result) = rest.rsplit_once(" = ").expect("a result");
        if result.starts_with('-') || call.contains(">(deleted)") {
            return;
        }
        let arguments = arguments.trim_end_matches(')');
        let strings: Vec<Vec<u8>> = arguments.split('"').skip(1).step_by(2).map(bytes).collect();
        let descriptor = arguments.split(['<', ',']).next().expect("an argument").to_owned();
        let path = arguments.split_once('<').map(|(_, path)| text(path.split_once('>').expect("a path").0));
        let mut numbers = arguments.rsplit(", ").map(|number| number.trim_end_matches(')').parse::<usize>());
        let mut last_number = || numbers.next().expect("an argument").expect("a number");
        let is_sent = path.as_ref().is_some_and(|path| path.starts_with("socket:"));
        match function {
            "write" | "writev" | "sendto" | "sendmsg" if is_sent => {
                let text = String::from_utf8_lossy(&strings.concat()).into_owned();
                let ids = text.split("x-request-id: ").skip(1).filter_map(|rest| rest.lines().next());
                self.responses.extend(ids.map(|id| (id.to_owned(), span.begun)));
            }
            "openat" => {
                let opened = result.split_once('<').map(|(_, path)| text(path.trim_end_matches('>')));
                let Some(name) = opened.and_then(|path| self.name(&path)) else { return };
                positions.insert(result.split('<').next().expect("a descriptor").to_owned(), 0);
                if !names.contains_key(&name) {
                    assert!(arguments.contains("O_CREAT"), "{name} is missing");
                    self.files.push(File::default());
                    self.change_entry(span, name.clone(), Some(self.files.len() - 1), names);
                }
                assert!(!arguments.contains("O_APPEND"), "not modelled: {call}");
                if arguments.contains("O_TRUNC") {
                    self.files[names[&name]].truncate(span, 0);
                }
            }
            "unlink" | "unlinkat" | "rename" | "renameat" | "renameat2" | "link" | "linkat" => {
                let mut paths = strings.iter().map(|path| self.directory.join(text_of(path)));
                let path = paths.next().expect("a path");
                let Some(name) = self.name(path.to_str().expect("UTF-8")) else { return };
                let file = names[&name];
                if let Some(new) = paths.next() {
                    let new = self.name(new.to_str().expect("UTF-8")).expect("a name in the same directory");
                    self.change_entry(span, new, Some(file), names);
                }
                if !function.starts_with("link") {
                    self.change_entry(span, name, None, names);
                }
            }
            _ => {
                let Some(path) = path else {
                    let named = strings.first().map(|path| self.directory.join(String::from_utf8_lossy(path).as_ref()));
                    let is_here = named.is_some_and(|path| path.parent() == Some(&self.directory));
                    return assert!(!is_here, "not modelled: {call}");
                };
                if path == self.directory.to_str().expect("UTF-8") {
                    assert!(["fsync", "fdatasync"].contains(&function), "not modelled: {function}");
                    return self.directory_syncs.push(span);
                }
                // The file of shared memory is computed again at the next start; others are not in the directory or not stored.
                let name = self.name(&path).filter(|name| !name.ends_with("-shm"));
                let Some((name, number)) = name.and_then(|name| names.get_key_value(&name)) else { return };
                let is_log = name.ends_with("-wal");
                let log_call = if is_log || function == "pwrite64" { log_calls.remove(process) } else { None };
                if let (false, Some(LogCall::Sync(log, sync))) = (is_log, &log_call) {
                    // A checkpoint begins.
                    self.files[*log].syncs[*sync].is_of_normal = true;
                }
                let file = &mut self.files[*number];
                match function {
                    "pwrite64" => {
                        let offset = last_number();
                        file.write(span, offset, strings.concat());
                        if is_log && offset == 0 {
                            log_calls.insert(process, LogCall::Header);
                        }
                    }
                    "write" | "writev" => {
                        let position = positions.get_mut(&descriptor).expect("an open file");
                        let bytes = strings.concat();
                        *position += bytes.len();
                        file.write(span, *position - bytes.len(), bytes);
                    }
                    "lseek" => drop(positions.insert(descriptor, result.parse().expect("a position"))),
                    "ftruncate" => file.truncate(span, last_number()),
                    "fsync" | "fdatasync" => {
                        let is_of_normal = !is_log || matches!(log_call, Some(LogCall::Header));
                        file.syncs.push(Sync { span, is_of_normal });
                        if is_log {
                            log_calls.insert(process, LogCall::Sync(*number, file.syncs.len() - 1));
                        }
                    }
                    _ => panic!("not modelled: {function}"),
                }
            }
        }
    }

    /// Returns the name of a file in the directory itself.
    fn name(&self, path: &str) -> Option<String> {
        let name = Path::new(path).strip_prefix(&self.directory).ok()?.to_str()?;
        (!name.is_empty()).then(|| name.to_owned())
    }

    fn change_entry(&mut self, span: Span, name: String, file: Option<usize>, names: &mut BTreeMap<String, usize>) {
        match file {
            Some(file) => drop(names.insert(name.clone(), file)),
            None => drop(names.remove(&name)),
        }
        self.entries.push(Entry { span, name, file });
    }

    /// Returns the moment at which the server began to send the response to this request.
    #[track_caller]
    pub(crate) fn responded_at(&self, request: &str) -> usize {
        *self.responses.get(request).expect("a response")
    }

    /// Returns the number of times that the program has begun a write-ahead log, or has begun one again from its start.
    pub(crate) fn log_headers(&self) -> usize {
        let logs: BTreeSet<usize> =
            self.entries.iter().filter(|entry| entry.name.ends_with("-wal")).filter_map(|entry| entry.file).collect();
        logs.iter().flat_map(|log| &self.files[*log].changes).filter(|change| change.is_header()).count()
    }

    /// Writes the files as a power cut at this moment may leave them into another directory.
    pub(crate) fn cut(&self, moment: usize, syncs: Syncs, random: &mut Random, into: &Path) {
        for (name, file) in self.names_after(moment, random) {
            if !name.ends_with("-shm") {
                let file = &self.files[file];
                let syncs = file.syncs.iter().filter(|sync| syncs == Syncs::Honest || sync.is_of_normal);
                let content = file.content(moment, synced_until(syncs.map(|sync| &sync.span), moment), random);
                fs::write(into.join(name), content).expect("a file");
            }
        }
    }

    /// Returns the files by the names that the directory has after a cut.
    fn names_after(&self, moment: usize, random: &mut Random) -> BTreeMap<String, usize> {
        let unsynced = Unsynced::random(random);
        let synced = synced_until(self.directory_syncs.iter(), moment);
        let begun = self.entries.partition_point(|entry| entry.span.begun < moment);
        let mut names = self.base.clone();
        let mut stopped = BTreeSet::new();
        // A call that changes two names changes both or none.
        for call in self.entries[..begun].chunk_by(|one, next| one.span.begun == next.span.begun) {
            let is_effective = call[0].span.ended < synced
                || call.iter().all(|entry| !stopped.contains(&entry.name)) && unsynced.is_effective(random);
            for Entry { name, file, .. } in call {
                match file {
                    _ if !is_effective => drop(stopped.insert(name)),
                    Some(file) => drop(names.insert(name.clone(), *file)),
                    None => drop(names.remove(name)),
                }
            }
        }
        names
    }
}

/// Returns the moment until which calls had to end so that a finished sync covers them.
fn synced_until<'a>(syncs: impl Iterator<Item = &'a Span>, moment: usize) -> usize {
    syncs.filter(|sync| sync.ended < moment).map(|sync| sync.begun).max().unwrap_or(0)
}

impl Unsynced {
    fn random(random: &mut Random) -> Self {
        [Self::Lost, Self::Written, Self::Torn, Self::Torn][random.below(4)]
    }

    /// Returns true if one change has taken effect.
    fn is_effective(self, random: &mut Random) -> bool {
        match self {
            Self::Lost => false,
            Self::Written => true,
            Self::Torn => random.below(2) == 0,
        }
    }

    /// Returns how many of these changes, which have begun, have taken effect.
    fn effective(self, changes: &[Span], synced: usize, random: &mut Random) -> usize {
        let certain = changes.iter().rposition(|change| change.ended < synced).map_or(0, |last| last + 1);
        match self {
            Self::Lost => certain,
            Self::Written => changes.len(),
            Self::Torn => certain + random.below(changes.len() - certain + 1),
        }
    }
}

impl File {
    fn length(&self) -> usize {
        self.changes.last().map_or(self.base.len(), |change| change.length)
    }

    fn write(&mut self, span: Span, offset: usize, bytes: Vec<u8>) {
        let length = self.length().max(offset + bytes.len());
        self.changes.push(Change { span, offset, bytes, length });
    }

    /// Sets the length. What a longer file had there before is zero if the file grows again.
    fn truncate(&mut self, span: Span, length: usize) {
        let bytes = vec![0; self.length().saturating_sub(length)];
        self.changes.push(Change { span, offset: length, bytes, length });
    }

    fn content(&self, moment: usize, synced: usize, random: &mut Random) -> Vec<u8> {
        let unsynced = Unsynced::random(random);
        let begun = self.changes.partition_point(|change| change.span.begun < moment);
        let changes = &self.changes[..begun];
        let spans: Vec<Span> = changes.iter().map(|change| change.span).collect();
        let length = match unsynced.effective(&spans, synced, random) {
            0 => self.base.len(),
            count => changes[count - 1].length,
        };
        let mut content = self.base.clone();
        content.resize(length.max(content.len()), 0);
        let certain = changes.iter().take_while(|change| change.span.ended < synced).count();
        changes[..certain].iter().for_each(|change| change.write_to(&mut content, 0..usize::MAX));
        let mut by_sector: BTreeMap<usize, Vec<&Change>> = BTreeMap::new();
        for change in &changes[certain..] {
            let end = change.offset + change.bytes.len();
            for sector in change.offset / SECTOR..end.div_ceil(SECTOR) {
                by_sector.entry(sector).or_default().push(change);
            }
        }
        for (sector, changes) in by_sector {
            let spans: Vec<Span> = changes.iter().map(|change| change.span).collect();
            for change in &changes[..unsynced.effective(&spans, synced, random)] {
                change.write_to(&mut content, sector * SECTOR..(sector + 1) * SECTOR);
            }
        }
        content.truncate(length);
        content
    }
}

impl Change {
    /// Returns true for the header of a write-ahead log.
    fn is_header(&self) -> bool {
        self.offset == 0 && self.bytes.len() == 32
    }

    /// Writes the bytes of this range, as far as the content reaches.
    fn write_to(&self, content: &mut [u8], range: Range<usize>) {
        let start = self.offset.max(range.start);
        let end = (self.offset + self.bytes.len()).min(range.end).min(content.len());
        if start < end {
            content[start..end].copy_from_slice(&self.bytes[start - self.offset..end - self.offset]);
        }
    }
}

/// Decodes `\x2f\x74…`.
fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a hexadecimal digit");
    let byte = |pair: &[u8]| u8::try_from(digit(pair[2]) * 16 + digit(pair[3])).expect("a byte");
    hexadecimal.as_bytes().chunks_exact(4).map(byte).collect()
}

fn text(hexadecimal: &str) -> String {
    text_of(&bytes(hexadecimal))
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_owned()).expect("UTF-8")
}
