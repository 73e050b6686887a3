//! Logs: one event a line on standard error, for people on a terminal and as JSON otherwise.
//!
//! Lines are gathered in memory and written by a thread of their own, so that a request never waits for whoever reads the
//! log; warnings and errors are written at once. Only events of this crate are shown below the level of a warning: what
//! other crates say of headers and bodies never reaches the log.

use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::panic::PanicHookInfo;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Bytes that may wait to be written; past that, lines are dropped and counted.
const BACKLOG_MAX: usize = 8 << 20;
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
    let sink = Arc::new(Sink::default());
    let writing = Arc::clone(&sink);
    // Without the thread, lines are still written by the guard and by every warning.
    let _ = thread::Builder::new().name("log".to_owned()).spawn(move || writing.write_forever());
    let lines = Lines { sink: Arc::clone(&sink), format, level };
    // Fails only when logging was started before, in which case that goes on.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines));
    std::panic::set_hook(Box::new(log_panic));
    Guard(sink)
}

/// Writes what is still waiting when dropped.
pub struct Guard(Arc<Sink>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.flush();
    }
}

/// A panic is logged by its place alone: its message may quote what it was working on.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    // A literal message quotes nothing.
    let message = panic.payload().downcast_ref::<&'static str>().copied().unwrap_or("(message withheld)");
    tracing::error!(place, reason = message, "panic");
}

#[derive(Default)]
struct Sink {
    waiting: Mutex<Waiting>,
    more: Condvar,
    /// Held while writing, so that lines keep their order.
    output: Mutex<()>,
}

#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    dropped: u64,
}

impl Sink {
    fn push(&self, line: &str, at_once: bool) {
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.lines.len() + line.len() > BACKLOG_MAX && !at_once {
                waiting.dropped += 1;
                return;
            }
            if waiting.lines.is_empty() && !at_once {
                self.more.notify_one();
            }
            waiting.lines.extend_from_slice(line.as_bytes());
        }
        if at_once {
            self.flush();
        }
    }

    fn flush(&self) {
        let _order = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let Waiting { mut lines, dropped } =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        if dropped > 0 {
            let note = format!("{{\"level\":\"WARN\",\"message\":\"log lines dropped\",\"count\":{dropped}}}\n");
            lines.extend_from_slice(note.as_bytes());
        }
        // Nobody is left to be told when the log itself cannot be written.
        let _ = io::stderr().lock().write_all(&lines);
    }

    fn write_forever(&self) {
        loop {
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.more.wait_while(waiting, |waiting| waiting.lines.is_empty()));
            // Not a wait for luck: what comes meanwhile shares the write.
            thread::park_timeout(GATHER);
            self.flush();
        }
    }
}

struct Lines {
    sink: Arc<Sink>,
    format: Format,
    level: Level,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _context: Context<'_, S>) -> bool {
        let ours = metadata.target().starts_with(env!("CARGO_CRATE_NAME"));
        *metadata.level() <= if ours { self.level } else { Level::WARN }
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        thread_local! {
            /// One line at a time is put together on a thread: its memory is kept for the next.
            static LINE: RefCell<String> = RefCell::default();
        }
        LINE.with_borrow_mut(|line| {
            line.clear();
            let level = *event.metadata().level();
            let mut fields = Fields { format: self.format, line };
            fields.begin(level);
            event.record(&mut fields);
            fields.end();
            self.sink.push(line, level <= Level::WARN);
        });
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
