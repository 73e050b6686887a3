//! One connection's bytes, under deadlines.
//!
//! The HTTP library reads and writes through a [`Wire`], which knows from its [`Line`] whether a request is awaited,
//! arriving or at work, and ends the connection when the deadline of that state passes. It also holds back the answers
//! that the library would give on its own to requests it cannot parse: those are answered by us, in our shape.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::context::REQUEST_ID;
use super::error::ApiError;
use super::limits::Limits;

/// How long the last words on a connection may take, and how long its unread rest is thrown away afterwards: closing a
/// socket with unread bytes would take our answer away from a client that is still sending.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Unread bytes thrown away at the most.
const LINGER_BYTES: usize = 1 << 20;

/// The state of a connection, shared by its wire, its requests and its driver.
pub(crate) struct Line {
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    ending: Option<Ending>,
    linger: bool,
}

#[derive(Clone, Copy)]
enum Phase {
    /// Nothing has been sent on this connection yet.
    New(Instant),
    /// Between two requests.
    Idle(Instant),
    /// The head of a request is arriving.
    Head(Instant),
    /// A request is at work: its body and its answer have deadlines of their own.
    Busy,
}

/// Why a connection ends without the library's doing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    /// Nothing came for too long: nobody waits for an answer.
    Silent,
    HeadTimeout,
    HeadTooLarge,
    Malformed,
}

impl Ending {
    pub(crate) fn error(self) -> Option<ApiError> {
        match self {
            Self::Silent => None,
            Self::HeadTimeout => Some(ApiError::RequestTimeout),
            Self::HeadTooLarge => Some(ApiError::HeadersTooLarge),
            Self::Malformed => Some(ApiError::BadRequest("the request is not well-formed HTTP/1.1")),
        }
    }
}

impl Line {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State { phase: Phase::New(Instant::now()), ending: None, linger: false }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request's head is complete; says when its first byte arrived.
    pub(crate) fn begin(&self) -> Instant {
        let mut state = self.state();
        state.linger = false;
        match std::mem::replace(&mut state.phase, Phase::Busy) {
            Phase::Head(since) => since,
            // It came in one piece with the request before it.
            Phase::New(_) | Phase::Idle(_) | Phase::Busy => Instant::now(),
        }
    }

    /// A request's answer has ended.
    pub(crate) fn end(&self) {
        self.state().phase = Phase::Idle(Instant::now());
    }

    /// The client may still be sending what nobody will read.
    pub(crate) fn expect_unread(&self) {
        self.state().linger = true;
    }

    pub(crate) fn ending(&self) -> Option<Ending> {
        self.state().ending
    }

    /// Since when the connection is in its present state.
    pub(crate) fn since(&self) -> Instant {
        match self.state().phase {
            Phase::New(since) | Phase::Idle(since) | Phase::Head(since) => since,
            Phase::Busy => Instant::now(),
        }
    }

    pub(crate) fn lingers(&self) -> bool {
        self.state().linger
    }
}

/// A socket with deadlines.
pub(crate) struct Wire {
    stream: TcpStream,
    line: Arc<Line>,
    limits: Arc<Limits>,
    reading: Timer,
    writing: Timer,
    /// Since when the client takes nothing of what is written to it.
    stalled: Option<Instant>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream, line: Arc<Line>, limits: Arc<Limits>) -> Self {
        Self { stream, line, limits, reading: Timer(None), writing: Timer(None), stalled: None }
    }

    /// What ends the connection if nothing is read until then.
    fn read_deadline(&self) -> Option<(Instant, Ending)> {
        match self.line.state().phase {
            Phase::New(since) => Some((since + self.limits.header_timeout, Ending::Silent)),
            Phase::Idle(since) => Some((since + self.limits.idle_timeout, Ending::Silent)),
            Phase::Head(since) => Some((since + self.limits.header_timeout, Ending::HeadTimeout)),
            Phase::Busy => None,
        }
    }

    fn read_bytes(&self) {
        let mut state = self.line.state();
        if let Phase::New(_) | Phase::Idle(_) = state.phase {
            state.phase = Phase::Head(Instant::now());
        }
    }

    /// Answers in the library's place and gives the client a moment to take it.
    pub(crate) async fn last_words(mut self, answer: &[u8]) {
        let farewell = async {
            self.stream.write_all(answer).await?;
            self.stream.shutdown().await
        };
        if let Ok(Ok(())) = tokio::time::timeout(LAST_WORDS, farewell).await {
            self.linger().await;
        }
    }

    /// Throws away what the client is still sending, for a while.
    pub(crate) async fn linger(mut self) {
        let discard = async {
            let mut buffer = vec![0; 16 * 1024];
            let mut discarded = 0;
            while let Ok(length @ 1..) = self.stream.read(&mut buffer).await {
                discarded += length;
                if discarded > LINGER_BYTES {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(LAST_WORDS, discard).await;
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(task, buffer) {
            if buffer.filled().len() > before {
                self.read_bytes();
            }
            return Poll::Ready(read);
        }
        let Some((deadline, ending)) = self.read_deadline() else {
            return Poll::Pending;
        };
        ready!(self.reading.poll(deadline, task));
        self.line.state().ending = Some(ending);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let bytes = match library_answer(bytes) {
            Some((0, ending)) => {
                self.line.state().ending = Some(ending);
                return Poll::Ready(Ok(bytes.len()));
            }
            // First what is ours; the rest is offered again.
            Some((start, _)) => &bytes[..start],
            None => bytes,
        };
        if let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(task, bytes) {
            self.stalled = None;
            return Poll::Ready(written);
        }
        let since = *self.stalled.get_or_insert_with(Instant::now);
        let deadline = since + self.limits.write_timeout;
        ready!(self.writing.poll(deadline, task));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The last words are still to be said.
        if self.line.ending().is_some() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(task)
    }
}

/// Where in `bytes` an answer of the library's own starts, and what it is about. It answers by itself only when it cannot
/// parse a request; such an answer is the last thing it writes, has no body, and lacks the header all of ours have. A
/// text inside a body cannot look like one: JSON holds no line breaks within strings.
fn library_answer(bytes: &[u8]) -> Option<(usize, Ending)> {
    /// The library takes the minor version of the request before.
    const STATUSES: [&[u8]; 2] = [b"HTTP/1.1 4", b"HTTP/1.0 4"];
    const NO_BODY: &[u8] = b"\r\ncontent-length: 0\r\n";
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let start = bytes.windows(STATUSES[0].len()).rposition(|window| STATUSES.contains(&window))?;
    let head = &bytes[start..];
    let holds = |text: &[u8]| head.windows(text.len()).any(|window| window == text);
    if holds(REQUEST_ID.as_bytes()) || !holds(NO_BODY) {
        return None;
    }
    let too_large = head[b"HTTP/1.1 ".len()..].starts_with(b"431");
    Some((start, if too_large { Ending::HeadTooLarge } else { Ending::Malformed }))
}

/// A timer for deadlines that mostly move away before they come: it is set anew only for an earlier one, and when it
/// rings too early.
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    fn poll(&mut self, deadline: Instant, task: &mut Context<'_>) -> Poll<()> {
        let deadline = tokio::time::Instant::from_std(deadline);
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if deadline < sleep.deadline() {
            sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(sleep.as_mut().poll(task));
            if tokio::time::Instant::now() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}
