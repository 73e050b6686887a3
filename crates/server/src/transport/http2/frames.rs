//! Follows the frames of an HTTP/2 connection as they arrive, to enforce the deadline of request heads and the limit on control
//! frames.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, oneshot};

use crate::transport::stream::{PREFACE, Stream, Timer};

/// Length (3 bytes), type, flags and stream id (4 bytes).
const FRAME_HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// A stream that enforces the header timeout on all frames except DATA.
pub(super) struct FrameStream {
    /// `None` once it is given back.
    stream: Option<Stream>,
    tracker: FrameTracker,
    timeout: Duration,
    reading: Timer,
    /// Notified when the client sends too many control frames. After that, nothing is read.
    flood: Arc<Notify>,
    give_back: Option<oneshot::Sender<Stream>>,
}

impl FrameStream {
    /// `flood` is notified when there are too many control frames. The receiver gets the stream back when this is dropped.
    pub(super) fn new(stream: Stream, timeout: Duration, flood: Arc<Notify>) -> (Self, oneshot::Receiver<Stream>) {
        let (give_back, returned) = oneshot::channel();
        let frames = Self {
            stream: Some(stream),
            tracker: FrameTracker::new(),
            timeout,
            reading: Timer::default(),
            flood,
            give_back: Some(give_back),
        };
        (frames, returned)
    }

    fn stream(&mut self) -> io::Result<Pin<&mut Stream>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for FrameStream {
    fn drop(&mut self) {
        if let (Some(stream), Some(give_back)) = (self.stream.take(), self.give_back.take()) {
            // Without a receiver, the stream is closed.
            let _ = give_back.send(stream);
        }
    }
}

impl AsyncRead for FrameStream {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.tracker.flooded {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        if let Poll::Ready(read) = self.stream()?.poll_read(task, buffer) {
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

impl AsyncWrite for FrameStream {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(self.stream()?.poll_write(task, bytes))?;
        self.tracker.control.add_written(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(task)
    }
}

/// The position in the sequence of frames.
struct FrameTracker {
    head: [u8; FRAME_HEAD],
    head_length: usize,
    /// Bytes of the current frame that have not arrived yet.
    left: usize,
    /// The head of a request continues in the next frame.
    continues: bool,
    /// Arrival time of the first byte of an incomplete frame or request head. `None` during the body of a request, which has a
    /// deadline of its own.
    unfinished: Option<Instant>,
    control: ControlFrameLimit,
    /// The client has sent too many control frames.
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
            control: ControlFrameLimit::new(),
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
                self.control.add_request();
            }
            CONTINUATION => self.continues = flags & END_HEADERS == 0,
            DATA => self.unfinished = None,
            _ => self.flooded |= !self.control.take(),
        }
    }
}

/// Capacity of the bucket of control frames.
const BURST: u32 = 1_000;
/// Time in which one token is added.
const REFILL_INTERVAL: Duration = Duration::from_millis(50);
/// Tokens added for a request, which may come with priorities, window updates and a cancellation.
const PER_REQUEST: u32 = 4;
/// Bytes written to the client for which one token is added, because the client sends window updates.
const BYTES_PER_FRAME: usize = 1_024;

/// Token bucket of control frames. Such a frame is cheap for the client, but the server must process it and often reply. Normal
/// clients send a few per request and per amount of data they read. The connection of a client that sends many more is closed.
struct ControlFrameLimit {
    left: u32,
    refilled: Instant,
    /// Bytes written for which no token was added yet.
    bytes: usize,
}

impl ControlFrameLimit {
    fn new() -> Self {
        Self { left: BURST, refilled: Instant::now(), bytes: 0 }
    }

    /// Takes a token; `false` if the client has sent too many frames.
    fn take(&mut self) -> bool {
        if self.left == 0 {
            self.refill();
        }
        let taken = self.left.checked_sub(1);
        self.left = taken.unwrap_or(0);
        taken.is_some()
    }

    fn add_request(&mut self) {
        self.add(PER_REQUEST);
    }

    fn add_written(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.add(u32::try_from(self.bytes / BYTES_PER_FRAME).unwrap_or(BURST));
        self.bytes %= BYTES_PER_FRAME;
    }

    /// Adds the tokens for the time since the last refill. Called only when the bucket is empty, to save reading the clock.
    fn refill(&mut self) {
        let earned = self.refilled.elapsed().as_nanos() / REFILL_INTERVAL.as_nanos();
        if earned > 0 {
            self.refilled = Instant::now();
            self.add(u32::try_from(earned).unwrap_or(BURST));
        }
    }

    fn add(&mut self, frames: u32) {
        self.left = self.left.saturating_add(frames).min(BURST);
    }
}
