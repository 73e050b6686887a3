//! Hands spans to a collector (OTLP over HTTP, in JSON): gathered in a bounded queue, sent by one task. A collector that is
//! slow or away costs spans, which are counted, and never a request.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Spans, otlp};
use plantstore_client::https::{Address, AddressFault, Answer, Clear, Client, ClientFault};
use plantstore_client::trust::TrustFault;
use plantstore_telemetry::metrics::{Counter, Page};

/// Where a collector takes spans, below its own address.
const TRACES: &str = "/v1/traces";
/// Requests whose spans may wait for the collector; those of others are dropped.
const QUEUE_MAX: usize = 2_048;
/// Requests whose spans are sent together.
const BATCH_MAX: usize = 512;
/// How long the first of them waits for the others.
const GATHER: Duration = Duration::from_secs(1);
/// How long the collector may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a batch is tried again before it is dropped.
const RETRY_FOR: Duration = Duration::from_secs(60);
/// Pauses between attempts, growing from the first to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Where a collector is: `http://` or `https://`, with or without a path.
#[derive(Clone, Debug)]
pub struct Endpoint(Address);

/// Why a text is not the address of a collector. The messages say what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "write it as http://HOST:PORT or https://HOST:PORT, without user name, password, query and fragment, for example \
     http://127.0.0.1:4318; {TRACES} is added to it"
)]
pub struct EndpointFault;

impl From<AddressFault> for EndpointFault {
    fn from(_: AddressFault) -> Self {
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
        Ok(Self(Address::parse(&format!("{below}{TRACES}"), Clear::Anywhere)?))
    }
}

/// How many of the traces that begin here are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRatio {
    /// Of the 2⁵⁶ chances that a trace has.
    taken: u64,
}

/// Why a text is no [`SampleRatio`].
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
    /// Whether a trace with this chance is recorded.
    pub(super) fn takes(self, chance: u64) -> bool {
        chance < self.taken
    }
}

/// Whom to tell of requests, and of how many.
pub struct Collector {
    address: Address,
    client: Client,
    ratio: SampleRatio,
}

impl Collector {
    /// The collector at `endpoint`. It is known by a certificate of the authorities in the file, or else of the system's.
    pub fn new(endpoint: Endpoint, authorities: Option<&Path>, ratio: SampleRatio) -> Result<Self, TrustFault> {
        let client = Client::new(&endpoint.0, authorities, "--otlp-ca")?;
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

/// What became of spans.
#[derive(Default)]
struct ExportMetrics {
    exported: Counter,
    dropped: Counter,
    refused: Counter,
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

    /// Takes spans to hand over; drops them when too many wait.
    pub(super) fn take(&self, spans: Spans) {
        let count = spans.count();
        if self.queue.try_send(spans).is_err() {
            self.metrics.dropped.add(count);
        }
    }

    /// Sends what waits, without a pause, and ends.
    pub(super) async fn finish(&self) {
        self.stop.send_replace(true);
        if let Some(task) = self.task.lock().await.take() {
            let _ = task.await;
        }
    }

    pub(super) fn write_metrics(&self, page: &mut Page) {
        let ExportMetrics { exported, dropped, refused } = &*self.metrics;
        page.counter("plantstore_trace_spans_total", "Spans by what became of them.")
            .sample(&[("outcome", "exported".into())], exported.get())
            .sample(&[("outcome", "dropped".into())], dropped.get())
            .sample(&[("outcome", "refused".into())], refused.get());
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

/// What the collector made of a batch.
enum Verdict {
    /// It has it, but for so many spans.
    Taken { refused: u64 },
    /// It will never take it.
    Refused(String),
    /// It may take it later; after this time, if it says so.
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

    /// Gathers a batch; false when there will be none any more.
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
            // What has come until now is still handed over.
            waiting.close();
            while batch.len() < BATCH_MAX
                && let Ok(spans) = waiting.try_recv()
            {
                batch.push(spans);
            }
        }
        !batch.is_empty()
    }

    /// Sends a batch, again and again for a while if need be; once, when the service stops.
    async fn deliver(&mut self, batch: &[Spans]) {
        let count = batch.iter().map(Spans::count).sum();
        let body = Bytes::from(otlp::request(batch));
        let deadline = Instant::now() + RETRY_FOR;
        let mut pause = BACKOFF.0;
        loop {
            let is_last = *self.stopped.borrow();
            let (why, wanted) = match self.send(body.clone()).await {
                Verdict::Taken { refused } => {
                    self.succeeded();
                    let refused = refused.min(count);
                    self.metrics.refused.add(refused);
                    return self.metrics.exported.add(count - refused);
                }
                Verdict::Refused(why) => {
                    self.failed(&why);
                    return self.metrics.refused.add(count);
                }
                Verdict::Later(why, wanted) => (why, wanted),
            };
            self.failed(&why);
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
        match timeout(PATIENCE, self.collector.client.post_json(&self.collector.address, body)).await {
            Ok(Ok(answer)) => verdict(&answer),
            Ok(Err(fault @ (ClientFault::Unreachable(..) | ClientFault::Broken(..)))) => {
                Verdict::Later(fault.to_string(), None)
            }
            Ok(Err(fault @ ClientFault::NobodyTrusted(..))) => Verdict::Refused(fault.to_string()),
            Err(_) => Verdict::Later("the collector did not answer in time".to_owned(), None),
        }
    }

    /// The first failure after a success is worth a line, and so is the first success after that.
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

fn verdict(answer: &Answer) -> Verdict {
    let why = || format!("it answers {}", answer.status);
    match answer.status {
        status if status.is_success() => Verdict::Taken { refused: refused_of(&answer.body) },
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Verdict::Later(why(), answer.retry_after.map(Duration::from_secs)),
        _ => Verdict::Refused(why()),
    }
}

/// How many spans a collector refuses that takes the others.
fn refused_of(body: &[u8]) -> u64 {
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
    /// Numbers of 64 bits are strings in this JSON, and some write them as numbers.
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
    fn what_a_collector_refuses_of_what_it_takes() {
        assert_eq!(refused_of(br#"{"partialSuccess":{"rejectedSpans":"3"}}"#), 3);
        assert_eq!(refused_of(br#"{"partialSuccess":{"rejectedSpans":3,"errorMessage":"x"}}"#), 3);
        for nothing in ["", "{}", "[]", r#"{"partialSuccess":{}}"#, r#"{"partialSuccess":{"rejectedSpans":"x"}}"#] {
            assert_eq!(refused_of(nothing.as_bytes()), 0, "{nothing}");
        }
    }
}
