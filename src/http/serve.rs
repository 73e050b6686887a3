//! The accept loop: connections under limits, and a shutdown that finishes what was begun.

use std::fmt::Write as _;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hyper::header::{CONNECTION, HeaderMap};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use super::context::Context;
use super::error::ApiError;
use super::wire::{Ending, Line, Wire};
use super::{App, Service};
use crate::metrics::Page;

/// How long the loop pauses after the system refused it a connection (out of file descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Bytes of an answer that wait in memory for a client to take them.
const WRITE_BUFFER_MAX: usize = 64 * 1024;
/// Connections beyond the limit that are told so at the same time; further ones are just closed.
const TURNED_AWAY_MAX: usize = 64;

/// The requests at work, and whether the service is about to stop.
#[derive(Default)]
pub(crate) struct Activity {
    working: AtomicUsize,
    draining: AtomicBool,
    changed: Notify,
}

impl Activity {
    pub(crate) fn draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    pub(crate) fn write_metrics(&self, page: &mut Page) {
        let working = self.working.load(Ordering::SeqCst);
        page.gauge("plantstore_http_requests_in_flight", "Requests whose answer has not ended.").sample(&[], working);
        page.gauge("plantstore_draining", "Whether the service is about to stop.")
            .sample(&[], u8::from(self.draining()));
    }

    /// Resolves when no request is at work.
    async fn idle(&self) {
        loop {
            let changed = self.changed.notified();
            if self.working.load(Ordering::SeqCst) == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// A request at work, from the end of its head to the end of its answer.
pub(crate) struct Working {
    app: Arc<App>,
    line: Arc<Line>,
    pub(crate) arrived: Instant,
}

impl Working {
    pub(crate) fn begin(app: &Arc<App>, line: &Arc<Line>) -> Self {
        app.activity.working.fetch_add(1, Ordering::SeqCst);
        Self { app: Arc::clone(app), line: Arc::clone(line), arrived: line.begin() }
    }

    pub(crate) fn app(&self) -> &App {
        &self.app
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.line.end();
        if self.app.activity.working.fetch_sub(1, Ordering::SeqCst) == 1 && self.app.draining() {
            self.app.activity.changed.notify_waiters();
        }
    }
}

/// How serving ended.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    /// Connections that had not finished when the grace was over.
    pub cut: usize,
    /// When the grace is over.
    pub deadline: Instant,
}

/// Serves the connections of `listener` until `shutdown` resolves; then takes no more, finishes the requests at work
/// and closes all connections, within the grace of the limits.
pub async fn serve(listener: TcpListener, app: Arc<App>, shutdown: impl Future<Output = ()>) -> Stopped {
    serve_with(listener, Service::new(app), shutdown).await
}

/// [`serve`], with the routes of `service`.
pub(super) async fn serve_with(listener: TcpListener, service: Service, shutdown: impl Future<Output = ()>) -> Stopped {
    let app = Arc::clone(&service.app);
    let most = app.limits.connections;
    let places = Arc::new(Semaphore::new(most));
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
    let (close, closing) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, client)) => match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => {
                    tokio::spawn(drive(stream, client.ip(), service.clone(), closing.clone(), place));
                }
                Err(_) => turn_away(stream, client, &app, &turned_away),
            },
            Err(error) => pause_after(&error).await,
        }
    }
    let deadline = Instant::now() + app.limits.shutdown_grace;
    drop(listener);
    drop(closing);
    app.activity.draining.store(true, Ordering::SeqCst);
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    let finish = async {
        app.activity.idle().await;
        // Until now connections without a request stayed open, so that a client on one of them was not cut off.
        drop(close);
        let _ = places.acquire_many(all).await;
    };
    let finished = tokio::time::timeout_at(deadline.into(), finish).await.is_ok();
    Stopped { cut: if finished { 0 } else { most - places.available_permits() }, deadline }
}

