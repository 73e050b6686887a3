//! Traces of requests: the trace that a request belongs to (W3C Trace Context), and its spans for a collector.
//!
//! [`parent`] reads the client's trace context. The notes of a recorded request are collected while it is in flight; at its
//! end they become the [`span`]s that [`export`] sends to the collector, encoded by [`otlp`].

mod export;
mod id;
mod otlp;
mod parent;
mod span;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper::{HeaderMap, Method, StatusCode, Version};

use self::export::Exporter;
pub use self::export::{Collector, Endpoint, EndpointFault, SampleRatio, SampleRatioFault};
use self::id::{SpanId, TraceId};
use self::parent::Parent;
use self::span::{Child, Interval, Spans};
use plantstore_model::user::UserId;
use plantstore_telemetry::metrics::Page;
use plantstore_telemetry::spans::{Note, Notes};

/// The trace that a request belongs to.
pub(crate) struct Trace {
    pub(crate) id: TraceId,
    recording: Option<Recording>,
}

/// The part of a request's span that is known when the request arrives.
struct Recording {
    span: SpanId,
    parent: Option<SpanId>,
    /// The client's `tracestate`.
    state: Option<String>,
    version: Version,
    notes: Notes,
}

impl Trace {
    /// Returns the client's trace, or a new one if there is a collector and the request is sampled. A trace of which nothing
    /// is recorded anywhere is `None`.
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

    /// Returns the place for the request's notes, if it is recorded.
    pub(crate) fn notes(&self) -> Option<&Notes> {
        self.recording.as_ref().map(|recording| &recording.notes)
    }
}

/// A request that has ended.
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

/// Converts times of the monotonic clock to wall-clock time.
struct Clock {
    now: Instant,
    wall: Duration,
}

impl Clock {
    fn read() -> Self {
        Self { now: Instant::now(), wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
    }

    fn interval(&self, start: Instant, end: Instant) -> Interval {
        let at = |time| self.wall.saturating_sub(self.now.saturating_duration_since(time));
        let nanoseconds = |time| u64::try_from(at(time).as_nanos()).unwrap_or(u64::MAX);
        Interval { start: nanoseconds(start), end: nanoseconds(end) }
    }
}

/// Reports requests to a collector.
pub(crate) struct Tracer {
    ratio: SampleRatio,
    exporter: Exporter,
}

impl Tracer {
    /// Starts the export, which runs until [`Tracer::finish`].
    pub(crate) fn start(collector: Collector) -> Self {
        Self { ratio: collector.ratio(), exporter: Exporter::start(collector) }
    }

    /// Queues the spans of a request that has ended, if it is recorded. Never waits.
    pub(crate) fn record(&self, trace: &Trace, request: &TracedRequest<'_>) {
        let Some(recording) = &trace.recording else { return };
        let clock = Clock::read();
        let child = |note: Note| {
            SpanId::random().map(|span| Child { span, name: note.name, time: clock.interval(note.begun, note.ended) })
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
            time: clock.interval(request.arrived, clock.now),
            children: recording.notes.take().into_iter().filter_map(child).collect(),
        });
    }

    /// Sends the spans that are still queued.
    pub(crate) async fn finish(&self) {
        self.exporter.finish().await;
    }

    pub(crate) fn write_metrics(&self, page: &mut Page) {
        self.exporter.write_metrics(page);
    }
}
