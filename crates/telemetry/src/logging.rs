//! Logging: one event a line on standard error, as text or as JSON.
//!
//! Lines are queued in memory and written by a thread of their own, so that a request never waits for the reader of the
//! log. Only an error waits until it is written, for a limited time, because the process may end with it. Below the level of a
//! warning, only events of this workspace are logged: other crates may log header fields and bodies.

mod text;

use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::panic::PanicHookInfo;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use plantstore_model::text::Escaped;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use self::text::{EscapingWriter, TimeFormatter};

/// Bytes that are queued at most; further lines are dropped and counted.
const QUEUE_MAX: usize = 8 << 20;
/// Bytes of an empty buffer that are kept for the next lines.
const BUFFER_KEPT: usize = 1 << 20;
/// Longest wait for the log after an error, and at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which a line waits for others, to be written together.
const BATCH_DELAY: Duration = Duration::from_millis(50);

/// The log of the process, once it is started.
static SINK: OnceLock<Sink> = OnceLock::new();

/// Target of the events about changes of tokens and shares. They are logged at every level.
pub const AUDIT_LOG: &str = "plantstore::audit";

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Human,
    /// Text for people on a terminal: the time without the date, and of a request only what fits on a line.
    Terminal {
        colours: bool,
    },
    Json,
}

/// Starts logging for the whole process. Dropping the guard writes the lines that are still queued.
pub fn start(format: Format, level: Level) -> Guard {
    let sink = SINK.get_or_init(|| Sink::new(format, level));
    // Without the thread nothing is logged; the service does not depend on it.
    let _ = thread::Builder::new().name("log".to_owned()).spawn(|| sink.write_forever());
    // Fails only if logging was started before; that goes on.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(LogLayer(sink)));
    std::panic::set_hook(Box::new(log_panic));
    Guard(sink)
}

/// When dropped, waits for a limited time until all lines are written.
pub struct Guard(&'static Sink);

impl Guard {
    /// Returns a function that returns the number of dropped lines.
    pub fn dropped(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let sink = self.0;
        move || sink.queue().dropped_total
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.wait_until_written();
    }
}

/// Logs a panic with its location and without a formatted message, which may quote user data.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    // A literal message quotes no data.
    let message = panic.payload().downcast_ref::<&'static str>().copied().unwrap_or("(message withheld)");
    tracing::error!(location, reason = message, "panic");
}

/// The queue of lines, shared with the thread that writes them.
struct Sink {
    format: Format,
    level: Level,
    queue: Mutex<LineQueue>,
    /// Signals that lines were added, or that they became urgent.
    added: Condvar,
    /// Signals that lines were written.
    written: Condvar,
}

#[derive(Default)]
struct LineQueue {
    lines: Vec<u8>,
    /// Lines that were dropped since the log last reported them.
    dropped: u64,
    dropped_total: u64,
    /// Another thread waits until the lines are written.
    urgent: bool,
    writing: bool,
    /// The reader of the log has stopped reading. No thread waits for it until it reads again.
    stuck: bool,
}

impl Sink {
    fn new(format: Format, level: Level) -> Self {
        Self { format, level, queue: Mutex::default(), added: Condvar::new(), written: Condvar::new() }
    }

    fn queue(&self) -> MutexGuard<'_, LineQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the line that `format` writes, which gets the time.
    fn log(&self, format: impl Fn(&str, &mut String)) {
        thread_local! {
            static LINE: RefCell<LineBuffer> = RefCell::default();
        }
        let write = |LineBuffer { line, time }: &mut LineBuffer| {
            line.clear();
            format(time.format(Timestamp::now()), line);
            self.push(line);
        };
        LINE.with(|buffer| match buffer.try_borrow_mut() {
            Ok(mut buffer) => write(&mut buffer),
            // Formatting a value of another event has logged this one.
            Err(_) => write(&mut LineBuffer::default()),
        });
    }

    fn push(&self, line: &str) {
        let mut queue = self.queue();
        if queue.lines.len() + line.len() > QUEUE_MAX {
            queue.dropped += 1;
            queue.dropped_total += 1;
            return;
        }
        if queue.lines.is_empty() {
            self.added.notify_one();
        }
        queue.lines.extend_from_slice(line.as_bytes());
    }