/// Connection-level errors concern one client; anything else is worth a pause and a word.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::warn!(%error, "cannot accept a connection");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// One connection, from its first byte to its last.
async fn drive(
    stream: TcpStream,
    client: IpAddr,
    service: Service,
    mut closing: watch::Receiver<()>,
    _place: OwnedSemaphorePermit,
) {
    // Without it, small answers would wait for the client's acknowledgements.
    let _ = stream.set_nodelay(true);
    let app = Arc::clone(&service.app);
    let _open = app.metrics.connections.accept();
    let limits = Arc::clone(&app.limits);
    let line = Arc::new(Line::new());
    let wire = Wire::new(stream, Arc::clone(&line), Arc::clone(&limits));
    let request_line = Arc::clone(&line);
    let handle = service_fn(move |request| {
        let (service, line) = (service.clone(), Arc::clone(&request_line));
        async move { Ok::<_, std::convert::Infallible>(service.answer(request, client, &line).await) }
    });

    let mut http = http1::Builder::new();
    // The wire keeps the time instead: the library knows one timeout for the wait between requests and for their heads.
    http.header_read_timeout(None).half_close(true).max_header_size(limits.header_bytes);
    // What waits for a slow reader, for each connection.
    http.max_buf_size(WRITE_BUFFER_MAX.max(limits.header_bytes));
    if limits.header_fields != super::Limits::default().header_fields {
        // Only when asked for: the library then allocates for every request.
        http.max_headers(limits.header_fields);
    }
    let mut connection = Box::pin(http.serve_connection(TokioIo::new(wire), handle));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = closing.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    let mut ending = line.ending();
    if let Err(error) = ended {
        tracing::debug!(%error, %client, "a connection ended early");
        // What the library does not even answer by itself: another version of HTTP, for one.
        ending = ending.or(error.is_parse().then_some(Ending::Malformed));
    }
    if let Some(ending) = ending {
        app.metrics.connections.cut(ending);
    }
    let error = ending.and_then(Ending::error);
    let take_back = |connection: Pin<Box<http1::Connection<TokioIo<Wire>, _>>>| {
        Pin::into_inner(connection).into_parts().io.into_inner()
    };
    if let Some(error) = error {
        take_back(connection).last_words(&raw_answer(&app, &error, client, line.since())).await;
    } else if line.lingers() {
        take_back(connection).linger().await;
    }
}

/// Tells a client that there are too many connections, without making any other wait.
fn turn_away(stream: TcpStream, client: SocketAddr, app: &Arc<App>, places: &Arc<Semaphore>) {
    app.metrics.connections.turn_away();
    let Ok(place) = Arc::clone(places).try_acquire_owned() else {
        return;
    };
    let app = Arc::clone(app);
    tokio::spawn(async move {
        let _place = place;
        let wire = Wire::new(stream, Arc::new(Line::new()), Arc::clone(&app.limits));
        wire.last_words(&raw_answer(&app, &ApiError::Overloaded, client.ip(), Instant::now())).await;
    });
}

/// An answer to what never became a request, as bytes; logged like one.
fn raw_answer(app: &App, error: &ApiError, client: IpAddr, arrived: Instant) -> Vec<u8> {
    let (status, mut headers, body) = error.render();
    let request = HeaderMap::new();
    let context = Context::new(&request, client, arrived, None, "-");
    app.common_headers(&mut headers, &context, app.allowed_origin(&request));
    let mut head = format!("HTTP/1.1 {status}\r\n");
    for (name, value) in headers.iter().filter(|(name, _)| *name != CONNECTION) {
        // Writing to a string does not fail, and our header values are text.
        let _ = write!(head, "{name}: {}\r\n", value.to_str().unwrap_or_default());
    }
    let date = Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT");
    let _ = write!(head, "connection: close\r\ncontent-length: {}\r\ndate: {date}\r\n\r\n", body.len());
    context.end(app, Some(status), Some(error.code().0), body.len() as u64, true);
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(&body);
    bytes
}
