//! One HTTP/2 connection: many requests at a time, under the limits of HTTP/1.1.
//!
//! The library has no deadlines, so all of them are here: a connection is closed when no request has been at work on it
//! for long, a head must arrive in time ([`frames`]), control frames are bounded ([`control`]), and a response is handed over
//! as far as the client has room for it and abandoned when the client makes too little ([`sending`]).

mod control;
mod frames;
mod sending;
mod streams;

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http_body::{Body as _, Frame, SizeHint};
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use self::frames::Frames;
use self::sending::{Window, send};
use self::streams::Streams;
use super::error::ApiError;
use super::serve::Stage;
use super::socket::{LAST_WORDS, Stream};
use super::wire::Ending;
use super::{App, Limits, Service};

/// Requests at work at the same time on one connection; others are refused in a way that tells the client to try again.
const STREAMS_MAX: u32 = 100;
/// Bytes of a request's body that may wait to be read, and of all bodies of a connection.
const RECEIVE_WINDOW: u32 = 64 * 1024;
/// Bytes of one answer that wait in memory for the socket.
const SEND_BUFFER: usize = 4 * 1024;
/// Requests that are taken back before anybody has looked at them; with more, the connection ends.
const TAKEN_BACK_MAX: usize = 20;
/// Requests of a connection that break the protocol or are too many; with more, it ends.
const FAULTS_MAX: usize = 500;
/// How many times larger than allowed a head may be and still be refused in our shape. The library refuses larger ones.
const HEAD_TOLERANCE: usize = 4;
/// What the library counts for each field of a head beside its text (RFC 9113, 6.5.2).
const FIELD_WEIGHT: usize = 32;
/// What stands around the name and the value of a field in HTTP/1.1.
const FIELD_SEPARATORS: usize = ": \r\n".len();
/// Routes that are served however many requests are in flight.
const PROBES: [&str; 2] = ["/livez", "/readyz"];

/// Serves a connection of which these bytes were read already.
pub(super) async fn drive(
    stream: Stream,
    read: Vec<u8>,
    client: IpAddr,
    service: Arc<Service>,
    mut stage: watch::Receiver<Stage>,
) {
    let limits = Arc::clone(&service.app.limits);
    let flood = Arc::new(Notify::new());
    let (frames, mut returned) = Frames::new(stream, read, limits.header_timeout, Arc::clone(&flood));
    let app = service.app;
    let shaken = tokio::select! {
        shaken = timeout(limits.header_timeout, builder(&limits).handshake(frames)) => shaken,
        () = Stage::Closing.reached(&mut stage) => return,
    };
    let connection = match shaken {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return count(&error, returned.try_recv().ok().as_ref(), app),
        Err(_) => return app.metrics.connections.cut(Ending::HeadTimeout),
    };
    let (requests, streams) = (JoinSet::new(), Arc::new(Streams::new()));
    let mut session = Session { connection, requests, streams, service, client, limits, ending: None };
    let ended = session.run(stage, &flood).await;
    let ending = session.ending;
    // What is behind the connection comes back when that is gone.
    drop(session);
    let stream = returned.try_recv().ok();
    match (&ended, ending) {
        (_, Some(ending)) => app.metrics.connections.cut(ending),
        (Err(error), None) => count(error, stream.as_ref(), app),
        (Ok(()), None) => {}
    }
    if let Err(error) = &ended {
        tracing::debug!(%error, %client, "a connection ended early");
    }
    match (stream, ended) {
        // The client was told why, and may still be sending.
        (Some(stream), Err(_)) => stream.linger().await,
        (Some(stream), Ok(())) if matches!(ending, Some(Ending::Misuse)) => stream.linger().await,
        (Some(stream), Ok(())) => stream.close().await,
        (None, _) => {}
    }
}

/// Counts a connection that was ended by us.
fn count(error: &h2::Error, stream: Option<&Stream>, app: &App) {
    match error.get_io().map(io::Error::kind) {
        Some(io::ErrorKind::TimedOut) if stream.is_some_and(Stream::gave_up) => {
            app.metrics.connections.cut(Ending::Stalled);
        }
        Some(io::ErrorKind::TimedOut) => app.metrics.connections.cut(Ending::HeadTimeout),
        None if error.is_library() => app.metrics.connections.cut(Ending::Misuse),
        _ => {}
    }
}

fn builder(limits: &Limits) -> Builder {
    let heads = HEAD_TOLERANCE * limits.header_bytes + FIELD_WEIGHT * limits.header_fields;
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(heads).unwrap_or(u32::MAX))
        .initial_window_size(RECEIVE_WINDOW)
        .initial_connection_window_size(RECEIVE_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(TAKEN_BACK_MAX)
        .max_local_error_reset_streams(Some(FAULTS_MAX));
    builder
}

/// A connection and the requests at work on it, which end with it.
struct Session {
    connection: Connection<Frames, Bytes>,
    requests: JoinSet<()>,
    streams: Arc<Streams>,
    service: Arc<Service>,
    client: IpAddr,
    limits: Arc<Limits>,
    /// Why it is ended by us, if it is.
    ending: Option<Ending>,
}