    /// Waits until all lines are written, for a limited time: a log that is not read must not stop the service.
    fn wait_until_written(&self) {
        let mut queue = self.queue();
        if queue.stuck {
            return;
        }
        queue.urgent = true;
        self.added.notify_one();
        let unwritten = |queue: &mut LineQueue| queue.writing || !queue.lines.is_empty();
        let waited = self.written.wait_timeout_while(queue, FLUSH_TIMEOUT, unwritten);
        let (mut queue, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        queue.stuck = timeout.timed_out();
    }

    fn write_forever(&self) {
        // Two buffers take turns, so that no memory is allocated while one is filled.
        let mut spare = Vec::new();
        let mut queue = self.queue();
        loop {
            let woken = self.added.wait_while(queue, |queue| queue.lines.is_empty());
            let woken = woken.unwrap_or_else(PoisonError::into_inner);
            // Lines that follow soon are written together with it.
            let gathered = self.added.wait_timeout_while(woken, BATCH_DELAY, |queue| !queue.urgent);
            queue = gathered.unwrap_or_else(PoisonError::into_inner).0;
            let mut lines = std::mem::replace(&mut queue.lines, spare);
            let dropped = std::mem::take(&mut queue.dropped);
            queue.writing = true;
            drop(queue);
            if dropped > 0 {
                lines.extend_from_slice(self.dropped_line(dropped).as_bytes());
            }
            // There is no other place to report that the log cannot be written.
            let _ = io::stderr().lock().write_all(&lines);
            lines.clear();
            lines.shrink_to(BUFFER_KEPT);
            spare = lines;
            queue = self.queue();
            queue.writing = false;
            queue.stuck = false;
            queue.urgent = false;
            self.written.notify_all();
        }
    }

    fn dropped_line(&self, count: u64) -> String {
        match self.format {
            Format::Json => format!("{{\"level\":\"WARN\",\"message\":\"log lines dropped\",\"count\":{count}}}\n"),
            Format::Human | Format::Terminal { .. } => format!("WARN log lines dropped count={count}\n"),
        }
    }
}

struct LogLayer(&'static Sink);

impl<S: Subscriber> Layer<S> for LogLayer {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _context: Context<'_, S>) -> bool {
        let ours = metadata.target().starts_with("plantstore");
        let level = if ours { self.0.level } else { self.0.level.min(Level::WARN) };
        metadata.target() == AUDIT_LOG || *metadata.level() <= level
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let level = *event.metadata().level();
        self.0.log(|time, line| {
            let mut fields = FieldWriter { format: self.0.format, line };
            fields.begin(time, level);
            event.record(&mut fields);
            fields.end();
        });
        // The process may be about to end.
        if level == Level::ERROR {
            self.0.wait_until_written();
        }
    }
}

/// Buffers of a thread for the line that is being formatted, reused for the next.
#[derive(Default)]
struct LineBuffer {
    line: String,
    time: TimeFormatter,
}

fn time_of_day(time: &str) -> &str {
    time.split(['T', '.']).nth(1).unwrap_or(time)
}

/// Returns the name of a field as JSON has it, with what surrounds it.
macro_rules! name {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}

/// A request whose response has ended. The names of its fields are those in the log, where fields without a value are left out.
pub struct RequestLine<'a> {
    pub request_id: &'a str,
    pub trace_id: Option<String>,
    pub client: IpAddr,
    pub http_version: &'static str,
    pub method: Option<&'a str>,
    pub route: &'static str,
    pub status: Option<u16>,
    pub error: Option<i32>,
    pub user: Option<&'a str>,
    pub token_id: Option<i64>,
    pub duration_us: u64,
    pub bytes: u64,
    pub complete: bool,
}

impl RequestLine<'_> {
    /// Logs the request, on a terminal as a short line: `21:02:11 POST /plants 200 7.8ms gardener`. It is no event of `tracing`,
    /// because there is one for every request, and an event takes twice the instructions.
    pub fn log(&self, level: Level) {
        let Some(sink) = SINK.get().filter(|sink| level <= sink.level) else { return };
        sink.log(|time, line| {
            let is_short = matches!(sink.format, Format::Terminal { .. });
            if let Format::Terminal { colours } = sink.format {
                self.write_short(time_of_day(time), colours, line);
            }
            let mut fields = FieldWriter { format: sink.format, line };
            if !is_short {
                fields.begin(time, level);
                fields.message("request");
            }
            if !is_short || sink.level >= Level::DEBUG {
                self.write_fields(is_short, &mut fields);
            }
            fields.end();
        });
    }

    fn write_short(&self, time: &str, colours: bool, line: &mut String) {
        let status = self.status.map_or_else(|| "-".to_owned(), |status| status.to_string());
        let colour = match self.status {
            Some(..300) => 32,
            Some(..400) => 36,
            Some(..500) => 33,
            _ => 31,
        };
        let status = if colours { format!("\x1b[{colour}m{status}\x1b[0m") } else { status };
        let method = self.method.unwrap_or("-");
        let milliseconds = self.duration_us / 1_000;
        let tenths = self.duration_us % 1_000 / 100;
        let user = Escaped(self.user.unwrap_or_default());
        let _ = write!(line, "{time} {method} {} {status} {milliseconds}.{tenths}ms {user}", self.route);
        line.truncate(line.trim_end().len());
    }

    /// Writes the fields, without those of a short line.
    fn write_fields(&self, is_short: bool, fields: &mut FieldWriter<'_>) {
        fields.plain(name!("request_id"), Some(self.request_id));
        fields.plain(name!("trace_id"), self.trace_id.as_deref());
        fields.address(name!("client"), self.client);
        fields.plain(name!("http_version"), Some(self.http_version));
        if !is_short {
            fields.plain(name!("method"), self.method);
            fields.plain(name!("route"), Some(self.route));
            fields.number(name!("status"), self.status);
        }
        fields.number(name!("error"), self.error);
        fields.text(name!("user"), self.user.filter(|_| !is_short));
        fields.number(name!("token_id"), self.token_id);
        fields.number(name!("duration_us"), Some(self.duration_us).filter(|_| !is_short));
        fields.number(name!("bytes"), Some(self.bytes));
        fields.boolean(name!("complete"), self.complete);
    }
}

