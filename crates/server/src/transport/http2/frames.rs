//! Follows the frames of an HTTP/2 connection as they arrive, to enforce the deadline of request heads and the limit on control
//! frames.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::transport::stream::{PREFACE, Stream, Timer};

/// Length (3 bytes), type, flags and stream id (4 bytes).
const FRAME_HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// A stream that enforces the header timeout on all frames except DATA.
pub(super) struct FrameStream<'a> {
    stream: &'a mut Stream,
    tracker: FrameTracker,
    timeout: Duration,
    reading: Timer,
    /// Notified when the client sends too many control frames. After that, nothing is read.
    flood: &'a Notify,
}

impl<'a> FrameStream<'a> {
    pub(super) fn new(stream: &'a mut Stream, timeout: Duration, flood: &'a Notify) -> Self {
        Self { stream, tracker: FrameTracker::new(), timeout, reading: Timer::default(), flood }
    }
}

impl AsyncRead for FrameStream<'_> {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.tracker.flooded {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut *self.stream).poll_read(task, buffer) {
            self.tracker.follow(&buffer.filled()[before..]);
            if self.tracker.flooded {
                buffer.set_filled(before);
                self.flood.notify_one();
                return Poll::Pending;
            }
            return Poll::Ready(read);
        }
        let Some(since) = self.tracker.unfinished else {
            return Poll::Pending;
        };
        let deadline = since + self.timeout;
        ready!(self.reading.poll(deadline, task));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for FrameStream<'_> {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut *self.stream).poll_write(task, bytes))?;
        self.tracker.control.add(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(task)
    }
}

struct FrameTracker {
    head: [u8; FRAME_HEAD],
    head_length: usize,
    /// Bytes of the current frame that have not arrived yet.
    left: usize,
    /// The head of a request continues in the next frame.
    continues: bool,
    /// Arrival time of the first byte of an incomplete frame or head; `None` in a body, which has its own deadline.
    unfinished: Option<Instant>,
    control: ControlFrameLimit,
    flooded: bool,
}

impl FrameTracker {
    fn new() -> Self {
        Self {
            head: [0; FRAME_HEAD],
            head_length: 0,
            left: PREFACE.len(),
            continues: false,
            unfinished: None,
            control: ControlFrameLimit { left: BURST, refilled: Instant::now() },
            flooded: false,
        }
    }

    fn follow(&mut self, mut bytes: &[u8]) {
        while let Some(next) = bytes.first() {
            if self.left > 0 {
                let length = self.left.min(bytes.len());
                bytes = &bytes[length..];
                self.left -= length;
            } else {
                self.unfinished.get_or_insert_with(Instant::now);
                self.head[self.head_length] = *next;
                self.head_length += 1;
                bytes = &bytes[1..];
                if self.head_length == FRAME_HEAD {
                    self.begin_frame();
                }
            }
            if self.left == 0 && self.head_length == 0 && !self.continues {
                self.unfinished = None;
            }
        }
    }

    fn begin_frame(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.head_length = 0;
        self.left = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        match kind {
            HEADERS => {
                self.continues = flags & END_HEADERS == 0;
                self.control.add(PER_REQUEST);
            }
            CONTINUATION => self.continues = flags & END_HEADERS == 0,
            DATA => self.unfinished = None,
            _ => self.flooded |= !self.control.take(),
        }
    }
}

/// Bytes that must be written to the client for each of its control frames, because a client that reads sends window updates.
const PER_FRAME: usize = 1_024;
/// Bytes that a request counts as, which may come with priorities, window updates and a cancellation.
const PER_REQUEST: usize = 4 * PER_FRAME;
/// Bytes that a second counts as.
const PER_SECOND: usize = 20 * PER_FRAME;
const BURST: usize = 1_000 * PER_FRAME;

/// Token bucket of control frames, in bytes. Such a frame is cheap for the client, but the server must process it and often reply.
/// A client that sends many more than the usual few for a request and for some data is disconnected.
struct ControlFrameLimit {
    left: usize,
    refilled: Instant,
}

impl ControlFrameLimit {
    fn add(&mut self, bytes: usize) {
        self.left = self.left.saturating_add(bytes).min(BURST);
    }

    /// Takes the bytes of a frame; `false` if the client has sent too many.
    fn take(&mut self) -> bool {
        if self.left < PER_FRAME && self.refilled.elapsed() >= Duration::from_secs(1) {
            let seconds = usize::try_from(self.refilled.elapsed().as_secs()).unwrap_or(usize::MAX);
            self.add(PER_SECOND.saturating_mul(seconds));
            self.refilled = Instant::now();
        }
        let rest = self.left.checked_sub(PER_FRAME);
        self.left = rest.unwrap_or(0);
        rest.is_some()
    }
}
