//! HTTP/2: concurrent requests on one connection, under the same limits as HTTP/1.1.
//!
//! The crate `h2` has no deadlines, so they are enforced here: an idle connection is closed, a head must arrive in time
//! ([`frames`]), control frames are limited, and a response is abandoned if the client opens its flow-control
//! window too slowly ([`sending`]).

mod frames;
mod sending;

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http_body::Body as _;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use self::frames::FrameStream;
use self::sending::{StreamLimit, Window, send};
use super::connection_state::{CloseReason, Rejection};
use super::handler::{ConnectionEvent, Handler, OpenEnded, Peer, RequestInfo};
use super::state::{InFlightRequest, ShutdownPhase, Transport};
use super::stream::{CLOSE_TIMEOUT, Stream, close, linger, write_timed_out};
use crate::options::TransportLimits;

/// Maximum number of concurrent requests of a connection. Further ones are refused with a code that tells the client to retry.
const STREAMS_MAX: u32 = 100;
/// Flow-control window for request bodies in bytes, of a stream and of a connection.
const RECEIVE_WINDOW: u32 = 64 * 1024;
/// Send buffer of a response in bytes.
const SEND_BUFFER: usize = 4 * 1024;
/// Maximum number of requests that the client resets before they are accepted; beyond it, the connection is closed.
const PENDING_RESETS_MAX: usize = 20;
/// Maximum number of requests that `h2` resets as invalid or excessive; beyond it, the connection is closed.
const ERROR_RESETS_MAX: usize = 500;
/// Factor by which a head may exceed the limit and still be rejected by the handler. `h2` rejects larger ones.
const HEAD_TOLERANCE: usize = 4;
/// Overhead that HTTP/2 counts for each header field in bytes (RFC 9113, 6.5.2).
const FIELD_WEIGHT: usize = 32;
/// Overhead of a header field in HTTP/1.1 in bytes.
const FIELD_SEPARATORS: usize = ": \r\n".len();

pub(super) async fn serve_http2<H: Handler>(mut stream: Stream, peer: Peer<H>) {
    let Peer { client, handler, .. } = peer;
    let mut reason = None;
    let ended = serve_requests(&mut stream, peer, &mut reason).await;
    if let Err(error) = &ended {
        tracing::debug!(%error, %client, "connection closed early");
        reason = reason.or_else(|| close_reason(error, &stream));
    }
    if let Some(reason) = reason {
        handler.observe(ConnectionEvent::Aborted(reason));
    }
    // The client got the reason, and may still be sending.
    if ended.is_err() || reason == Some(CloseReason::ProtocolViolation) {
        linger(stream).await;
    } else {
        close(stream).await;
    }
}

/// Serves the requests of a connection, until its end or an error of the library. `close_reason` is set if the server ends it.
async fn serve_requests<H: Handler>(
    stream: &mut Stream,
    peer: Peer<H>,
    close_reason: &mut Option<CloseReason>,
) -> Result<(), h2::Error> {
    let Peer { client, transport, handler, phase } = peer;
    let limits = &transport.limits;
    let flood = Notify::new();
    let frames = FrameStream::new(stream, limits.header_timeout, &flood);
    let handshake = tokio::select! {
        handshake = timeout(limits.header_timeout, builder(limits).handshake(frames)) => handshake,
        () = ShutdownPhase::Closing.reached(phase.clone()) => return Ok(()),
    };
    let Ok(handshake) = handshake else {
        *close_reason = Some(CloseReason::HeadTimeout);
        return Ok(());
    };
    let streams = Arc::new(StreamLimit::new(transport));
    let requests = JoinSet::new();
    let mut http2 =
        Http2Connection { connection: handshake?, requests, streams, transport, handler, client, close_reason };
    http2.run(phase, &flood).await
}

/// Returns the reason for an error if the server ended the connection.
fn close_reason(error: &h2::Error, stream: &Stream) -> Option<CloseReason> {
    match error.get_io().map(io::Error::kind) {
        Some(io::ErrorKind::TimedOut) if write_timed_out(stream) => Some(CloseReason::Stalled),
        Some(io::ErrorKind::TimedOut) => Some(CloseReason::HeadTimeout),
        None if error.is_library() => Some(CloseReason::ProtocolViolation),
        _ => None,
    }
}

fn builder(limits: &TransportLimits) -> Builder {
    let heads = HEAD_TOLERANCE * limits.max_header_bytes + FIELD_WEIGHT * limits.max_headers;
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(heads).unwrap_or(u32::MAX))
        .initial_window_size(RECEIVE_WINDOW)
        .initial_connection_window_size(RECEIVE_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_local_error_reset_streams(Some(ERROR_RESETS_MAX));
    builder
}

/// A connection and its requests in flight, which are aborted with it.
struct Http2Connection<'a, H: Handler> {
    connection: Connection<FrameStream<'a>, Bytes>,
    requests: JoinSet<()>,
    streams: Arc<StreamLimit>,
    transport: &'static Transport,
    handler: &'static H,
    client: IpAddr,
    close_reason: &'a mut Option<CloseReason>,
}

