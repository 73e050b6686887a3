//! Sends the body of a response within the client's flow-control window, and abandons it if the client opens the window too
//! slowly. Limits the requests in flight and the memory of one connection, in proportion to the number of open connections.

use std::future::poll_fn;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, SendStream};
use plantstore_telemetry::metrics::{Gauge, GaugeGuard};
use tokio::time::{Instant, timeout_at};

use crate::transport::handler::{BufferBudget, ResponseBody};
use crate::transport::state::Transport;

/// Average rate at which a client must read a response, in bytes per second.
const BYTES_PER_SECOND: u32 = 256;
/// Time after which a blocked response is reset if there are too many of them.
const CROWDED_AFTER: Duration = Duration::from_secs(1);

/// Maximum number of buffers that the responses of a connection hold.
const BUFFERS_MAX: usize = 2;

/// Sends a body. A piece is produced only when the window has capacity, so that a response that is not read takes no memory.
pub(super) async fn send(mut body: impl ResponseBody, mut stream: SendStream<Bytes>, mut window: Window<'_>) {
    let mut data = Bytes::new();
    loop {
        let capacity = match window.capacity(&mut stream, data.len().max(1)).await {
            Ok(capacity) => capacity,
            Err(reason) => {
                body.abandon();
                return stream.send_reset(reason);
            }
        };
        if data.is_empty() {
            let next_frame = poll_fn(|task| Pin::new(&mut body).poll_frame(task));
            let frame = tokio::select! {
                biased;
                frame = next_frame => frame,
                // The client is not interested any more.
                _ = poll_fn(|task| stream.poll_reset(task)) => return body.abandon(),
            };
            match frame {
                Some(Ok(frame)) => data = frame.into_data().unwrap_or_default(),
                // A reset, so that the client does not take half a response for the whole.
                Some(Err(_)) => return stream.send_reset(Reason::INTERNAL_ERROR),
                None => break,
            }
            continue;
        }
        let piece = data.split_to(capacity.min(data.len()));
        window.sent(piece.len());
        let is_last = data.is_empty() && body.is_end_stream();
        if stream.send_data(piece, is_last).is_err() {
            return body.abandon();
        }
        if is_last {
            return;
        }
    }
    if stream.send_data(Bytes::new(), true).is_err() {
        body.abandon();
    }
}

/// The flow-control window of a response, and the time that the client has left to open it.
pub(super) struct Window<'a> {
    streams: &'a StreamLimit,
    /// Time that the response may still be blocked. Time spent blocked is subtracted, and bytes sent add to it.
    left: Duration,
}

impl<'a> Window<'a> {
    pub(super) fn new(streams: &'a StreamLimit) -> Self {
        Self { streams, left: streams.transport.limits.write_timeout }
    }

    /// Waits until some of the `wanted` bytes can be sent; returns their number. The error is the code of the reset.
    async fn capacity(&mut self, stream: &mut SendStream<Bytes>, wanted: usize) -> Result<usize, Reason> {
        stream.reserve_capacity(wanted);
        if stream.capacity() > 0 {
            return Ok(stream.capacity());
        }
        let _blocked = self.streams.block();
        let since = Instant::now();
        let deadline = since + self.left;
        let mut capacity =
            timeout_at(deadline.min(since + CROWDED_AFTER), poll_fn(|task| stream.poll_capacity(task))).await;
        if capacity.is_err() && self.left > CROWDED_AFTER {
            if self.streams.is_over_blocked_limit() {
                return Err(Reason::ENHANCE_YOUR_CALM);
            }
            capacity = timeout_at(deadline, poll_fn(|task| stream.poll_capacity(task))).await;
        }
        self.left = self.left.saturating_sub(since.elapsed());
        match capacity {
            Ok(Some(Ok(capacity))) => Ok(capacity),
            // The client has disconnected, or takes too long.
            Ok(_) | Err(_) => Err(Reason::CANCEL),
        }
    }

    fn sent(&mut self, bytes: usize) {
        let earned = Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / BYTES_PER_SECOND;
        self.left = (self.left + earned).min(self.streams.transport.limits.write_timeout);
    }
}

pub(super) struct StreamLimit {
    pub(super) transport: &'static Transport,
    pub(super) in_flight: Gauge,
    /// Requests whose response waits for the client's flow-control window.
    blocked: Gauge,
    pub(super) buffers: BufferBudget,
}

impl StreamLimit {
    pub(super) fn new(transport: &'static Transport) -> Self {
        let buffers = BufferBudget::new(BUFFERS_MAX);
        Self { transport, in_flight: Gauge::default(), blocked: Gauge::default(), buffers }
    }

    /// Counts a response as blocked, on this connection and on all, until the return value is dropped.
    fn block(&self) -> (GaugeGuard<'_>, GaugeGuard<'static>) {
        (self.blocked.hold(), self.transport.blocked.hold())
    }

    /// Returns true if all connections have more requests in flight than `--max-connections`, and this one more than its share.
    /// Blocked and open-ended responses do not count, because they take almost no memory.
    pub(super) fn is_over_limit(&self) -> bool {
        let waiting = count(&self.transport.blocked) + count(&self.transport.open_ended);
        self.transport.requests.count().saturating_sub(waiting) > self.transport.limits.max_connections
            && count(&self.in_flight).saturating_sub(count(&self.blocked)) > self.share()
    }

    /// Returns true if there are too many blocked responses, on all connections and on this one.
    fn is_over_blocked_limit(&self) -> bool {
        count(&self.transport.blocked) > self.transport.limits.max_connections && count(&self.blocked) > self.share()
    }

    /// Returns the number of requests that is guaranteed to each connection.
    fn share(&self) -> usize {
        let open = NonZeroUsize::new(self.transport.connections.count()).unwrap_or(NonZeroUsize::MIN);
        (self.transport.limits.max_connections / open).max(1)
    }
}

fn count(gauge: &Gauge) -> usize {
    usize::try_from(gauge.get()).unwrap_or_default()
}
