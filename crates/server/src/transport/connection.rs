//! One connection, from its first byte to its last: plain or TLS, HTTP/1.1 or HTTP/2.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::connection_state::{CloseReason, ConnectionState};
use super::framing::check_transfer_encoding;
use super::handler::{ConnectionEvent, Handler, RequestInfo};
use super::http1::Http1Stream;
use super::http2;
use super::in_flight::InFlightRequest;
use super::rejection::Rejection;
use super::shutdown::ShutdownPhase;
use super::socket::Socket;
use super::state::Transport;
use super::stream::Stream;
use super::tls::{HandshakeError, Protocol, Tls};

/// Maximum size of the write buffer of a connection in bytes. While it is full, no more of a response is produced.
const WRITE_BUFFER_MAX: usize = 16 * 1024;
/// Size of the kernel's send buffer in bytes; the kernel doubles it for its own bookkeeping. By default Linux lets it grow to
/// 4 MB for a client that does not read.
const KERNEL_SEND_BUFFER: usize = 64 * 1024;

/// Serves a connection to its end.
pub(super) async fn serve_connection<H: Handler>(
    stream: TcpStream,
    client: IpAddr,
    tls: Option<Arc<Tls>>,
    transport: &'static Transport,
    handler: Arc<H>,
    phase: watch::Receiver<ShutdownPhase>,
) {
    // Without it, Nagle's algorithm would delay small responses.
    let _ = stream.set_nodelay(true);
    let _ = set_socket_send_buffer_size(&stream, KERNEL_SEND_BUFFER);
    let _open = OpenConnectionGuard::new(&*handler);
    let socket = Socket::new(stream, transport.limits.write_timeout);
    let http2 = match tls {
        None => {
            serve_http1(Stream::Plain(socket), !transport.single_requests, client, transport, &handler, phase.clone())
                .await
        }
        // Boxed, because a plain connection does not need the memory.
        Some(tls) => match Box::pin(handshake(&tls, socket, client, transport, &*handler, phase.clone())).await {
            Some((stream, Protocol::Http1)) => {
                serve_http1(stream, false, client, transport, &handler, phase.clone()).await
            }
            Some((stream, Protocol::Http2)) => Some((stream, Vec::new())),
            None => None,
        },
    };
    if let Some((stream, read)) = http2 {
        Box::pin(http2::serve_http2(stream, read, client, transport, Arc::clone(&handler), phase)).await;
    }
}

/// Reports a connection as accepted and, when dropped, as closed.
struct OpenConnectionGuard<'a, H: Handler>(&'a H);

impl<'a, H: Handler> OpenConnectionGuard<'a, H> {
    fn new(handler: &'a H) -> Self {
        handler.observe(ConnectionEvent::Accepted);
        Self(handler)
    }
}

impl<H: Handler> Drop for OpenConnectionGuard<'_, H> {
    fn drop(&mut self) {
        self.0.observe(ConnectionEvent::Closed);
    }
}

/// Performs the TLS handshake, within the time limit for the head of a request.
async fn handshake<H: Handler>(
    tls: &Tls,
    socket: Socket,
    client: IpAddr,
    transport: &Transport,
    handler: &H,
    mut phase: watch::Receiver<ShutdownPhase>,
) -> Option<(Stream, Protocol)> {
    let arrived = Instant::now();
    let accepted = tokio::select! {
        accepted = timeout(transport.limits.header_timeout, tls.accept(socket)) => accepted,
        () = ShutdownPhase::Closing.reached(&mut phase) => return None,
    };
    if !matches!(accepted, Ok(Ok(_) | Err(HandshakeError::Gone))) {
        handler.observe(ConnectionEvent::HandshakeFailed);
    }
    match accepted.ok()? {
        Ok(accepted) => Some(accepted),
        Err(HandshakeError::NotEncrypted(stream)) => {
            stream.send_last(&handler.reject(Rejection::NotEncrypted, client, arrived)).await;
            None
        }
        Err(HandshakeError::Gone) => None,
        Err(HandshakeError::Failed(error)) => {
            tracing::debug!(%error, %client, "TLS handshake failed");
            None
        }
    }
}