impl<H: Handler> Http2Connection<'_, H> {
    async fn run(&mut self, phase: watch::Receiver<ShutdownPhase>, flood: &Notify) -> Result<(), h2::Error> {
        let mut draining = pin!(ShutdownPhase::Draining.reached(phase));
        let mut is_closing = false;
        // Without a request in flight, the connection is closed then. Until the first one, the header timeout applies.
        let mut deadline = Instant::now() + self.transport.limits.header_timeout;
        loop {
            tokio::select! {
                accepted = self.connection.accept() => match accepted {
                    Some(accepted) => {
                        let (request, respond) = accepted?;
                        let streams = Arc::clone(&self.streams);
                        self.requests.spawn(serve_request(self.handler, streams, request, respond, self.client));
                    }
                    None => return Ok(()),
                },
                Some(_) = self.requests.join_next() => {
                    let timeout = if is_closing { self.close_timeout() } else { self.transport.limits.idle_timeout };
                    deadline = Instant::now() + timeout;
                }
                () = sleep_until(deadline), if self.requests.is_empty() => {
                    if is_closing {
                        self.close(Reason::NO_ERROR).await;
                        return Ok(());
                    }
                    is_closing = true;
                    *self.close_reason = Some(CloseReason::Idle);
                    deadline = self.begin_graceful_shutdown();
                }
                () = &mut draining, if !is_closing => {
                    is_closing = true;
                    deadline = self.begin_graceful_shutdown();
                }
                () = flood.notified() => {
                    *self.close_reason = Some(CloseReason::ProtocolViolation);
                    self.close(Reason::ENHANCE_YOUR_CALM).await;
                    return Ok(());
                }
            }
        }
    }

    /// Asks the client to send no more requests; returns its deadline for closing the connection.
    fn begin_graceful_shutdown(&mut self) -> Instant {
        self.connection.graceful_shutdown();
        Instant::now() + self.close_timeout()
    }

    /// Closes the connection at once, with a GOAWAY frame that names the last request processed.
    async fn close(&mut self, reason: Reason) {
        self.connection.abrupt_shutdown(reason);
        let _ = timeout(CLOSE_TIMEOUT, async { while let Some(Ok(_)) = self.connection.accept().await {} }).await;
    }

    /// Returns the time that the client has to read the last responses and close the connection.
    fn close_timeout(&self) -> Duration {
        if self.connection.has_streams() { self.transport.limits.write_timeout } else { CLOSE_TIMEOUT }
    }
}

async fn serve_request<H: Handler>(
    handler: &'static H,
    streams: Arc<StreamLimit>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    client: IpAddr,
) {
    let transport = streams.transport;
    let in_flight_here = streams.in_flight.hold();
    let (mut parts, mut body) = request.into_parts();
    parts.extensions.insert(streams.buffers.clone());
    let body = Body::from_stream(stream::poll_fn(move |task| poll_data(&mut body, task)));
    let in_flight = InFlightRequest::begin(&transport.requests, None);
    let client = transport.trusted_proxies.client_of(client, &parts.headers);
    let info = RequestInfo { client, in_flight, rejection: rejection(&parts, &transport.limits, &streams) };
    let response = handler.handle(Request::from_parts(parts, body), info);
    let response = tokio::select! {
        response = response => response,
        _ = poll_fn(|task| respond.poll_reset(task)) => return,
    };
    let (mut head, body) = response.into_parts();
    let _open_ended = head.extensions.get::<OpenEnded>().map(|_| {
        drop(in_flight_here);
        transport.open_ended.hold()
    });
    // HTTP/2 forbids the field.
    head.headers.remove(CONNECTION);
    let ends = body.is_end_stream();
    if let Some(length) = body.size_hint().exact().filter(|_| !ends) {
        head.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    // Fails when the client has gone.
    if let Ok(stream) = respond.send_response(Response::from_parts(head, ()), ends)
        && !ends
    {
        send(body, stream, Window::new(&streams)).await;
    }
}

/// Returns the next bytes of a body. They are consumed, so the client may send as many again.
fn poll_data(body: &mut RecvStream, task: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
    let data = ready!(body.poll_data(task));
    Poll::Ready(data.map(|data| {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        Ok(data)
    }))
}

/// Returns the reason to reject a request without routing. For HTTP/1.1, the library and the listener check this.
fn rejection(request: &Parts, limits: &TransportLimits, streams: &StreamLimit) -> Option<Rejection> {
    let authority = request.uri.authority().map(|authority| ("host", authority.as_str().len()));
    let fields = request.headers.iter().map(|(name, value)| (name.as_str(), value.len())).chain(authority);
    let mut count = 0;
    let mut size = request.method.as_str().len() + request.uri.path().len() + request.uri.query().map_or(0, str::len);
    for (name, length) in fields {
        count += 1;
        size += name.len() + length + FIELD_SEPARATORS;
    }
    if size > limits.max_header_bytes || count > limits.max_headers {
        return Some(Rejection::HeadTooLarge);
    }
    streams.is_over_limit().then_some(Rejection::Overloaded)
}
