//! Export of spans to a collector (OTLP over HTTP, in JSON): a bounded queue, and one task that sends batches. A collector
//! that is slow or unreachable costs spans, which are counted, and never a request.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::RETRY_AFTER;
use serde::Deserialize;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::otlp;
use super::span::Spans;
use plantstore_client::trust::{self, TrustError};
use plantstore_client::{Address, AddressError, Cleartext, Client, ClientError, Proxies, Response, Settings};
use plantstore_telemetry::metrics::{Counter, Page};

/// Path for spans, relative to the collector's URL.
const TRACES: &str = "/v1/traces";
/// Requests whose spans are queued at most; the spans of others are dropped.
const QUEUE_MAX: usize = 2_048;
/// Requests whose spans are sent together.
const BATCH_MAX: usize = 512;
/// Time for which the first of them waits for the others.
const GATHER: Duration = Duration::from_secs(1);
/// Bytes of a response of the collector at most.
const RESPONSE_MAX: usize = 1 << 20;
/// Timeout of one request to the collector.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a batch is retried before it is dropped.
const RETRY_FOR: Duration = Duration::from_secs(60);
/// Pauses between attempts, growing from the first to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// URL of a collector: `http://` or `https://`, with or without a path.
#[derive(Clone, Debug)]
pub struct Endpoint(Address);

/// A text is not the URL of a collector. The message says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "write it as http://HOST:PORT or https://HOST:PORT, without user name, password, query and fragment, for example \
     http://127.0.0.1:4318; {TRACES} is added to it"
)]
pub struct EndpointFault;

impl From<AddressError> for EndpointFault {
    fn from(_: AddressError) -> Self {
        Self
    }
}

impl FromStr for Endpoint {
    type Err = EndpointFault;

    fn from_str(text: &str) -> Result<Self, EndpointFault> {
        if text.contains('?') {
            return Err(EndpointFault);
        }
        let below = text.strip_suffix('/').unwrap_or(text);
        Ok(Self(Address::parse(&format!("{below}{TRACES}"), Cleartext::Anywhere)?))
    }
}

/// Share of the traces that begin here that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRatio {
    /// Of the 2⁵⁶ chances that a trace has.
    taken: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a share from 0 (none) to 1 (all), for example 0.05 for one in twenty")]
pub struct SampleRatioFault;

impl FromStr for SampleRatio {
    type Err = SampleRatioFault;

    fn from_str(text: &str) -> Result<Self, SampleRatioFault> {
        let share: f64 = text.parse().map_err(|_| SampleRatioFault)?;
        if !(0.0..=1.0).contains(&share) {
            return Err(SampleRatioFault);
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 2⁵⁶")]
        let taken = (56_f64.exp2() * share) as u64;
        Ok(Self { taken })
    }
}

impl SampleRatio {
    /// Returns true if a trace with this chance is recorded.
    pub(super) fn takes(self, chance: u64) -> bool {
        chance < self.taken
    }
}

/// A collector, and the share of requests that is reported to it.
pub struct Collector {
    address: Address,
    client: Client,
    ratio: SampleRatio,
}

impl Collector {
    /// Takes the collector at `endpoint`. Its certificate must be signed by an authority in the file, or by one that the
    /// system trusts.
    pub fn new(
        endpoint: Endpoint,
        authorities: Option<&Path>,
        ratio: SampleRatio,
        proxies: Proxies,
    ) -> Result<Self, TrustError> {
        let ca_option = "--otlp-ca";
        let roots = trust::authorities_for(&endpoint.0, authorities, ca_option)?;
        let (cleartext, response_max) = (Cleartext::Anywhere, RESPONSE_MAX);
        let client = Client::new(Settings { roots, ca_option, cleartext, proxies, response_max });
        Ok(Self { address: endpoint.0, client, ratio })
    }

    pub(super) fn ratio(&self) -> SampleRatio {
        self.ratio
    }
}

/// The callers' end of the queue.
pub(super) struct Exporter {
    queue: mpsc::Sender<Spans>,
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
        let sender = Sender { collector, metrics: Arc::clone(&metrics), stopped, failing: false };
        let task = tokio::spawn(sender.run(waiting));
        Self { queue, stop, task: Mutex::new(Some(task)), metrics }
    }

    /// Queues spans; drops them when the queue is full.
    pub(super) fn take(&self, spans: Spans) {
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

    pub(super) fn write_metrics(&self, page: &mut Page) {
        let ExportMetrics { exported, dropped, rejected } = &*self.metrics;
        page.counter("plantstore_trace_spans_total", "Spans by what became of them.")
            .sample(&[("outcome", "exported".into())], exported.get())
            .sample(&[("outcome", "dropped".into())], dropped.get())
            .sample(&[("outcome", "refused".into())], rejected.get());
        let waiting = self.queue.max_capacity() - self.queue.capacity();
        page.gauge("plantstore_trace_queue_depth", "Requests whose spans wait for the collector.").sample(&[], waiting);
    }
}

/// The task's end.
struct Sender {
    collector: Collector,
    metrics: Arc<ExportMetrics>,
    stopped: watch::Receiver<bool>,
    /// Whether the last attempt failed.
    failing: bool,
}

/// The collector's response to a batch.
enum Verdict {
    /// The collector has stored it, except for these many spans.
    Accepted { rejected: u64 },
    /// It will never be accepted.
    Rejected(String),
    /// It may be accepted later, after this time if the collector names one.
    Later(String, Option<Duration>),
}

impl Sender {
    async fn run(mut self, mut waiting: mpsc::Receiver<Spans>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while self.gather(&mut waiting, &mut batch).await {
            self.deliver(&batch).await;
            batch.clear();
        }
    }

