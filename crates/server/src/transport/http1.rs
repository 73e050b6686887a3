//! HTTP/1.1: the bytes of a connection under deadlines.
//!
//! The HTTP library reads and writes through an [`Http1Stream`], which knows from the [`ConnectionState`] whether a request is
//! awaited, arriving or in flight, and ends the connection when the deadline of that phase passes. It also detects the first
//! bytes of HTTP/2, which costs a connection that speaks HTTP/1.1 one comparison. Hyper itself responds to bytes that it cannot
//! parse as a request, with a bare 400 or 431.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection_state::{CloseReason, ConnectionState, Phase};
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
