//! Logs: one event a line on standard error, for people on a terminal and as JSON otherwise.
//!
//! Lines are buffered in memory and written by a thread of their own, so that a request never waits for the reader of the
//! log; the writer of an error waits for a moment, because the process may end with it. Below the level of a warning only events
//! of this workspace are logged: what other crates log of headers and bodies never reaches the log.

use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::panic::PanicHookInfo;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Bytes that may wait to be written; past that, lines are dropped and counted.
const BACKLOG_MAX: usize = 8 << 20;
/// Longest wait for the log after an error, and at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long lines gather before they are written.
const GATHER: Duration = Duration::from_millis(50);

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For reading on a terminal.
    Human,
    /// One JSON object a line.
    Json,
}

/// Starts logging for the whole process. Keep the guard: dropping it writes what is still waiting.
pub fn start(format: Format, level: Level) -> Guard {
    let sink = Arc::new(Sink::new(format));
    let writing = Arc::clone(&sink);
    // Without the thread there is no log; the service itself does not depend on it.
    let _ = thread::Builder::new().name("log".to_owned()).spawn(move || writing.write_forever());
    let lines = Lines { sink: Arc::clone(&sink), level };
    // Fails only when logging was started before, in which case that goes on.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines));
    std::panic::set_hook(Box::new(log_panic));
    Guard(sink)
}

/// Waits, for a while, until all lines are written when dropped.
pub struct Guard(Arc<Sink>);

impl Guard {
    /// Returns a function for the number of lines that were dropped because the log was not read.
    pub fn dropped(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let sink = Arc::clone(&self.0);
        move || sink.waiting().dropped_in_all
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.wait_until_written();
    }
}

/// A panic is logged by its place alone: its message may quote what it was working on.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    // A literal message quotes nothing.
    let message = panic.payload().downcast_ref::<&'static str>().copied().unwrap_or("(message withheld)");
    tracing::error!(location, reason = message, "panic");
}

/// Where lines wait for the one thread that writes them.
struct Sink {
    format: Format,
    waiting: Mutex<Waiting>,
    more: Condvar,
    written: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    /// Since the last report of them.
    dropped: u64,
    dropped_in_all: u64,
    /// A thread waits for the lines to be written.
    urgent: bool,
    /// Lines are being written at the moment.
    writing: bool,
    /// The log is not read: no thread waits for it until it moves again.
    stuck: bool,
}

impl Sink {
    fn new(format: Format) -> Self {
        Self { format, waiting: Mutex::default(), more: Condvar::new(), written: Condvar::new() }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &str) {
        let mut waiting = self.waiting();
        if waiting.lines.len() + line.len() > BACKLOG_MAX {
            waiting.dropped += 1;
            waiting.dropped_in_all += 1;
            return;
        }
        if waiting.lines.is_empty() {
            self.more.notify_one();
        }
        waiting.lines.extend_from_slice(line.as_bytes());
    }