    /// Collects a batch; returns false when there will be no more.
    async fn gather(&mut self, waiting: &mut mpsc::Receiver<Spans>, batch: &mut Vec<Spans>) -> bool {
        let stopped = self.stopped.wait_for(|stopped| *stopped);
        let gathering = async {
            waiting.recv_many(batch, BATCH_MAX).await;
            let deadline = Instant::now() + GATHER;
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

    /// Sends a batch, with retries for a while; only once when the service stops.
    async fn deliver(&mut self, batch: &[Spans]) {
        let count = batch.iter().map(Spans::count).sum();
        let body = Bytes::from(otlp::request(batch));
        let deadline = Instant::now() + RETRY_FOR;
        let mut pause = BACKOFF.0;
        loop {
            let is_last = *self.stopped.borrow();
            let (reason, wanted) = match self.send(body.clone()).await {
                Verdict::Accepted { rejected } => {
                    self.succeeded();
                    let rejected = rejected.min(count);
                    self.metrics.rejected.add(rejected);
                    return self.metrics.exported.add(count - rejected);
                }
                Verdict::Rejected(reason) => {
                    self.failed(&reason);
                    return self.metrics.rejected.add(count);
                }
                Verdict::Later(reason, wanted) => (reason, wanted),
            };
            self.failed(&reason);
            let pausing = wanted.unwrap_or(pause).clamp(BACKOFF.0, BACKOFF.1);
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

    async fn send(&self, body: Bytes) -> Verdict {
        match timeout(REQUEST_TIMEOUT, self.collector.client.post_json(&self.collector.address, body)).await {
            Ok(Ok(response)) => verdict(&response),
            Ok(Err(error @ ClientError::NoTrustRoots(..))) => Verdict::Rejected(error.to_string()),
            Ok(Err(
                error @ (ClientError::Unreachable(..)
                | ClientError::Broken { .. }
                | ClientError::Truncated { .. }
                | ClientError::TooLarge { .. }),
            )) => Verdict::Later(error.to_string(), None),
            Err(_) => Verdict::Later("the collector did not answer in time".to_owned(), None),
        }
    }

    /// Logs the first failure after a success; [`Self::succeeded`] logs the first success after that.
    fn failed(&mut self, error: &str) {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(error, "the collector does not take spans: they are kept for a while, then dropped");
        }
    }

    fn succeeded(&mut self) {
        if std::mem::replace(&mut self.failing, false) {
            tracing::info!("the collector takes spans again");
        }
    }
}

fn verdict(response: &Response) -> Verdict {
    let reason = || format!("it answers {}", response.status);
    let retry_after = || response.headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs);
    match response.status {
        status if status.is_success() => Verdict::Accepted { rejected: rejected_spans(&response.body) },
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Verdict::Later(reason(), retry_after()),
        _ => Verdict::Rejected(reason()),
    }
}

/// Returns the number of spans that a collector rejects while it accepts the others.
fn rejected_spans(body: &[u8]) -> u64 {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Whole {
        partial_success: Option<Partial>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Partial {
        rejected_spans: Option<Number>,
    }
    /// Numbers of 64 bits are strings in this JSON; some collectors write them as numbers.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Text(String),
        Number(u64),
    }
    let rejected = serde_json::from_slice::<Whole>(body).ok().and_then(|whole| whole.partial_success?.rejected_spans);
    match rejected {
        Some(Number::Text(text)) => text.parse().unwrap_or(0),
        Some(Number::Number(number)) => number,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios() {
        let taken = |text: &str| text.parse::<SampleRatio>().map(|ratio| ratio.taken);
        assert_eq!([taken("0"), taken("0.5"), taken("1")], [Ok(0), Ok(1 << 55), Ok(1 << 56)]);
        let all: SampleRatio = "1".parse().expect("a ratio");
        assert!(all.takes((1 << 56) - 1), "all are all");
        for wrong in ["", "-0.1", "1.1", "NaN", "inf", "10%", "a"] {
            assert_eq!(taken(wrong), Err(SampleRatioFault), "{wrong}");
        }
    }

    #[test]
    fn spans_rejected_by_a_partial_success_are_counted() {
        assert_eq!(rejected_spans(br#"{"partialSuccess":{"rejectedSpans":"3"}}"#), 3);
        assert_eq!(rejected_spans(br#"{"partialSuccess":{"rejectedSpans":3,"errorMessage":"x"}}"#), 3);
        for nothing in ["", "{}", "[]", r#"{"partialSuccess":{}}"#, r#"{"partialSuccess":{"rejectedSpans":"x"}}"#] {
            assert_eq!(rejected_spans(nothing.as_bytes()), 0, "{nothing}");
        }
    }
}
