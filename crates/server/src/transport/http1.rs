//! HTTP/1.1: the bytes of a connection under deadlines.
//!
//! The HTTP library reads and writes through an [`Http1Stream`], which knows from the [`ConnectionState`] whether a request is
//! awaited, arriving or in flight, and ends the connection when the deadline of that phase passes. It also holds back the
//! responses that hyper would give on its own to requests it cannot parse: the handler renders those. And it detects
//! the first bytes of HTTP/2, which costs a connection that speaks HTTP/1.1 one comparison.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection_state::{CloseReason, ConnectionState, Phase};
use super::handler::REQUEST_ID;
use super::http2::PREFACE;
use super::socket::Timer;
use super::state::Transport;
use super::stream::Stream;

/// A stream with deadlines.
pub(super) struct Http1Stream {
    stream: Stream,
    connection: Arc<ConnectionState>,
    transport: &'static Transport,
    reading: Timer,
    /// Number of bytes received that match the HTTP/2 preface; `None` once the protocol is known.
    preface: Option<usize>,
    /// Bytes that were read and not yet passed on.
    held: Vec<u8>,
}

impl Http1Stream {
    /// A stream of HTTP/1.1, or of either protocol.
    pub(super) fn new(
        stream: Stream,
        connection: Arc<ConnectionState>,
        transport: &'static Transport,
        detect_http2: bool,
    ) -> Self {
        let preface = detect_http2.then_some(0);
        Self { stream, connection, transport, reading: Timer::default(), preface, held: Vec::new() }
    }

    /// Returns the stream, and the bytes that were read from it and not passed on.
    pub(super) fn into_parts(self) -> (Stream, Vec<u8>) {
        (self.stream, self.held)
    }

    /// Returns the time until which something must be read, and the reason for which the connection ends otherwise.
    fn read_deadline(&self) -> Option<(Instant, CloseReason)> {
        let limits = &self.transport.limits;
        match self.connection.phase() {
            Phase::New(since) => Some((since + limits.header_timeout, CloseReason::Idle)),
            Phase::Idle(since) => Some((since + limits.idle_timeout, CloseReason::Idle)),
            Phase::Head(since) => Some((since + limits.header_timeout, CloseReason::HeadTimeout)),
            Phase::Busy => None,
        }
    }

    /// Compares the bytes that were just read, behind the first `before` of the buffer, with the preface of HTTP/2. As long as
    /// they may be its beginning, and when they are, they are held back.
    fn detect_protocol(&mut self, seen: usize, buffer: &mut ReadBuf<'_>, before: usize) -> Detected {
        let fresh = &buffer.filled()[before..];
        let alike = fresh.iter().zip(&PREFACE[seen..]).take_while(|(byte, expected)| byte == expected).count();
        let detected = match seen + alike {
            all if all == PREFACE.len() => Detected::Http2,
            some if alike == fresh.len() && alike > 0 => {
                self.preface = Some(some);
                buffer.set_filled(before);
                return Detected::NotYet;
            }
            _ => Detected::Http1,
        };
        self.preface = None;
        if seen > 0 || matches!(detected, Detected::Http2) {
            self.held = [&PREFACE[..seen], fresh].concat();
            buffer.set_filled(before);
        }
        detected
    }

    fn end(&self, reason: CloseReason, error: io::ErrorKind) -> Poll<io::Result<()>> {
        self.connection.close(reason);
        Poll::Ready(Err(error.into()))
    }

    fn pass_on(&mut self, buffer: &mut ReadBuf<'_>) {
        let length = self.held.len().min(buffer.remaining());
        buffer.put_slice(&self.held[..length]);
        self.held.drain(..length);
    }
}

/// The protocol, as far as the first bytes of a connection tell.
enum Detected {
    NotYet,
    Http1,
    Http2,
}

impl AsyncRead for Http1Stream {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.held.is_empty() {
            self.pass_on(buffer);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        while let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(task, buffer) {
            if buffer.filled().len() > before {
                self.connection.receive();
            }
            if let (Ok(()), Some(seen)) = (&read, self.preface) {
                match self.detect_protocol(seen, buffer, before) {
                    Detected::NotYet => continue,
                    Detected::Http1 => self.pass_on(buffer),
                    Detected::Http2 => return self.end(CloseReason::SwitchToHttp2, io::ErrorKind::Unsupported),
                }
            }
            return Poll::Ready(read);
        }
        let Some((deadline, reason)) = self.read_deadline() else {
            return Poll::Pending;
        };
        ready!(self.reading.poll(deadline, task));
        self.end(reason, io::ErrorKind::TimedOut)
    }
}

impl AsyncWrite for Http1Stream {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let bytes = match library_response(bytes) {
            Some((0, reason)) => {
                self.connection.close(reason);
                return Poll::Ready(Ok(bytes.len()));
            }
            // First the handler's own; the rest is offered again.
            Some((start, _)) => &bytes[..start],
            None => bytes,
        };
        Pin::new(&mut self.stream).poll_write(task, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The rejection is still to be sent.
        if self.connection.close_reason().is_some() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(task)
    }
}

/// Finds a response of hyper's own in `bytes`: where it starts, and its cause. Hyper responds by itself only when it
/// cannot parse a request; such a response is the last thing it writes, has no body, and lacks the header field that all of
/// the handler's have. A text inside a body cannot look like one: JSON has no line breaks within strings.
fn library_response(bytes: &[u8]) -> Option<(usize, CloseReason)> {
    /// Hyper takes the minor version of the previous request.
    const STATUSES: [&[u8]; 2] = [b"HTTP/1.1 4", b"HTTP/1.0 4"];
    const NO_BODY: &[u8] = b"\r\ncontent-length: 0\r\n";
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let starts = |(place, byte): &(usize, &u8)| {
        // The first byte alone first: responses without a body are common, and those of hyper are not.
        **byte == b'H' && STATUSES.iter().any(|status| bytes[*place..].starts_with(status))
    };
    let (start, _) = bytes.iter().enumerate().rev().find(starts)?;
    let head = &bytes[start..];
    let holds = |text: &[u8]| head.windows(text.len()).any(|window| window == text);
    if holds(REQUEST_ID.as_str().as_bytes()) || !holds(NO_BODY) {
        return None;
    }
    let too_large = head[b"HTTP/1.1 ".len()..].starts_with(b"431");
    Some((start, if too_large { CloseReason::HeadTooLarge } else { CloseReason::Malformed }))
}