/// Writes the fields of a line. The message is the first.
struct FieldWriter<'a> {
    format: Format,
    line: &'a mut String,
}

#[expect(clippy::inline_always, reason = "where they are known, names are copied in a few instructions")]
impl FieldWriter<'_> {
    fn begin(&mut self, time: &str, level: Level) {
        match self.format {
            Format::Json => {
                for text in [r#"{"time":""#, time, r#"","level":""#, level.as_str(), "\""] {
                    self.line.push_str(text);
                }
            }
            Format::Human => self.write(format_args!("{time} {level:>5}")),
            Format::Terminal { .. } => self.write(format_args!("{} {level:>5}", time_of_day(time))),
        }
    }

    fn end(&mut self) {
        self.line.push_str(if self.format == Format::Json { "}\n" } else { "\n" });
    }

    #[inline(always)]
    fn message(&mut self, message: &str) {
        match self.format {
            Format::Json => self.plain(name!("message"), Some(message)),
            Format::Human | Format::Terminal { .. } => self.write(format_args!(" {}", Escaped(message))),
        }
    }

    fn text(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.quoted(name, |line| EscapingWriter(line).write_str(value));
        }
    }

    /// Writes a text that is known to need no escapes.
    #[inline(always)]
    fn plain(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.quoted(name, |line| line.write_str(value));
        }
    }

    fn address(&mut self, name: &str, address: IpAddr) {
        self.quoted(name, |line| match address {
            IpAddr::V4(address) => {
                for (index, part) in address.octets().into_iter().enumerate() {
                    line.push_str(if index > 0 { "." } else { "" });
                    line.push_str(itoa::Buffer::new().format(part));
                }
                Ok(())
            }
            IpAddr::V6(address) => write!(line, "{address}"),
        });
    }

    #[inline(always)]
    fn number(&mut self, name: &str, value: Option<impl itoa::Integer>) {
        if let Some(value) = value {
            self.name(name);
            self.line.push_str(itoa::Buffer::new().format(value));
        }
    }

    #[inline(always)]
    fn boolean(&mut self, name: &str, value: bool) {
        self.name(name);
        self.line.push_str(if value { "true" } else { "false" });
    }

    #[inline(always)]
    fn quoted(&mut self, name: &str, write: impl FnOnce(&mut String) -> fmt::Result) {
        self.name(name);
        self.line.push('"');
        // Writing to a string does not fail.
        let _ = write(self.line);
        self.line.push('"');
    }

    /// Writes a name of the form of [`name`].
    #[inline(always)]
    fn name(&mut self, name: &str) {
        match self.format {
            Format::Json => self.line.push_str(name),
            Format::Human | Format::Terminal { .. } => self.readable_name(name),
        }
    }

    fn readable_name(&mut self, name: &str) {
        self.line.push(' ');
        self.line.push_str(name.trim_matches([',', '"', ':']));
        self.line.push('=');
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.line.write_fmt(text);
    }
}

fn name_of(field: &Field) -> String {
    format!(",\"{}\":", field.name())
}

impl Visit for FieldWriter<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" && self.format != Format::Json {
            self.message(&format!("{value:?}"));
        } else {
            self.quoted(&name_of(field), |line| write!(EscapingWriter(line), "{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(&name_of(field), Some(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.number(&name_of(field), Some(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.number(&name_of(field), Some(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.boolean(&name_of(field), value);
    }
}
