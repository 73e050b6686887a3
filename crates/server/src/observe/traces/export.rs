//! Export of spans to a collector (OTLP over HTTP, in protobuf) by the SDK of OpenTelemetry, through our own HTTP client. A
//! collector that is slow or unreachable costs spans, which are counted, and never a request.
//!
//! The SDK reads the `OTEL_` variables of the sampler, the resource, the batches and the header fields.

use std::fmt;
use std::io::Write as _;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use opentelemetry::KeyValue;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter as OtlpExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, IdGenerator as _, RandomIdGenerator, Sampler, SdkTracerProvider, Span,
    SpanData, SpanExporter, SpanProcessor,
};
use plantstore_client::trust::TrustError;
use plantstore_client::{Cleartext, Client, HttpUrl, Proxies, Settings, UrlError, UrlTarget};
use plantstore_telemetry::metrics::{Counter, Exposition};
use prost::Message as _;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Path for spans, relative to the collector's base URL.
const TRACES: &str = "/v1/traces";
const RESPONSE_MAX: usize = 1 << 20;
/// Spans that wait for export at most; others are dropped.
const QUEUE_MAX: usize = 8_192;
/// Longest time for the last spans, unless the shutdown ends earlier.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(60);

/// URL that spans are sent to, `http://` or `https://`.
#[derive(Clone, Debug)]
pub struct Endpoint(HttpUrl);

/// A text is not the URL of a collector. The messages say what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error(
        "write it as http://HOST:PORT or https://HOST:PORT, without user name, password, query and fragment, for example \
         http://127.0.0.1:4318; {TRACES} is added to it"
    )]
    Base,
    #[error(
        "write it as http://HOST:PORT/PATH or https://HOST:PORT/PATH, without user name, password and fragment, for example \
         http://127.0.0.1:4318{TRACES}"
    )]
    Traces,
}

/// Parses the collector's base URL, to which the path for spans is added.
impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let base = text.strip_suffix('/').unwrap_or(text);
        let address = HttpUrl::parse(&format!("{base}{TRACES}"), Cleartext::Anywhere, UrlTarget::Path);
        address.map(Self).map_err(|_: UrlError| EndpointError::Base)
    }
}

impl Endpoint {
    /// Parses the URL for spans, to which nothing is added.
    pub fn for_traces(text: &str) -> Result<Self, EndpointError> {
        let address = HttpUrl::parse(text, Cleartext::Anywhere, UrlTarget::PathAndQuery);
        address.map(Self).map_err(|_: UrlError| EndpointError::Traces)
    }
}

pub struct CollectorSettings {
    pub endpoint: Endpoint,
    pub gzip: bool,
    /// Timeout of an export, with its retries.
    pub timeout: Duration,
    /// Replaces the name of the service in `OTEL_RESOURCE_ATTRIBUTES`.
    pub service_name: Option<String>,
    /// Replaces the sampler of the variables by a parent-based one with this ratio.
    pub sample_ratio: Option<f64>,
}

pub struct Collector {
    client: Client,
    settings: CollectorSettings,
}

impl Collector {
    /// `authorities` is a file of certificates to trust instead of the system's.
    pub fn new(settings: CollectorSettings, authorities: Option<&Path>, proxies: Proxies) -> Result<Self, TrustError> {
        let client = Client::new(Settings {
            url: &settings.endpoint.0,
            authorities,
            ca_option: "--otlp-ca",
            cleartext: Cleartext::Anywhere,
            proxies,
            response_max: RESPONSE_MAX,
        })?;
        Ok(Self { client, settings })
    }

    /// Starts the export; to be called within the runtime that sends the requests.
    pub(super) fn start(self) -> (SdkTracerProvider, Arc<ExportMetrics>) {
        let metrics = Arc::<ExportMetrics>::default();
        let collector = Arc::new(self);
        let client = CollectorClient {
            collector: Arc::clone(&collector),
            runtime: Handle::current(),
            failing: AtomicBool::new(false),
            partial: AtomicBool::new(false),
            metrics: Arc::clone(&metrics),
        };
        let exporter = OtlpExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(collector.settings.endpoint.0.uri().to_string())
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(collector.settings.timeout)
            .build()
            .expect("the endpoint is a URL and the client is given");
        let exporter = CountingExporter { exporter, metrics: Arc::clone(&metrics) };
        let config = BatchConfigBuilder::default().with_max_queue_size(QUEUE_MAX).build();
        let queue = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        let processor = BoundedProcessor { queue, metrics: Arc::clone(&metrics) };
        let resource = resource(collector.settings.service_name.clone());
        let mut provider = SdkTracerProvider::builder().with_resource(resource).with_span_processor(processor);
        if let Some(ratio) = collector.settings.sample_ratio {
            provider = provider.with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))));
        }
        (provider.build(), metrics)
    }
}

/// Returns the attributes of this process; those of the variables take precedence.
fn resource(service_name: Option<String>) -> Resource {
    let instance = RandomIdGenerator::default().new_trace_id().to_string();
    let resource = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", "plantstore"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance),
        ])
        .with_detectors(&[Box::new(TelemetryResourceDetector), Box::new(EnvResourceDetector::new())]);
    match service_name {
        Some(name) => resource.with_service_name(name).build(),
        None => resource.build(),
    }
}

