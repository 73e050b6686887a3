//! The bytes of an HTTP/1.1 connection, under deadlines.
//!
//! The HTTP library reads and writes through a [`Wire`], which knows from its [`Line`] whether a request is awaited,
//! arriving or at work, and ends the connection when the deadline of that state passes. It also holds back the answers
//! that the library would give on its own to requests it cannot parse: those are answered by us, in our shape. And it
//! notices when the first bytes are those of HTTP/2, which costs a connection that speaks HTTP/1.1 one comparison.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use hyper::header::{HeaderMap, HeaderValue, TRANSFER_ENCODING};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::context::REQUEST_ID;
use super::error::ApiError;
use super::limits::Limits;
use super::socket::{Stream, Timer};

/// What a client that knows it speaks HTTP/2 sends first.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

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
    /// The body that a head announces has more bytes than the library can count.
    BodyTooLarge,
    Malformed,
    /// The client took nothing of its answer for too long.
    Stalled,
    /// The client broke the protocol of HTTP/2, or sent too many control frames.
    Misuse,
    /// The client speaks HTTP/2: the connection goes on without this library.
    Http2,
}

impl Ending {
    pub(crate) fn error(self, limits: &Limits) -> Option<ApiError> {
        match self {
            Self::Silent | Self::Stalled | Self::Misuse | Self::Http2 => None,
            Self::HeadTimeout => Some(ApiError::RequestTimeout),
            Self::HeadTooLarge => Some(ApiError::HeadersTooLarge),
            Self::BodyTooLarge => Some(ApiError::BodyTooLarge { limit: limits.body_bytes, close: true }),
            Self::Malformed => Some(ApiError::BadRequest("the request is not well-formed HTTP/1.1")),
        }
    }
}

impl Ending {
    /// Tells the two causes of the library's 431 apart by what it left in its buffer: a head that is too large is still there, a
    /// head that announces more bytes than the library can count was taken out, and at most a body follows.
    pub(crate) fn with_unparsed(self, unparsed: &[u8], limits: &Limits) -> Self {
        let is_method = unparsed.first().is_some_and(u8::is_ascii_alphabetic);
        let lines = unparsed.split(|byte| *byte == b'\n').count();
        let is_large_head = is_method && (unparsed.len() >= limits.header_bytes || lines > limits.header_fields);
        match self {
            Self::HeadTooLarge if !is_large_head => Self::BodyTooLarge,
            ending => ending,
        }
    }
}

/// Checks that the bytes of a body are delimited in a way that leaves no doubt: by chunks alone, or by a length. The library
/// only looks at the last coding, and would take the bytes of an encoded body for the body itself.
pub(crate) fn check_transfer_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut lines = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |line: &HeaderValue| line.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    if lines.next().is_none_or(is_chunked) && lines.next().is_none() {
        Ok(())
    } else {
        Err(ApiError::BadTransferEncoding)
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

/// A stream with deadlines.
pub(crate) struct Wire {
    stream: Stream,
    line: Arc<Line>,
    limits: Arc<Limits>,
    reading: Timer,
    /// How many bytes have come that are those of the preface; `None` once the protocol is known.
    preface: Option<usize>,
    /// What was read and is yet to be handed on.
    held: Vec<u8>,
}

impl Wire {
    /// A wire for whoever speaks HTTP/1.1, or for anybody.
    pub(crate) fn new(stream: Stream, line: Arc<Line>, limits: Arc<Limits>, any_protocol: bool) -> Self {
        let preface = any_protocol.then_some(0);
        Self { stream, line, limits, reading: Timer::default(), preface, held: Vec::new() }
    }

    /// The stream, and what was read from it and not handed on.
    pub(crate) fn into_parts(self) -> (Stream, Vec<u8>) {
        (self.stream, self.held)
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

    /// Looks whether the bytes that were just read, behind the first `before` of the buffer, are the beginning of HTTP/2.
    /// As long as they may be, and when they are, they are kept back.
    fn recognise(&mut self, seen: usize, buffer: &mut ReadBuf<'_>, before: usize) -> Recognised {
        let fresh = &buffer.filled()[before..];
        let alike = fresh.iter().zip(&PREFACE[seen..]).take_while(|(byte, expected)| byte == expected).count();
        let recognised = match seen + alike {
            all if all == PREFACE.len() => Recognised::Http2,
            some if alike == fresh.len() && alike > 0 => {
                self.preface = Some(some);
                buffer.set_filled(before);
                return Recognised::NotYet;
            }
            _ => Recognised::Http1,
        };
        self.preface = None;
        if seen > 0 || matches!(recognised, Recognised::Http2) {
            self.held = [&PREFACE[..seen], fresh].concat();
            buffer.set_filled(before);
        }
        recognised
    }

    fn end(&self, ending: Ending, error: io::ErrorKind) -> Poll<io::Result<()>> {
        self.line.state().ending = Some(ending);
        Poll::Ready(Err(error.into()))
    }

    fn hand_on(&mut self, buffer: &mut ReadBuf<'_>) {
        let length = self.held.len().min(buffer.remaining());
        buffer.put_slice(&self.held[..length]);
        self.held.drain(..length);
    }
}

/// What the first bytes of a connection tell.
enum Recognised {
    NotYet,
    Http1,
    Http2,
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.held.is_empty() {
            self.hand_on(buffer);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        while let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(task, buffer) {
            if buffer.filled().len() > before {
                self.read_bytes();
            }
            if let (Ok(()), Some(seen)) = (&read, self.preface) {
                match self.recognise(seen, buffer, before) {
                    Recognised::NotYet => continue,
                    Recognised::Http1 => self.hand_on(buffer),
                    Recognised::Http2 => return self.end(Ending::Http2, io::ErrorKind::Unsupported),
                }
            }
            return Poll::Ready(read);
        }
        let Some((deadline, ending)) = self.read_deadline() else {
            return Poll::Pending;
        };
        ready!(self.reading.poll(deadline, task));
        self.end(ending, io::ErrorKind::TimedOut)
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
        Pin::new(&mut self.stream).poll_write(task, bytes)
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
    let starts = |(place, byte): &(usize, &u8)| {
        // The first byte alone first: answers without a body are common, and those of the library are not.
        **byte == b'H' && STATUSES.iter().any(|status| bytes[*place..].starts_with(status))
    };
    let (start, _) = bytes.iter().enumerate().rev().find(starts)?;
    let head = &bytes[start..];
    let holds = |text: &[u8]| head.windows(text.len()).any(|window| window == text);
    if holds(REQUEST_ID.as_bytes()) || !holds(NO_BODY) {
        return None;
    }
    let too_large = head[b"HTTP/1.1 ".len()..].starts_with(b"431");
    Some((start, if too_large { Ending::HeadTooLarge } else { Ending::Malformed }))
}
