//! The accept loop: connections under limits, and a shutdown that finishes what was begun.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};

use super::connection::{drive, raw_answer};
use super::connection_limit::{ConnectionLimit, Exceeded};
use super::error::ApiError;
use super::socket::{Socket, Stream};
use super::tls::Tls;
use super::wire::Line;
use super::{App, Service, router};
use plantstore_telemetry::metrics::{Gauge, Page, Striped};

/// How long the loop pauses after the system refused it a connection (out of file descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections beyond the limit that are told so at the same time; further ones are just closed.
const TURNED_AWAY_MAX: usize = 64;

/// The requests at work, and whether the service is about to stop.
#[derive(Default)]
pub(crate) struct Activity {
    begun: Striped<AtomicUsize>,
    ended: Striped<AtomicUsize>,
    /// HTTP/2 responses that wait for the client's flow-control window.
    pub(super) blocked: Gauge,
    draining: AtomicBool,
    changed: Notify,
}

impl Activity {
    pub(crate) fn draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// How many requests are at work.
    pub(crate) fn at_work(&self) -> usize {
        let sum = |stripes: &Striped<AtomicUsize>| -> usize {
            stripes.iter().map(|stripe| stripe.load(Ordering::SeqCst)).sum()
        };
        // In this order: what has ended by now had begun before, so that none at work means that there was a moment without.
        let ended = sum(&self.ended);
        sum(&self.begun) - ended
    }

    pub(crate) fn write_metrics(&self, page: &mut Page) {
        page.gauge("plantstore_http_requests_in_flight", "Requests whose answer has not ended.")
            .sample(&[], self.at_work());
        page.gauge(
            "plantstore_http2_streams_blocked",
            "HTTP/2 responses that wait for the client's flow-control window.",
        )
        .sample(&[], self.blocked.get());
        page.gauge("plantstore_draining", "Whether the service is about to stop.")
            .sample(&[], u8::from(self.draining()));
    }

    /// Resolves when no request is at work.
    async fn idle(&self) {
        loop {
            let changed = self.changed.notified();
            if self.at_work() == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// A request at work, from the end of its head to the end of its answer.
pub(crate) struct Working {
    app: &'static App,
    /// The line that it occupies, where a connection has one request at a time.
    line: Option<Arc<Line>>,
    pub(crate) arrived: Instant,
}

impl Working {
    pub(crate) fn begin(app: &'static App, line: Option<&Arc<Line>>) -> Self {
        app.activity.begun.mine().fetch_add(1, Ordering::SeqCst);
        let arrived = line.map_or_else(Instant::now, |line| line.begin());
        Self { app, line: line.cloned(), arrived }
    }

    pub(crate) fn app(&self) -> &'static App {
        self.app
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.end();
        }
        self.app.activity.ended.mine().fetch_add(1, Ordering::SeqCst);
        if self.app.draining() {
            self.app.activity.changed.notify_waiters();
        }
    }
}

/// How far the service is on its way to the end, for connections to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Open,
    /// No new requests are wanted, but they are answered.
    Draining,
    /// Nothing is at work any more.
    Closing,
}

impl Stage {
    /// Resolves when it has come.
    pub(super) async fn reached(self, told: &mut watch::Receiver<Self>) {
        // Whoever tells is gone only at the very end.
        let _ = told.wait_for(|stage| *stage >= self).await;
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

/// Serves the connections of `listener`, encrypted if it is told how, until `shutdown` resolves; then takes no more, finishes
/// the requests at work and closes all connections, within the grace of the limits.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    app: &'static App,
    shutdown: impl Future<Output = ()>,
) -> Stopped {
    serve_with(listener, tls, Service::new(app, router(app)), shutdown).await
}

/// [`serve`], with the routes of `service`.
pub(super) async fn serve_with(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    service: Service,
    shutdown: impl Future<Output = ()>,
) -> Stopped {
    let app = service.app;
    let open = ConnectionLimit::new(&app.limits);
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
    let (tell, stage) = watch::channel(Stage::Open);
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, client)) => match open.open(client.ip()) {
                Ok(place) => {
                    let connection = drive(stream, client.ip(), tls.clone(), service.fork(), stage.clone());
                    tokio::spawn(async move {
                        connection.await;
                        drop(place);
                    });
                }
                // Telling it over TLS would take a handshake, which is what there is no room for.
                Err(exceeded) if tls.is_some() => app.metrics.connections.turn_away(exceeded),
                Err(exceeded) => turn_away(stream, client, exceeded, app, &turned_away),
            },
            Err(error) => pause_after(&error).await,
        }
    }
    let deadline = Instant::now() + app.limits.shutdown_grace;
    drop(listener);
    app.activity.draining.store(true, Ordering::SeqCst);
    tell.send_replace(Stage::Draining);
    let finish = async {
        app.activity.idle().await;
        // Until now connections without a request stayed open, so that a client on one of them was not cut off.
        tell.send_replace(Stage::Closing);
        open.all_closed().await;
    };
    let finished = tokio::time::timeout_at(deadline.into(), finish).await.is_ok();
    Stopped { cut: if finished { 0 } else { open.count() }, deadline }
}

/// Connection-level errors concern one client; anything else is worth a pause and a word.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::warn!(%error, "cannot accept a connection");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// Tells a client that there are too many connections, without making any other wait.
fn turn_away(stream: TcpStream, client: SocketAddr, exceeded: Exceeded, app: &'static App, places: &Arc<Semaphore>) {
    app.metrics.connections.turn_away(exceeded);
    let Ok(place) = Arc::clone(places).try_acquire_owned() else {
        return;
    };
    tokio::spawn(async move {
        let _place = place;
        let stream = Stream::Clear(Socket::new(stream, app.limits.write_timeout));
        stream.last_words(&raw_answer(app, &ApiError::Overloaded, client.ip(), Instant::now())).await;
    });
}
