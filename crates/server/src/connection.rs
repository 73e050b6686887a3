//! One connection, from its first byte to its last: encrypted or not, HTTP/1.1 or HTTP/2.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderMap};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Version};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::context::Context;
use super::error::ApiError;
use super::serve::Stage;
use super::socket::{Socket, Stream};
use super::tls::{Protocol, Refused, Tls};
use super::wire::{Ending, Line, Wire};
use super::{App, Service, date, http2};

/// Bytes of a response that wait in memory for a client to take them, before more of it is produced.
const WRITE_BUFFER_MAX: usize = 16 * 1024;
/// Bytes of responses that wait in the kernel; with what it adds to them it takes up to twice as many. Left to itself, Linux
/// takes 4 MB for a client that does not read.
const KERNEL_SEND_BUFFER: usize = 64 * 1024;

/// Serves a connection to its end.
pub(super) async fn drive(
    stream: TcpStream,
    client: IpAddr,
    tls: Option<Arc<Tls>>,
    service: Arc<Service>,
    stage: watch::Receiver<Stage>,
) {
    // Without it, small answers would wait for the client's acknowledgements.
    let _ = stream.set_nodelay(true);
    let _ = set_socket_send_buffer_size(&stream, KERNEL_SEND_BUFFER);
    let app = service.app;
    let _open = app.metrics.connections.accept();
    let socket = Socket::new(stream, app.limits.write_timeout);
    let http2 = match tls {
        None => drive_http1(Stream::Clear(socket), true, client, &service, stage.clone()).await,
        // In boxes, because a connection in clear has no use for the room.
        Some(tls) => match Box::pin(shake_hands(&tls, socket, client, app, stage.clone())).await {
            Some((stream, Protocol::Http1)) => drive_http1(stream, false, client, &service, stage.clone()).await,
            Some((stream, Protocol::Http2)) => Some((stream, Vec::new())),
            None => None,
        },
    };
    if let Some((stream, read)) = http2 {
        Box::pin(http2::drive(stream, read, client, service, stage)).await;
    }
}

/// An encrypted connection, if the client knows how, in the time that it has for the head of a request.
async fn shake_hands(
    tls: &Tls,
    socket: Socket,
    client: IpAddr,
    app: &App,
    mut stage: watch::Receiver<Stage>,
) -> Option<(Stream, Protocol)> {
    let arrived = Instant::now();
    let accepted = tokio::select! {
        accepted = timeout(app.limits.header_timeout, tls.accept(socket)) => accepted,
        () = Stage::Closing.reached(&mut stage) => return None,
    };
    if !matches!(accepted, Ok(Ok(_) | Err(Refused::Gone))) {
        app.metrics.connections.fail_handshake();
    }
    match accepted.ok()? {
        Ok(accepted) => Some(accepted),
        Err(Refused::InClear(stream)) => {
            let error = ApiError::BadRequest("this port is encrypted: write https:// in place of http://");
            stream.last_words(&raw_answer(app, &error, client, arrived)).await;
            None
        }
        Err(Refused::Gone) => None,
        Err(Refused::Failed(error)) => {
            tracing::debug!(%error, %client, "no encrypted connection came about");
            None
        }
    }
}

/// Serves a connection that speaks HTTP/1.1. Where any protocol may be spoken and it turns out to be HTTP/2, gives back the
/// stream, and what was read from it.
async fn drive_http1(
    stream: Stream,
    any_protocol: bool,
    client: IpAddr,
    service: &Arc<Service>,
    mut stage: watch::Receiver<Stage>,
) -> Option<(Stream, Vec<u8>)> {
    let app = service.app;
    let limits = Arc::clone(&app.limits);
    let line = Arc::new(Line::new());
    let wire = Wire::new(stream, Arc::clone(&line), Arc::clone(&limits), any_protocol);
    let (service, request_line) = (Arc::clone(service), Arc::clone(&line));
    let handle = service_fn(move |request: Request<Incoming>| {
        let (service, line) = (Arc::clone(&service), Arc::clone(&request_line));
        async move { Ok::<_, std::convert::Infallible>(service.answer(request.map(Body::new), client, Some(&line)).await) }
    });

    let mut http = http1::Builder::new();
    // The wire keeps the time instead: the library knows one timeout for the wait between requests and for their heads.
    http.header_read_timeout(None).half_close(true).max_header_size(limits.header_bytes);
    // Every response has one already, which follows the clock.
    http.auto_date_header(false);
    // What waits for a slow reader, for each connection.
    http.max_buf_size(WRITE_BUFFER_MAX.max(limits.header_bytes));
    if limits.header_fields != super::Limits::default().header_fields {
        // Only when asked for: the library then allocates for every request.
        http.max_headers(limits.header_fields);
    }
    let mut connection = Box::pin(http.serve_connection(TokioIo::new(wire), handle));
    // Asked again only when it has something to say, not with every request: asking takes a lock that all connections share.
    let mut closing = FuturesUnordered::from_iter([Stage::Closing.reached(&mut stage)]);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        Some(()) = closing.next() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    let parts = Pin::into_inner(connection).into_parts();
    let mut ending = line.ending().map(|ending| ending.with_unparsed(&parts.read_buf, &limits));
    let (stream, read) = parts.io.into_inner().into_parts();
    if let Some(Ending::Http2) = ending {
        return Some((stream, read));
    }
    if let Err(error) = ended {
        tracing::debug!(%error, %client, "a connection ended early");
        ending = ending.or_else(|| early_ending(&error, &stream));
    }
    if let Some(ending) = ending {
        app.metrics.connections.cut(ending);
        match ending.error(&limits) {
            Some(error) => stream.last_words(&raw_answer(app, &error, client, line.since())).await,
            None => stream.close().await,
        }
    } else if line.lingers() {
        stream.linger().await;
    }
    None
}

/// Why a connection ended, where the wire has not said so.
fn early_ending(error: &hyper::Error, stream: &Stream) -> Option<Ending> {
    if stream.gave_up() {
        return Some(Ending::Stalled);
    }
    // What the library does not even answer by itself: another version of HTTP, for one.
    error.is_parse().then_some(Ending::Malformed)
}

/// An answer to what never became a request, as bytes; logged like one.
pub(super) fn raw_answer(app: &App, error: &ApiError, client: IpAddr, arrived: Instant) -> Vec<u8> {
    let (status, mut headers, body) = error.render();
    let request = HeaderMap::new();
    let context = Context::new(&request, client, arrived, Version::HTTP_11, None, "-");
    app.common_headers(&mut headers, &context, app.allowed_origin(&request));
    let mut head = format!("HTTP/1.1 {status}\r\n");
    for (name, value) in headers.iter().filter(|(name, _)| *name != CONNECTION) {
        // Writing to a string does not fail, and our header values are text.
        let _ = write!(head, "{name}: {}\r\n", value.to_str().unwrap_or_default());
    }
    let date = date::now();
    let date = date.to_str().unwrap_or_default();
    let _ = write!(head, "connection: close\r\ncontent-length: {}\r\ndate: {date}\r\n\r\n", body.len());
    context.end(app, Some(status), Some(error.code().0), body.len() as u64, true);
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(&body);
    bytes
}
