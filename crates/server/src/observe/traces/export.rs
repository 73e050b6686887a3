//! Export of spans to a collector (OTLP over HTTP, in protobuf): a bounded queue, and one task that sends batches. A
//! collector that is slow or unreachable costs spans, which are counted, and never a request.

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use flate2::Compression as Level;
use flate2::write::GzEncoder;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, StatusCode};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::config::{Collector, Compression};
use super::id::random;
use super::otlp::{self, PartialSuccess};
use super::span::RequestSpans;
use plantstore_client::{ClientError, Response};
use plantstore_telemetry::metrics::{Counter, Exposition};

/// Requests whose spans are queued at most; the spans of others are dropped.
const QUEUE_MAX: usize = 2_048;
/// Requests whose spans are sent together.
const BATCH_MAX: usize = 512;
/// Time for which the first request of a batch waits for others.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Time for which a batch is retried before it is dropped.
const RETRY_FOR: Duration = Duration::from_secs(60);
/// Shortest and longest pause between attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Sending end of the queue.
pub(super) struct Exporter {
    queue: mpsc::Sender<RequestSpans>,
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
    metrics: Arc<ExportMetrics>,
}

/// Spans by outcome.
#[derive(Default)]
struct ExportMetrics {
    exported: Counter,
    dropped: Counter,
    rejected: Counter,
}

impl Exporter {
    pub(super) fn start(collector: Collector) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let (stop, stopped) = watch::channel(false);
        let metrics = Arc::<ExportMetrics>::default();
        let (metrics_of_task, failing, partial) = (Arc::clone(&metrics), false, false);
        let sender = Sender { collector, metrics: metrics_of_task, stopped, failing, partial };
        let task = tokio::spawn(sender.run(waiting));
        Self { queue, stop, task: Mutex::new(Some(task)), metrics }
    }

    /// Queues spans; drops them when the queue is full.
    pub(super) fn enqueue(&self, spans: RequestSpans) {
        let count = spans.count();
        if self.queue.try_send(spans).is_err() {
            self.metrics.dropped.add(count);
        }
    }

    /// Sends the queued spans, without a pause, and ends the task.
    pub(super) async fn finish(&self) {
        self.stop.send_replace(true);
        if let Some(task) = self.task.lock().await.take() {
            let _ = task.await;
        }
    }

    pub(super) fn write_metrics(&self, exposition: &mut Exposition) {
        let ExportMetrics { exported, dropped, rejected } = &*self.metrics;
        exposition
            .counter("plantstore_trace_spans_total", "Spans, by outcome.")
            .sample(&[("outcome", "exported".into())], exported.get())
            .sample(&[("outcome", "dropped".into())], dropped.get())
            .sample(&[("outcome", "rejected".into())], rejected.get());
        let waiting = self.queue.max_capacity() - self.queue.capacity();
        exposition
            .gauge("plantstore_trace_queue_depth", "Requests whose spans wait to be exported.")
            .sample(&[], waiting);
    }
}

/// The task that sends batches.
struct Sender {
    collector: Collector,
    metrics: Arc<ExportMetrics>,
    stopped: watch::Receiver<bool>,
    /// The last attempt failed.
    failing: bool,
    /// The last batch was accepted in part only.
    partial: bool,
}

/// Outcome of an attempt to send a batch.
enum ExportOutcome {
    Accepted(PartialSuccess),
    /// The batch will never be accepted.
    Rejected(String),
    /// The batch may be accepted later, after this time if the collector names one.
    Retry(String, Option<Duration>),
}

impl Sender {
    async fn run(mut self, mut waiting: mpsc::Receiver<RequestSpans>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while self.gather(&mut waiting, &mut batch).await {
            self.deliver(&batch).await;
            batch.clear();
        }
    }

    /// Collects a batch; returns false when there are no more.
    async fn gather(&mut self, waiting: &mut mpsc::Receiver<RequestSpans>, batch: &mut Vec<RequestSpans>) -> bool {
        let stopped = self.stopped.wait_for(|stopped| *stopped);
        let gathering = async {
            waiting.recv_many(batch, BATCH_MAX).await;
            let deadline = Instant::now() + BATCH_DELAY;
            while batch.len() < BATCH_MAX
                && let Ok(1..) = timeout_at(deadline, waiting.recv_many(batch, BATCH_MAX - batch.len())).await
            {
            }
        };
        let is_over = tokio::select! {
            biased;
            _ = stopped => true,
            () = gathering => false,
        };
        if is_over {
            // The spans that are queued already are still sent.
            waiting.close();
            while batch.len() < BATCH_MAX
                && let Ok(spans) = waiting.try_recv()
            {
                batch.push(spans);
            }
        }
        !batch.is_empty()
    }

