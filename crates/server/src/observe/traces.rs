//! Traces of requests: the trace that a request belongs to (W3C Trace Context), and its spans for a collector.
//!
//! The SDK of OpenTelemetry samples and batches; [`export`] connects it to the collector. The steps of a request are recorded
//! while it is in flight, and become child spans at its end. No path, query or body is exported, no header field but
//! `tracestate` and the request id, and of the user only the numeric id.

mod export;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use hyper::HeaderMap;
use hyper::header::HeaderName;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, TraceId, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use self::export::ExportMetrics;
pub use self::export::{Collector, CollectorSettings, Endpoint, EndpointError};
use super::metrics::{EndedRequest, Outcome};
use plantstore_model::token::{TOKEN_PREFIX, is_jwt_shaped};
use plantstore_telemetry::metrics::{Exemplar, Exposition};
use plantstore_telemetry::spans::SpanRecorder;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// Characters of a `traceparent` of version 00; later versions may be longer.
const PARENT_LENGTH: usize = 55;
/// Characters of a `tracestate` that is propagated: the least that the specification demands.
const STATE_MAX: usize = 512;

pub(crate) struct Trace {
    pub(crate) id: TraceId,
    recording: Option<Recording>,
}

/// The part of a request's spans that is known when the request arrives.
struct Recording {
    /// Holds the span of the request, which is the parent of the others.
    context: Context,
    arrived: Instant,
    /// The arrival in wall-clock time.
    arrived_at: SystemTime,
    recorder: SpanRecorder,
}

impl Recording {
    fn wall_time(&self, time: Instant) -> SystemTime {
        self.arrived_at + time.saturating_duration_since(self.arrived)
    }
}

impl Trace {
    /// Returns the client's trace, or a new one if the request is sampled. Without either, returns `None`.
    pub(crate) fn of(tracer: Option<&Tracer>, headers: &HeaderMap, arrived: Instant) -> Option<Self> {
        if tracer.is_none() && !headers.contains_key(const { HeaderName::from_static(TRACEPARENT) }) {
            return None;
        }
        let client = TraceContextPropagator::new().extract_with_context(&Context::new(), &client_context(headers));
        let recording = tracer.and_then(|tracer| tracer.begin(&client, arrived));
        let context = recording.as_ref().map_or(&client, |recording| &recording.context);
        let id = context.span().span_context().trace_id();
        (id != TraceId::INVALID).then_some(Self { id, recording })
    }

    pub(crate) fn recorder(&self) -> Option<&SpanRecorder> {
        self.recording.as_ref().map(|recording| &recording.recorder)
    }

    pub(crate) fn exemplar(&self) -> Option<Exemplar> {
        let span_id = self.recording.as_ref()?.context.span().span_context().span_id().to_bytes();
        Some(Exemplar { trace_id: self.id.to_bytes(), span_id })
    }
}

/// Returns the client's trace context, as far as it is well-formed. A request is never rejected for it.
fn client_context(headers: &HeaderMap) -> HashMap<String, String> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let parent = parents.next().filter(|_| parents.next().is_none()).and_then(|parent| parent.to_str().ok());
    let parent = parent.filter(|parent| is_well_formed(parent.as_bytes())).map(str::to_owned);
    let states: Option<Vec<&str>> = headers.get_all(TRACESTATE).iter().map(|value| value.to_str().ok()).collect();
    let state = states.map(|states| states.join(",")).filter(|state| is_forwardable(state));
    let fields = [(TRACEPARENT, parent), (TRACESTATE, state)];
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Checks the form of a `traceparent`, which the SDK does less strictly than the specification.
fn is_well_formed(parent: &[u8]) -> bool {
    let Some((known, rest)) = parent.split_at_checked(PARENT_LENGTH) else { return false };
    let is_valid = |(place, byte): (usize, &u8)| match place {
        2 | 35 | 52 => *byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    let valid_end = rest.is_empty() || (rest[0] == b'-' && !known.starts_with(b"00"));
    valid_end && known.iter().enumerate().all(is_valid)
}

/// Checks that a `tracestate` is short and holds nothing that may be a token.
fn is_forwardable(state: &str) -> bool {
    let values = state.split(',').filter_map(|member| member.trim().split_once('='));
    state.len() <= STATE_MAX && !state.contains(TOKEN_PREFIX) && !values.into_iter().any(|(_, it)| is_jwt_shaped(it))
}

pub(crate) struct Tracer {
    provider: SdkTracerProvider,
    sdk: SdkTracer,
    metrics: Arc<ExportMetrics>,
}

impl Tracer {
    /// Starts the export, which runs until [`Tracer::finish`].
    pub(crate) fn start(collector: Collector) -> Self {
        let (provider, metrics) = collector.start();
        let scope = InstrumentationScope::builder("plantstore").with_version(env!("CARGO_PKG_VERSION")).build();
        Self { sdk: provider.tracer_with_scope(scope), provider, metrics }
    }

    fn begin(&self, client: &Context, arrived: Instant) -> Option<Recording> {
        let arrived_at = SystemTime::now() - arrived.elapsed();
        let span = SpanBuilder::from_name("request").with_kind(SpanKind::Server);
        let span = self.sdk.build_with_context(span.with_start_time(arrived_at), client);
        let recorder = SpanRecorder::default();
        span.is_recording().then(|| Recording { context: client.with_span(span), arrived, arrived_at, recorder })
    }

    /// Queues the spans of a request that has ended, if it is recorded. Never waits.
    pub(super) fn record(&self, trace: &Trace, request: &EndedRequest<'_>) {
        let Some(recording) = &trace.recording else { return };
        for step in recording.recorder.take() {
            let child = SpanBuilder::from_name(step.name).with_start_time(recording.wall_time(step.start));
            let mut child = self.sdk.build_with_context(child.with_kind(SpanKind::Internal), &recording.context);
            child.end_with_timestamp(recording.wall_time(step.end));
        }
        let Outcome { status, error, bytes, complete } = *request.outcome;
        let method = request.method_name();
        let route = Some(request.route).filter(|route| *route != "-");
        // A mistake of the client is not a failure of the service.
        let failed = status.is_none_or(|status| status.is_server_error()) || !complete;
        let error_type = || error.map_or_else(|| "incomplete".to_owned(), |code| code.to_string());
        let attributes = [
            Some(KeyValue::new("http.request.method", method)),
            route.map(|route| KeyValue::new("http.route", route)),
            status.map(|status| KeyValue::new("http.response.status_code", i64::from(status.as_u16()))),
            failed.then(|| KeyValue::new("error.type", error_type())),
            error.map(|error| KeyValue::new("plantstore.error_code", i64::from(error))),
            request.user.map(|user| KeyValue::new("user.id", user.get().to_string())),
            Some(KeyValue::new("plantstore.request_id", request.id.to_owned())),
            Some(KeyValue::new("http.response.body.size", i64::try_from(bytes).unwrap_or(i64::MAX))),
            Some(KeyValue::new("network.protocol.version", request.version_number())),
        ];
        let span = recording.context.span();
        span.update_name(route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}")));
        span.set_attributes(attributes.into_iter().flatten());
        if failed {
            span.set_status(Status::error(""));
        }
        span.end_with_timestamp(recording.wall_time(Instant::now()));
    }

    pub(crate) async fn finish(&self) {
        let provider = self.provider.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "the SDK waits for its thread; this is the end of the service, not a read"
        )]
        let _ = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(export::SHUTDOWN_TIMEOUT)).await;
    }

    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        self.metrics.write(exposition);
    }
}
