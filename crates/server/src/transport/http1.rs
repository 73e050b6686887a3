//! HTTP/1.1: a connection and its requests, under deadlines.
//!
//! The HTTP library reads and writes through an [`Http1Stream`], which knows from the [`ConnectionState`] whether a request is
//! awaited, arriving or in flight, and ends the connection when the deadline of that phase passes. Hyper itself responds to bytes
//! that it cannot parse as a request, with a bare 400 or 431.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::body::Body;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue, TRANSFER_ENCODING};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection_state::{CloseReason, ConnectionState, Phase, Rejection};
use super::handler::{ConnectionEvent, Handler, OpenEnded, Peer, RequestInfo};
use super::state::{InFlightRequest, ShutdownPhase, Transport};
use super::stream::{Stream, Timer, close, linger, send_last, write_timed_out};

/// Maximum size of the write buffer of a connection in bytes. While it is full, no more of a response is produced.
const WRITE_BUFFER_MAX: usize = 16 * 1024;
/// Maximum number of bytes that are read during an open-ended response, for the request after it.
const READ_AHEAD_MAX: usize = 1_024;

/// Serves a connection. `phase` is its state so far.
pub(super) async fn serve_http1<H: Handler>(stream: Stream, phase: Phase, peer: &Peer<H>) {
    let Peer { client, transport, handler, phase: ref shutdown } = *peer;
    let limits = &transport.limits;
    let stream = Http1Stream::new(stream, transport, phase);
    let state = Arc::clone(&stream.connection);
    let service = service_fn(|request: Request<Incoming>| {
        respond(handler, &state, transport, request, client).map(Ok::<_, Infallible>)
    });

    let mut http = http1::Builder::new();
    // The stream enforces the deadlines instead, because hyper has the same timeout for idle connections and for heads.
    http.header_read_timeout(None).half_close(true).max_header_size(limits.max_header_bytes);
    // The handler adds the field.
    http.auto_date_header(false);
    http.keep_alive(!transport.single_requests);
    http.max_buf_size(WRITE_BUFFER_MAX.max(limits.max_header_bytes));
    if transport.has_custom_header_limit {
        // Only if configured, because hyper then allocates memory for every request.
        http.max_headers(limits.max_headers);
    }
    let mut connection = Box::pin(http.serve_connection(TokioIo::new(stream), service));
    // In a set, which polls the future only when it is woken: polling it takes a lock that all connections share.
    let mut closing = FuturesUnordered::from_iter([ShutdownPhase::Closing.reached(shutdown.clone())]);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        Some(()) = closing.next() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    let parts = Pin::into_inner(connection).into_parts();
    let mut reason = state.lock().close_reason;
    let Http1Stream { stream, .. } = parts.io.into_inner();
    if let Err(error) = ended {
        tracing::debug!(%error, %client, "connection closed early");
        reason = reason.or_else(|| early_close_reason(&error, &stream));
    }
    if let Some(reason) = reason {
        handler.observe(ConnectionEvent::Aborted(reason));
        match reason {
            CloseReason::HeadTimeout => {
                let since = state.lock().since();
                send_last(stream, &handler.reject(Rejection::HeadTimeout, client, since)).await;
            }
            // Hyper has responded, and the client may still be sending what it has rejected.
            CloseReason::HeadTooLarge | CloseReason::Malformed => linger(stream).await,
            CloseReason::Idle | CloseReason::Stalled | CloseReason::ProtocolViolation => close(stream).await,
        }
    } else if state.lock().lingers {
        linger(stream).await;
    }
}

