//! Traces: the one that a request belongs to (W3C Trace Context), and what of it is told to a collector.
//!
//! [`parent`] reads what a client says of its trace. A request whose trace is recorded has its notes taken while it is at
//! work, and when it has ended they go to [`export`], which hands them to the collector as [`otlp`] writes them.

mod export;
mod otlp;
mod parent;

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper::{HeaderMap, Method, StatusCode, Version};

use self::export::Exporter;
pub use self::export::{Collector, Endpoint, EndpointFault, SampleRatio, SampleRatioFault};
use self::parent::Parent;
use plantstore_model::user::UserId;
use plantstore_telemetry::metrics::Page;
use plantstore_telemetry::spans::{Note, Notes};

/// The name of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId([u8; 16]);

/// The name of a span in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanId([u8; 8]);

impl fmt::Display for TraceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl TraceId {
    /// `None` without randomness: then nothing is traced.
    fn random() -> Option<Self> {
        random().map(Self)
    }

    /// The part that is random in everybody's ids, by which it is decided whether a trace is recorded.
    fn chance(self) -> u64 {
        let [.., last] = self.0.as_chunks::<8>().0 else { return 0 };
        u64::from_be_bytes(*last) & (u64::MAX >> 8)
    }
}

impl SpanId {
    fn random() -> Option<Self> {
        random().map(Self)
    }
}

/// Random bytes that are not all zero, which would be no id.
fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).ok()?;
    bytes.iter().any(|byte| *byte != 0).then_some(bytes)
}

/// The trace that a request belongs to.
pub(crate) struct Trace {
    pub(crate) id: TraceId,
    recording: Option<Recording>,
}

/// What is needed to tell of a request later.
struct Recording {
    span: SpanId,
    parent: Option<SpanId>,
    /// The client's `tracestate`.
    state: Option<String>,
    version: Version,
    notes: Notes,
}

impl Trace {
    /// The trace of a request: its client's, or a new one where there is a collector and the request is one of those that
    /// are recorded. A trace of which nothing will be found anywhere is none.
    pub(crate) fn of(tracer: Option<&Tracer>, version: Version, headers: &HeaderMap) -> Option<Self> {
        let parent = Parent::of(headers);
        let record = |id, parent, state| {
            let recording =
                SpanId::random().map(|span| Recording { span, parent, state, version, notes: Notes::default() });
            Self { id, recording }
        };
        match (tracer, parent) {
            (Some(_), Some(Parent { trace, span, sampled: true })) => {
                Some(record(trace, Some(span), parent::state(headers)))
            }
            (_, Some(parent)) => Some(Self { id: parent.trace, recording: None }),
            (Some(tracer), None) => {
                let id = TraceId::random().filter(|id| tracer.ratio.takes(id.chance()))?;
                Some(record(id, None, None))
            }
            (None, None) => None,
        }
    }

    /// Where the request's notes go, if it is recorded.
    pub(crate) fn notes(&self) -> Option<&Notes> {
        self.recording.as_ref().map(|recording| &recording.notes)
    }
}

/// A request that has ended, as it is told.
pub(crate) struct TracedRequest<'a> {
    pub(crate) id: &'a str,
    pub(crate) method: Option<&'a Method>,
    pub(crate) route: &'static str,
    pub(crate) status: Option<StatusCode>,
    pub(crate) error: Option<i32>,
    pub(crate) user: Option<UserId>,
    pub(crate) bytes: u64,
    pub(crate) complete: bool,
    pub(crate) arrived: Instant,
}

/// A span of a request and those within it, ready to be told.
struct Spans {
    trace: TraceId,
    span: SpanId,
    parent: Option<SpanId>,
    state: Option<String>,
    version: Version,
    method: Option<Method>,
    route: &'static str,
    status: Option<StatusCode>,
    error: Option<i32>,
    user: Option<UserId>,
    request_id: String,
    bytes: u64,
    complete: bool,
    time: Stretch,
    children: Vec<Child>,
}

struct Child {
    span: SpanId,
    name: &'static str,
    time: Stretch,
}

/// From when to when, in nanoseconds since 1970.
#[derive(Clone, Copy)]
struct Stretch {
    begun: u64,
    ended: u64,
}

impl Spans {
    /// How many there are.
    fn count(&self) -> u64 {
        1 + self.children.len() as u64
    }
}

/// What the clock on the wall showed at moments that were taken by the one that never goes back.
struct Clock {
    now: Instant,
    wall: Duration,
}

impl Clock {
    fn read() -> Self {
        Self { now: Instant::now(), wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
    }

    fn stretch(&self, begun: Instant, ended: Instant) -> Stretch {
        let at = |moment| self.wall.saturating_sub(self.now.saturating_duration_since(moment));
        let nanoseconds = |moment| u64::try_from(at(moment).as_nanos()).unwrap_or(u64::MAX);
        Stretch { begun: nanoseconds(begun), ended: nanoseconds(ended) }
    }
}

/// Tells a collector of requests.
pub(crate) struct Tracer {
    ratio: SampleRatio,
    exporter: Exporter,
}

impl Tracer {
    /// Begins to tell; goes on until [`Tracer::finish`].
    pub(crate) fn start(collector: Collector) -> Self {
        Self { ratio: collector.ratio(), exporter: Exporter::start(collector) }
    }

    /// Tells of a request that has ended, if it is recorded. Never waits.
    pub(crate) fn record(&self, trace: &Trace, request: &TracedRequest<'_>) {
        let Some(recording) = &trace.recording else { return };
        let clock = Clock::read();
        let child = |note: Note| {
            SpanId::random().map(|span| Child { span, name: note.name, time: clock.stretch(note.begun, note.ended) })
        };
        self.exporter.take(Spans {
            trace: trace.id,
            span: recording.span,
            parent: recording.parent,
            state: recording.state.clone(),
            version: recording.version,
            method: request.method.cloned(),
            route: request.route,
            status: request.status,
            error: request.error,
            user: request.user,
            request_id: request.id.to_owned(),
            bytes: request.bytes,
            complete: request.complete,
            time: clock.stretch(request.arrived, clock.now),
            children: recording.notes.take().into_iter().filter_map(child).collect(),
        });
    }

    /// Hands over what is still waiting.
    pub(crate) async fn finish(&self) {
        self.exporter.finish().await;
    }

    pub(crate) fn write_metrics(&self, page: &mut Page) {
        self.exporter.write_metrics(page);
    }
}
