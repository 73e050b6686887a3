//! Tracks the requests in flight, so that a shutdown can wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use plantstore_telemetry::metrics::{Exposition, Gauge, Striped};
use tokio::sync::Notify;

use super::connection_state::ConnectionState;

/// Counts the requests in flight on a listener. The counters are striped, so that threads do not contend for them.
#[derive(Default)]
pub(super) struct RequestTracker {
    begun: Striped<AtomicUsize>,
    ended: Striped<AtomicUsize>,
    /// HTTP/2 responses that wait for the client's flow-control window.
    pub(super) blocked: Gauge,
    draining: AtomicBool,
    changed: Notify,
}

impl RequestTracker {
    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    pub(super) fn start_draining(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub(super) fn count(&self) -> usize {
        let sum = |stripes: &Striped<AtomicUsize>| -> usize {
            stripes.iter().map(|stripe| stripe.load(Ordering::SeqCst)).sum()
        };
        // The order matters: every request in `ended` is also in `begun`, which is read later. So zero means that there was an
        // instant without requests.
        let ended = sum(&self.ended);
        sum(&self.begun) - ended
    }

    pub(super) fn write_metrics(&self, exposition: &mut Exposition) {
        exposition
            .gauge("plantstore_http_requests_in_flight", "Requests in flight: received, and not yet answered in full.")
            .sample(&[], self.count());
        exposition
            .gauge(
                "plantstore_http2_streams_blocked",
                "HTTP/2 responses that wait for the client's flow-control window.",
            )
            .sample(&[], self.blocked.get());
        exposition
            .gauge("plantstore_draining", "1 while the server shuts down, otherwise 0.")
            .sample(&[], u8::from(self.is_draining()));
    }

    /// Resolves when no request is in flight.
    pub(super) async fn idle(&self) {
        loop {
            let changed = self.changed.notified();
            if self.count() == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// A request in flight, from the end of its head to the end of its response.
pub(crate) struct InFlightRequest {
    tracker: &'static RequestTracker,
    /// The state of an HTTP/1.1 connection; `None` for HTTP/2.
    connection: Option<Arc<ConnectionState>>,
    /// Arrival time of its first byte; over HTTP/2, of the end of its head.
    pub(crate) arrived: Instant,
}

impl InFlightRequest {
    pub(super) fn begin(tracker: &'static RequestTracker, connection: Option<&Arc<ConnectionState>>) -> Self {
        tracker.begun.local().fetch_add(1, Ordering::SeqCst);
        let arrived = connection.map_or_else(Instant::now, |connection| connection.begin_request());
        Self { tracker, connection: connection.cloned(), arrived }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            connection.end_request();
        }
        self.tracker.ended.local().fetch_add(1, Ordering::SeqCst);
        if self.tracker.is_draining() {
            self.tracker.changed.notify_waiters();
        }
    }
}