/// Serves an HTTP/1.1 connection. If `detect_http2` is true and the client speaks HTTP/2, returns the stream and the bytes that
/// were read from it.
async fn serve_http1<H: Handler>(
    stream: Stream,
    detect_http2: bool,
    client: IpAddr,
    transport: &'static Transport,
    handler: &Arc<H>,
    mut phase: watch::Receiver<ShutdownPhase>,
) -> Option<(Stream, Vec<u8>)> {
    let limits = &transport.limits;
    let state = Arc::new(ConnectionState::new());
    let stream = Http1Stream::new(stream, Arc::clone(&state), transport, detect_http2);
    let service = {
        let (handler, state) = (Arc::clone(handler), Arc::clone(&state));
        service_fn(move |request: Request<Incoming>| {
            let (handler, state) = (Arc::clone(&handler), Arc::clone(&state));
            async move { Ok::<_, std::convert::Infallible>(respond(handler, state, transport, request, client).await) }
        })
    };

    let mut http = http1::Builder::new();
    // The stream enforces the deadlines instead, because hyper has the same timeout for idle connections and for heads.
    http.header_read_timeout(None).half_close(true).max_header_size(limits.max_header_bytes);
    // The service adds the field (see `date`).
    http.auto_date_header(false);
    http.keep_alive(!transport.single_requests);
    http.max_buf_size(WRITE_BUFFER_MAX.max(limits.max_header_bytes));
    if transport.has_custom_header_limit {
        // Only if configured, because hyper then allocates memory for every request.
        http.max_headers(limits.max_headers);
    }
    let mut connection = Box::pin(http.serve_connection(TokioIo::new(stream), service));
    // In a set, which polls the future only when it is woken: polling it takes a lock that all connections share.
    let mut closing = FuturesUnordered::from_iter([ShutdownPhase::Closing.reached(&mut phase)]);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        Some(()) = closing.next() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    let parts = Pin::into_inner(connection).into_parts();
    let mut reason = state.close_reason();
    let (stream, read) = parts.io.into_inner().into_parts();
    if let Some(CloseReason::SwitchToHttp2) = reason {
        return Some((stream, read));
    }
    if let Err(error) = ended {
        tracing::debug!(%error, %client, "connection closed early");
        reason = reason.or_else(|| early_close_reason(&error, &stream));
    }
    if let Some(reason) = reason {
        handler.observe(ConnectionEvent::Aborted(reason));
        match reason.rejection() {
            Some(rejection) => stream.send_last(&handler.reject(rejection, client, state.since())).await,
            // The client may still be sending what hyper has rejected.
            None if matches!(reason, CloseReason::HeadTooLarge | CloseReason::Malformed) => stream.linger().await,
            None => stream.close().await,
        }
    } else if state.lingers() {
        stream.linger().await;
    }
    None
}

async fn respond<H: Handler>(
    handler: Arc<H>,
    state: Arc<ConnectionState>,
    transport: &'static Transport,
    request: Request<Incoming>,
    client: IpAddr,
) -> hyper::Response<H::Body> {
    let in_flight = InFlightRequest::begin(&transport.requests, Some(&state));
    let rejection = check_transfer_encoding(request.headers());
    let (has_body, takes_body) =
        (!request.body().is_end_stream(), matches!(*request.method(), Method::POST | Method::PUT));
    let client = transport.trusted_proxies.client_of(client, request.headers());
    let info = RequestInfo { client, in_flight, rejection };
    let response = handler.handle(request.map(Body::new), info).await;
    if has_body && !(takes_body && response.status().is_success()) {
        state.linger_on_close();
    }
    response
}

/// Returns the reason why a connection ended early, if the stream has not recorded one.
fn early_close_reason(error: &hyper::Error, stream: &Stream) -> Option<CloseReason> {
    if stream.write_timed_out() {
        return Some(CloseReason::Stalled);
    }
    if error.is_parse_too_large() {
        return Some(CloseReason::HeadTooLarge);
    }
    error.is_parse().then_some(CloseReason::Malformed)
}
