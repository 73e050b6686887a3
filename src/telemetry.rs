//! Logs: one event a line on standard error, for people on a terminal and as JSON otherwise.
//!
//! Lines are gathered in memory and written by a thread of their own, so that a request never waits for whoever reads the
//! log; warnings and errors are written at once. Only events of this crate are shown below the level of a warning: what
//! other crates say of headers and bodies never reaches the log.

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
        let mut fields = Fields { format: self.format, message: String::new(), rest: String::new() };
        event.record(&mut fields);
        let now = Timestamp::now();
        let level = event.metadata().level();
        let mut line = String::with_capacity(256);
        let written = match self.format {
            Format::Json => writeln!(
                line,
                r#"{{"time":"{now:.3}","level":"{level}","message":{}{}}}"#,
                Quoted(&fields.message),
                fields.rest
            ),
            Format::Human => writeln!(line, "{now:.3} {level:>5} {}{}", fields.message, fields.rest),
        };
        if written.is_ok() {
            self.sink.push(&line, *level <= Level::WARN);
        }
    }
}

struct Fields {
    format: Format,
    message: String,
    rest: String,
}

impl Fields {
    /// `value` as JSON needs it.
    fn add(&mut self, field: &Field, value: impl fmt::Display) {
        // Writing to a string does not fail.
        let _ = match self.format {
            Format::Json => write!(self.rest, r#","{}":{value}"#, field.name()),
            Format::Human => write!(self.rest, " {}={value}", field.name()),
        };
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        self.record_str(field, &text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            self.add(field, Quoted(value));
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }
}

/// A text as a JSON string: no line break and no control character of it reaches the terminal either.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' => formatter.write_str("\\\"")?,
                '\\' => formatter.write_str("\\\\")?,
                '\n' => formatter.write_str("\\n")?,
                control if control.is_control() => write!(formatter, "\\u{:04x}", u32::from(control))?,
                plain => formatter.write_char(plain)?,
            }
        }
        formatter.write_char('"')
    }
}
