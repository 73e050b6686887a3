//! Sends the body of a response within the client's flow-control window, and abandons it if the client opens the window too
//! slowly.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, SendStream};
use tokio::time::{Instant, timeout_at};

use super::stream_limit::StreamLimit;
use crate::transport::handler::ResponseBody;
use crate::transport::state::Transport;

/// Average rate at which a client must read a response, in bytes per second.
const BYTES_PER_SECOND: u32 = 256;
/// Time after which a blocked response is reset if there are too many of them.
const CROWDED_AFTER: Duration = Duration::from_secs(1);

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
            match poll_fn(|task| Pin::new(&mut body).poll_frame(task)).await {
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
    transport: &'static Transport,
    streams: &'a StreamLimit,
    /// Time that the response may still be blocked. Time spent blocked is subtracted, and bytes sent add to it.
    left: Duration,
}

impl<'a> Window<'a> {
    pub(super) fn new(transport: &'static Transport, streams: &'a StreamLimit) -> Self {
        Self { transport, streams, left: transport.limits.write_timeout }
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

    /// Adds the time that the client earns by reading these bytes.
    fn sent(&mut self, bytes: usize) {
        let earned = Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / BYTES_PER_SECOND;
        self.left = (self.left + earned).min(self.transport.limits.write_timeout);
    }
}