    /// Sends a batch, with retries for a while; without them when the service stops.
    async fn deliver(&mut self, batch: &[RequestSpans]) {
        let count = batch.iter().map(RequestSpans::count).sum();
        let body = self.encode(batch);
        let deadline = Instant::now() + RETRY_FOR;
        // Jitter takes away half of it at most.
        let mut pause = BACKOFF.0 * 2;
        loop {
            let is_last = *self.stopped.borrow();
            let (reason, wanted) = match self.send(body.clone()).await {
                ExportOutcome::Accepted(partial) => {
                    self.succeeded(&partial);
                    let rejected = partial.rejected.min(count);
                    self.metrics.rejected.add(rejected);
                    return self.metrics.exported.add(count - rejected);
                }
                ExportOutcome::Rejected(reason) => {
                    self.failed(&reason);
                    return self.metrics.rejected.add(count);
                }
                ExportOutcome::Retry(reason, wanted) => (reason, wanted),
            };
            self.failed(&reason);
            let pausing = wanted.unwrap_or_else(|| with_jitter(pause)).clamp(BACKOFF.0, BACKOFF.1);
            if is_last || Instant::now() + pausing > deadline {
                return self.metrics.dropped.add(count);
            }
            tokio::select! {
                () = sleep(pausing) => {}
                _ = self.stopped.wait_for(|stopped| *stopped) => {}
            }
            pause = (pause * 2).min(BACKOFF.1);
        }
    }

    fn encode(&self, batch: &[RequestSpans]) -> Bytes {
        let body = otlp::request(&self.collector.resource, batch);
        match self.collector.compression {
            Compression::None => body.into(),
            Compression::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
                // Writing to memory does not fail.
                let _ = encoder.write_all(&body);
                encoder.finish().unwrap_or_default().into()
            }
        }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = self.collector.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        if self.collector.compression == Compression::Gzip {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        headers
    }

    /// Sends a batch once. If the connection breaks before the response, the collector may have received it already; it is
    /// sent again all the same, as OTLP allows. Duplicates have the same span ids.
    async fn send(&self, body: Bytes) -> ExportOutcome {
        let Collector { client, address, timeout: limit, .. } = &self.collector;
        match timeout(*limit, client.post(address, self.headers(), body)).await {
            Ok(Ok(response)) => self.outcome(&response),
            Ok(Err(error @ ClientError::NoTrustRoots(..))) => ExportOutcome::Rejected(error.to_string()),
            Ok(Err(
                error @ (ClientError::Unreachable(..)
                | ClientError::Broken { .. }
                | ClientError::Truncated { .. }
                | ClientError::TooLarge { .. }),
            )) => ExportOutcome::Retry(error.to_string(), None),
            Err(_) => ExportOutcome::Retry("the collector did not respond in time".to_owned(), None),
        }
    }

    fn outcome(&self, response: &Response) -> ExportOutcome {
        let status = response.status;
        let reason = || match self.loggable(&otlp::message(&response.body)) {
            Some(message) => format!("it answers {status}: {message}"),
            None => format!("it answers {status}"),
        };
        match status {
            status if status.is_success() => ExportOutcome::Accepted(otlp::partial_success(&response.body)),
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => ExportOutcome::Retry(reason(), retry_after(&response.headers)),
            _ => ExportOutcome::Rejected(reason()),
        }
    }

    /// Returns a message of the collector, unless header fields are configured: it may quote them, and they may be secret.
    fn loggable<'a>(&self, message: &'a str) -> Option<&'a str> {
        Some(message).filter(|message| !message.is_empty() && self.collector.headers.is_empty())
    }

    /// Logs the first failure after a success; [`Self::succeeded`] logs the first success after that.
    fn failed(&mut self, error: &str) {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(error, "the collector does not accept spans: they are buffered for a while, then dropped");
        }
    }

    fn succeeded(&mut self, PartialSuccess { rejected, message }: &PartialSuccess) {
        if std::mem::replace(&mut self.failing, false) {
            tracing::info!("the collector accepts spans again");
        }
        let is_partial = *rejected > 0 || !message.is_empty();
        if !std::mem::replace(&mut self.partial, is_partial) && is_partial {
            let error = self.loggable(message);
            tracing::warn!(rejected, error, "the collector accepted spans only in part, or with a warning");
        }
    }
}

/// Returns a random time between half of `pause` and all of it, so that processes that failed together retry at different
/// times.
fn with_jitter(pause: Duration) -> Duration {
    // Without randomness, the whole pause.
    let random = u32::from_be_bytes(random().unwrap_or([u8::MAX; 4]));
    let half = pause / 2;
    half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

/// Returns the time that `Retry-After` asks to wait, which is a number of seconds or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let until = |date: SystemTime| date.duration_since(SystemTime::now()).unwrap_or_default();
    text.parse().map(Duration::from_secs).ok().or_else(|| httpdate::parse_http_date(text).ok().map(until))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_keeps_at_least_half_of_the_pause() {
        let pause = Duration::from_secs(4);
        let pauses: Vec<Duration> = (0..100).map(|_| with_jitter(pause)).collect();
        assert!(pauses.iter().all(|found| (pause / 2..=pause).contains(found)), "{pauses:?}");
        assert!(pauses.iter().any(|found| *found != pauses[0]), "{pauses:?}");
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let parse = |text: &str| {
            let value = HeaderValue::from_str(text).expect("a value");
            retry_after(&HeaderMap::from_iter([(RETRY_AFTER, value)]))
        };
        assert_eq!(parse("7"), Some(Duration::from_secs(7)));
        assert_eq!(parse("Thu, 01 Jan 1970 00:00:00 GMT"), Some(Duration::ZERO));
        let later = parse("Fri, 31 Dec 9999 23:59:59 GMT").expect("a date");
        assert!(later > BACKOFF.1);
        assert_eq!([parse("soon"), parse("-1"), parse("")], [None; 3]);
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