/// Spans by outcome, and the length of the queue.
#[derive(Debug, Default)]
pub(super) struct ExportMetrics {
    waiting: AtomicUsize,
    exported: Counter,
    dropped: Counter,
    rejected: Counter,
    /// Number of spans that the collector rejected with its last response; the largest number stands for all.
    rejected_by_response: AtomicU64,
}

impl ExportMetrics {
    pub(super) fn write(&self, exposition: &mut Exposition) {
        exposition
            .counter("plantstore_trace_spans_total", "Spans, by outcome.")
            .sample(&[("outcome", "exported".into())], self.exported.get())
            .sample(&[("outcome", "dropped".into())], self.dropped.get())
            .sample(&[("outcome", "rejected".into())], self.rejected.get());
        exposition
            .gauge("plantstore_trace_queue_depth", "Spans that wait to be exported.")
            .sample(&[], self.waiting.load(Ordering::Relaxed));
    }
}

/// Drops and counts the spans for which the queue has no place.
#[derive(Debug)]
struct BoundedProcessor {
    queue: BatchSpanProcessor,
    metrics: Arc<ExportMetrics>,
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, span: &mut Span, context: &opentelemetry::Context) {
        self.queue.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.metrics.waiting.fetch_add(1, Ordering::Relaxed) < QUEUE_MAX {
            return self.queue.on_end(span);
        }
        self.metrics.waiting.fetch_sub(1, Ordering::Relaxed);
        self.metrics.dropped.count();
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.queue.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.queue.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.queue.set_resource(resource);
    }
}

#[derive(Debug)]
struct CountingExporter {
    exporter: OtlpExporter,
    metrics: Arc<ExportMetrics>,
}

impl SpanExporter for CountingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let metrics = &*self.metrics;
        let count = batch.len();
        metrics.waiting.fetch_sub(count, Ordering::Relaxed);
        let result = self.exporter.export(batch).await;
        let rejected = metrics.rejected_by_response.swap(0, Ordering::Relaxed).min(count as u64);
        metrics.rejected.add(rejected);
        let others = if result.is_ok() { &metrics.exported } else { &metrics.dropped };
        others.add(count as u64 - rejected);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

struct CollectorClient {
    collector: Arc<Collector>,
    runtime: Handle,
    failing: AtomicBool,
    /// The last batch was accepted in part only.
    partial: AtomicBool,
    metrics: Arc<ExportMetrics>,
}

impl fmt::Debug for CollectorClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CollectorClient").finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl HttpClient for CollectorClient {
    /// Sends a batch once. If the connection breaks before the response, the collector may have received it already; the SDK
    /// sends it again all the same, as OTLP allows. Duplicates have the same span ids.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (mut head, mut body) = request.into_parts();
        // The collector's message may quote configured header fields, and they may be secret.
        let is_quotable = head.headers.keys().all(|name| [CONTENT_TYPE, CONTENT_ENCODING, USER_AGENT].contains(name));
        let collector = Arc::clone(&self.collector);
        if collector.settings.gzip {
            // The SDK would do this with a second implementation of gzip.
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&body)?;
            body = encoder.finish()?.into();
            head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let sending = async move {
            let Collector { client, settings } = &*collector;
            timeout(settings.timeout, client.post(&settings.endpoint.0, head.headers, body)).await
        };
        // The SDK calls this on a thread of its own, which has no timers and sockets.
        let response = match self.runtime.spawn(sending).await {
            Ok(Ok(Ok(response))) => response,
            Ok(Ok(Err(error))) => return Err(self.failed(error.to_string())),
            Ok(Err(_)) => return Err(self.failed("the collector did not respond in time".to_owned())),
            Err(_) => return Err(self.failed("the service stops".to_owned())),
        };
        let status = response.status;
        if status.is_success() {
            self.succeeded(&response.body, is_quotable);
        } else {
            self.failed(format!("it answers {status}"));
            if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
                self.metrics.rejected_by_response.store(u64::MAX, Ordering::Relaxed);
            }
        }
        let mut forwarded = Response::new(response.body);
        *forwarded.status_mut() = status;
        *forwarded.headers_mut() = response.headers;
        Ok(forwarded)
    }
}

impl CollectorClient {
    /// Logs the first failure after a success; [`Self::succeeded`] logs the first success after that.
    fn failed(&self, error: String) -> HttpError {
        if !self.failing.swap(true, Ordering::Relaxed) {
            tracing::warn!(error, "the collector does not accept spans: they are buffered for a while, then dropped");
        }
        error.into()
    }

    fn succeeded(&self, body: &[u8], is_quotable: bool) {
        if self.failing.swap(false, Ordering::Relaxed) {
            tracing::info!("the collector accepts spans again");
        }
        let response = ExportTraceServiceResponse::decode(body).unwrap_or_default();
        let partial = response.partial_success.unwrap_or_default();
        let rejected = u64::try_from(partial.rejected_spans).unwrap_or(0);
        self.metrics.rejected_by_response.store(rejected, Ordering::Relaxed);
        let is_partial = rejected > 0 || !partial.error_message.is_empty();
        if !self.partial.swap(is_partial, Ordering::Relaxed) && is_partial {
            let error = is_quotable.then_some(partial.error_message);
            tracing::warn!(rejected, error, "the collector accepted spans only in part, or with a warning");
        }
    }
}
