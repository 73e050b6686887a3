//! Traces of requests: the trace that a request belongs to (W3C Trace Context), and its spans for a collector.
//!
//! [`parent`] reads the client's trace context, and [`sampler`] decides if the request is recorded. Its spans are recorded while
//! it is in flight; at its end, [`export`] queues them for the collector of [`config`]. [`otlp`] encodes them, in the wire
//! format of [`protobuf`].

mod config;
mod export;
mod id;
mod otlp;
mod parent;
mod protobuf;
mod sampler;
mod span;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper::{HeaderMap, Method, StatusCode, Version};

pub use self::config::{
    Collector, CollectorSettings, Compression, Endpoint, EndpointError, ExportHeaders, KeyValueListError, Resource,
};
use self::export::Exporter;
use self::id::{SpanId, TraceId};
use self::parent::Parent;
pub use self::sampler::{SampleRatio, SampleRatioError, Sampler, SamplerError};
use self::span::{Child, Interval, RequestSpans};
use plantstore_model::user::UserId;
use plantstore_telemetry::metrics::{Exemplar, Exposition};
use plantstore_telemetry::spans::{RecordedSpan, SpanRecorder};

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
    recorder: SpanRecorder,
}

impl Trace {
    /// Returns the client's trace, or a new one if the request is sampled. Without either, returns `None`.
    pub(crate) fn of(tracer: Option<&Tracer>, version: Version, headers: &HeaderMap) -> Option<Self> {
        let record = |id, parent, state| {
            let recorder = SpanRecorder::default();
            let recording = SpanId::random().map(|span| Recording { span, parent, state, version, recorder });
            Self { id, recording }
        };
        let Some(parent) = Parent::of(headers) else {
            let sampler = tracer?.sampler;
            let id = TraceId::random().filter(|id| sampler.samples_root(*id))?;
            return Some(record(id, None, None));
        };
        if tracer.is_some_and(|tracer| tracer.sampler.samples_child_of(parent)) {
            return Some(record(parent.trace, Some(parent.span), parent::state(headers)));
        }
        Some(Self { id: parent.trace, recording: None })
    }

    /// Returns the recorder of the request's spans, if it is recorded.
    pub(crate) fn recorder(&self) -> Option<&SpanRecorder> {
        self.recording.as_ref().map(|recording| &recording.recorder)
    }

    /// Returns the ids for an exemplar, if the request is recorded.
    pub(crate) fn exemplar(&self) -> Option<Exemplar> {
        self.recording.as_ref().map(|recording| Exemplar { trace_id: self.id.0, span_id: recording.span.0 })
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
    sampler: Sampler,
    exporter: Exporter,
}

impl Tracer {
    /// Starts the export, which runs until [`Tracer::finish`].
    pub(crate) fn start(collector: Collector) -> Self {
        Self { sampler: collector.sampler, exporter: Exporter::start(collector) }
    }

    /// Queues the spans of a request that has ended, if it is recorded. Never waits.
    pub(crate) fn record(&self, trace: &Trace, request: &TracedRequest<'_>) {
        let Some(recording) = &trace.recording else { return };
        let clock = Clock::read();
        let child = |recorded: RecordedSpan| {
            let time = clock.interval(recorded.start, recorded.end);
            SpanId::random().map(|span| Child { span, name: recorded.name, time })
        };
        self.exporter.enqueue(RequestSpans {
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
            children: recording.recorder.take().into_iter().filter_map(child).collect(),
        });
    }

    /// Sends the spans that are still queued.
    pub(crate) async fn finish(&self) {
        self.exporter.finish().await;
    }

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        self.exporter.write_metrics(exposition);
    }
}