    /// Waits until all lines are written, but not for long: a log that is not read must not stop the service.
    fn wait_until_written(&self) {
        let mut waiting = self.waiting();
        if waiting.stuck {
            return;
        }
        waiting.urgent = true;
        self.more.notify_one();
        let unwritten = |waiting: &mut Waiting| waiting.writing || !waiting.lines.is_empty();
        let waited = self.written.wait_timeout_while(waiting, FLUSH_TIMEOUT, unwritten);
        let (mut waiting, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        waiting.stuck = timeout.timed_out();
    }

    fn write_forever(&self) {
        let mut waiting = self.waiting();
        loop {
            let woken = self.more.wait_while(waiting, |waiting| waiting.lines.is_empty());
            let woken = woken.unwrap_or_else(PoisonError::into_inner);
            // What comes in the next moment shares the write.
            let gathered = self.more.wait_timeout_while(woken, GATHER, |waiting| !waiting.urgent);
            waiting = gathered.unwrap_or_else(PoisonError::into_inner).0;
            let mut lines = std::mem::take(&mut waiting.lines);
            let dropped = std::mem::take(&mut waiting.dropped);
            waiting.writing = true;
            drop(waiting);
            if dropped > 0 {
                lines.extend_from_slice(self.note_of_dropped(dropped).as_bytes());
            }
            // There is no other place to report that the log cannot be written.
            let _ = io::stderr().lock().write_all(&lines);
            waiting = self.waiting();
            waiting.writing = false;
            waiting.stuck = false;
            waiting.urgent = false;
            self.written.notify_all();
        }
    }

    fn note_of_dropped(&self, count: u64) -> String {
        match self.format {
            Format::Json => format!("{{\"level\":\"WARN\",\"message\":\"log lines dropped\",\"count\":{count}}}\n"),
            Format::Human => format!("WARN log lines dropped count={count}\n"),
        }
    }
}

struct Lines {
    sink: Arc<Sink>,
    level: Level,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _context: Context<'_, S>) -> bool {
        let ours = metadata.target().starts_with("plantstore");
        *metadata.level() <= if ours { self.level } else { Level::WARN }
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        thread_local! {
            /// One line at a time is put together on a thread: its memory is kept for the next.
            static LINE: RefCell<String> = RefCell::default();
        }
        let level = *event.metadata().level();
        let write = |line: &mut String| {
            line.clear();
            let mut fields = Fields { format: self.sink.format, line };
            fields.begin(level);
            event.record(&mut fields);
            fields.end();
            self.sink.push(line);
        };
        LINE.with(|line| match line.try_borrow_mut() {
            Ok(mut line) => write(&mut line),
            // A value that is being written logs something itself.
            Err(_) => write(&mut String::new()),
        });
        // The process may be about to end.
        if level == Level::ERROR {
            self.sink.wait_until_written();
        }
    }
}

/// Writes the fields of an event behind each other. Events have their message first, as `tracing` hands it over.
struct Fields<'a> {
    format: Format,
    line: &'a mut String,
}

impl Fields<'_> {
    fn begin(&mut self, level: Level) {
        let now = Timestamp::now();
        match self.format {
            Format::Json => self.write(format_args!(r#"{{"time":"{now:.3}","level":"{level}""#)),
            Format::Human => self.write(format_args!("{now:.3} {level:>5}")),
        }
    }

    fn end(&mut self) {
        self.line.push_str(if self.format == Format::Json { "}\n" } else { "\n" });
    }

    fn name(&mut self, field: &Field) {
        match self.format {
            Format::Json => self.line.push_str(",\""),
            Format::Human => self.line.push(' '),
        }
        self.line.push_str(field.name());
        self.line.push_str(if self.format == Format::Json { "\":" } else { "=" });
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.line.write_fmt(text);
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" && self.format == Format::Human {
            self.write(format_args!(" {value:?}"));
            return;
        }
        self.name(field);
        self.line.push('"');
        let _ = write!(Escaped(self.line), "{value:?}");
        self.line.push('"');
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.name(field);
        self.line.push('"');
        let _ = Escaped(self.line).write_str(value);
        self.line.push('"');
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.name(field);
        self.write(format_args!("{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.name(field);
        self.write(format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.name(field);
        self.line.push_str(if value { "true" } else { "false" });
    }
}

/// Escapes text for a JSON string: no line break and no control character reaches a terminal either.
struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if !text.contains(|character: char| matches!(character, '"' | '\\') || character.is_control()) {
            self.0.push_str(text);
            return Ok(());
        }
        for character in text.chars() {
            match character {
                '"' => self.0.push_str("\\\""),
                '\\' => self.0.push_str("\\\\"),
                '\n' => self.0.push_str("\\n"),
                control if control.is_control() => write!(self.0, "\\u{:04x}", u32::from(control))?,
                plain => self.0.push(plain),
            }
        }
        Ok(())
    }
}