/// Calls the handler. The future does not hold the request, so that it is small: hyper copies it.
fn respond<H: Handler>(
    handler: &'static H,
    state: &Arc<ConnectionState>,
    transport: &'static Transport,
    request: Request<Incoming>,
    client: IpAddr,
) -> impl Future<Output = hyper::Response<H::Body>> + use<H> {
    let in_flight = InFlightRequest::begin(&transport.requests, Some(state));
    let has_body = !request.body().is_end_stream();
    // A request with the field has a body, even if it is empty.
    let rejection = if has_body { check_transfer_encoding(request.headers()) } else { None };
    let takes_body = matches!(*request.method(), Method::POST | Method::PUT);
    let client = transport.trusted_proxies.client_of(client, request.headers());
    let info = RequestInfo { client, in_flight, rejection };
    let request = request.map(|body| if has_body { Body::new(body) } else { Body::empty() });
    let response = handler.handle(request, info);
    let state = Arc::clone(state);
    async move {
        let response = response.await;
        if response.extensions().get::<OpenEnded>().is_some() {
            state.lock().is_open_ended = true;
        }
        if has_body && !(takes_body && response.status().is_success()) {
            state.lock().lingers = true;
        }
        response
    }
}

/// Rejects every `Transfer-Encoding` but `chunked` alone. The library looks only at the last coding, and would take the bytes of
/// an encoded body for the body itself.
fn check_transfer_encoding(headers: &HeaderMap) -> Option<Rejection> {
    let mut lines = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |line: &HeaderValue| line.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    let is_allowed = lines.next().is_none_or(is_chunked) && lines.next().is_none();
    (!is_allowed).then_some(Rejection::TransferEncoding)
}

/// Returns the reason why a connection ended early, if the stream has not recorded one.
fn early_close_reason(error: &hyper::Error, stream: &Stream) -> Option<CloseReason> {
    if write_timed_out(stream) {
        return Some(CloseReason::Stalled);
    }
    if error.is_parse_too_large() {
        return Some(CloseReason::HeadTooLarge);
    }
    error.is_parse().then_some(CloseReason::Malformed)
}

/// A stream with deadlines.
struct Http1Stream {
    stream: Stream,
    connection: Arc<ConnectionState>,
    transport: &'static Transport,
    reading: Timer,
    /// Bytes of the next request that were read during an open-ended response.
    read_ahead: Vec<u8>,
}

impl Http1Stream {
    fn new(stream: Stream, transport: &'static Transport, phase: Phase) -> Self {
        Self {
            stream,
            connection: Arc::new(ConnectionState::new(phase)),
            transport,
            reading: Timer::default(),
            read_ahead: Vec::new(),
        }
    }

    /// Returns the time until which something must be read, and the reason for which the connection ends otherwise.
    fn read_deadline(&self) -> Option<(Instant, CloseReason)> {
        let limits = &self.transport.limits;
        match self.connection.lock().phase {
            Phase::New(since) => Some((since + limits.header_timeout, CloseReason::Idle)),
            Phase::Idle(since) => Some((since + limits.idle_timeout, CloseReason::Idle)),
            Phase::Head(since) => Some((since + limits.header_timeout, CloseReason::HeadTimeout)),
            Phase::Busy => None,
        }
    }

    fn end(&self, reason: CloseReason, error: io::ErrorKind) -> Poll<io::Result<()>> {
        self.connection.lock().close_reason = Some(reason);
        Poll::Ready(Err(error.into()))
    }
}

impl AsyncRead for Http1Stream {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.read_ahead.is_empty() {
            let length = self.read_ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.read_ahead[..length]);
            self.read_ahead.drain(..length);
            self.connection.lock().receive();
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(task, buffer) {
            if buffer.filled().len() > before {
                self.connection.lock().receive();
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

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(task, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Also detects that the client has disconnected during an open-ended response. Hyper polls this whenever it is woken, and does
    /// not read during a response, because it allows clients to close their half of the connection.
    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.connection.lock().is_open_ended && self.read_ahead.len() < READ_AHEAD_MAX {
            let mut bytes = [0; 64];
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(task, &mut buffer) {
                Poll::Pending => break,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.read_ahead.extend_from_slice(buffer.filled());
                }
                Poll::Ready(_) => return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
            }
        }
        Pin::new(&mut self.stream).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The rejection is still to be sent.
        if self.connection.lock().close_reason.is_some() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(task)
    }
}