impl Session {
    async fn run(&mut self, mut stage: watch::Receiver<Stage>, flood: &Notify) -> Result<(), h2::Error> {
        let mut draining = pin!(Stage::Draining.reached(&mut stage));
        let mut leaving = false;
        // When it is over if nothing is at work by then. Until the first request, the time for a head counts.
        let mut deadline = Instant::now() + self.limits.header_timeout;
        loop {
            tokio::select! {
                accepted = self.connection.accept() => match accepted {
                    Some(accepted) => self.begin(accepted?),
                    None => return Ok(()),
                },
                Some(_) = self.requests.join_next() => {
                    let patience = if leaving { self.farewell() } else { self.limits.idle_timeout };
                    deadline = Instant::now() + patience;
                }
                () = sleep_until(deadline), if self.requests.is_empty() => {
                    if leaving {
                        self.part(Reason::NO_ERROR).await;
                        return Ok(());
                    }
                    (leaving, self.ending) = (true, Some(Ending::Silent));
                    deadline = self.leave();
                }
                () = &mut draining, if !leaving => {
                    leaving = true;
                    deadline = self.leave();
                }
                () = flood.notified() => {
                    self.ending = Some(Ending::Misuse);
                    self.part(Reason::ENHANCE_YOUR_CALM).await;
                    return Ok(());
                }
            }
        }
    }

    /// Tells the client to send no more requests; says until when it has time to agree.
    fn leave(&mut self) -> Instant {
        self.connection.graceful_shutdown();
        Instant::now() + self.farewell()
    }

    /// Closes the connection at once, and tells the client which of its requests were not processed.
    async fn part(&mut self, reason: Reason) {
        self.connection.abrupt_shutdown(reason);
        let _ = timeout(LAST_WORDS, async { while let Some(Ok(_)) = self.connection.accept().await {} }).await;
    }

    /// How long the client gets to take what was sent, and to close the connection.
    fn farewell(&self) -> Duration {
        if self.connection.has_streams() { self.limits.write_timeout } else { LAST_WORDS }
    }

    fn begin(&mut self, (request, respond): (Request<RecvStream>, SendResponse<Bytes>)) {
        let (service, streams, client) = (Arc::clone(&self.service), Arc::clone(&self.streams), self.client);
        self.requests.spawn(answer(service, streams, request, respond, client));
    }
}

/// Answers one request, as long as the client wants to know.
async fn answer(
    service: Arc<Service>,
    streams: Arc<Streams>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    client: IpAddr,
) {
    let (app, _in_flight) = (service.app, streams.begin());
    let (mut parts, body) = request.into_parts();
    parts.extensions.insert(streams.pages.clone());
    parts.extensions.insert(Arc::clone(&streams));
    let body = Body::new(RequestBody { left: announced(&parts.headers), stream: body });
    let answered = service.answer(Request::from_parts(parts, body), client, None);
    let response = tokio::select! {
        response = answered => response,
        _ = poll_fn(|task| respond.poll_reset(task)) => return,
    };
    let (mut head, body) = response.into_parts();
    // What it says of the connection is about HTTP/1.1.
    head.headers.remove(CONNECTION);
    let ends = body.is_end_stream();
    if matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        // The router adds it.
        head.headers.remove(CONTENT_LENGTH);
    } else if let Some(length) = body.size_hint().exact().filter(|_| !ends) {
        head.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    // Fails when the client has gone.
    if let Ok(stream) = respond.send_response(Response::from_parts(head, ()), ends)
        && !ends
    {
        send(body, stream, Window::new(app, &streams)).await;
    }
}

/// The length of a body that its request announces.
fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The body of a request.
struct RequestBody {
    stream: RecvStream,
    left: Option<u64>,
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let Some(data) = ready!(self.stream.poll_data(task)) else {
            return Poll::Ready(None);
        };
        let data = data.and_then(|data| {
            // It is taken: the client may send as much again.
            self.stream.flow_control().release_capacity(data.len())?;
            self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
            Ok(Frame::data(data))
        });
        Poll::Ready(Some(data))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// What HTTP/1.1 rejects before there is a request: too large a head, and more in flight than there is room for.
pub(super) fn refusal(request: &Parts, app: &App) -> Option<ApiError> {
    let limits = &app.limits;
    let authority = request.uri.authority().map(|authority| ("host", authority.as_str().len()));
    let fields = request.headers.iter().map(|(name, value)| (name.as_str(), value.len())).chain(authority);
    let (mut number, mut size) = (0, request.method.as_str().len() + request.uri.path().len());
    size += request.uri.query().map_or(0, str::len);
    for (name, length) in fields {
        number += 1;
        size += name.len() + length + FIELD_SEPARATORS;
    }
    if size > limits.header_bytes || number > limits.header_fields {
        return Some(ApiError::HeadersTooLarge);
    }
    let is_probe = PROBES.contains(&(app.surface.route_of)(request.uri.path()));
    let streams = request.extensions.get::<Arc<Streams>>().filter(|_| !is_probe)?;
    streams.exceed_in_flight(app).then_some(ApiError::Overloaded)
}
