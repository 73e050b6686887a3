//! Metrics of connections.

use plantstore_telemetry::metrics::{Counter, Exposition, Gauge};

use crate::transport::{CloseReason, ConnectionEvent, Exceeded};

#[derive(Default)]
pub(crate) struct ConnectionMetrics {
    open: Gauge,
    accepted: Counter,
    beyond_total: Counter,
    beyond_address: Counter,
    silent: Counter,
    slow_head: Counter,
    large_head: Counter,
    malformed: Counter,
    stalled: Counter,
    handshake: Counter,
    misuse: Counter,
}

impl ConnectionMetrics {
    pub(crate) fn record(&self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Accepted => {
                self.accepted.count();
                self.open.add(1);
            }
            ConnectionEvent::Closed => self.open.add(-1),
            ConnectionEvent::LimitReached(Exceeded::Total) => self.beyond_total.count(),
            ConnectionEvent::LimitReached(Exceeded::Address) => self.beyond_address.count(),
            ConnectionEvent::HandshakeFailed => self.handshake.count(),
            ConnectionEvent::Aborted(reason) => self.end(reason),
        }
    }

    fn end(&self, reason: CloseReason) {
        match reason {
            CloseReason::Idle => self.silent.count(),
            CloseReason::HeadTimeout => self.slow_head.count(),
            CloseReason::HeadTooLarge => self.large_head.count(),
            CloseReason::Malformed => self.malformed.count(),
            CloseReason::Stalled => self.stalled.count(),
            CloseReason::ProtocolViolation => self.misuse.count(),
            // The connection goes on.
            CloseReason::SwitchToHttp2 => {}
        }
    }

    pub(super) fn write(&self, exposition: &mut Exposition) {
        exposition.gauge("plantstore_http_connections", "Open client connections.").sample(&[], self.open.get());
        exposition
            .counter("plantstore_http_connections_accepted_total", "Accepted client connections.")
            .sample(&[], self.accepted.get());
        let help =
            "Connections rejected because of --max-connections (total) or --max-connections-per-address (address).";
        exposition
            .counter("plantstore_http_connections_rejected_total", help)
            .sample(&[("limit", "total".into())], self.beyond_total.get())
            .sample(&[("limit", "address".into())], self.beyond_address.get());
        exposition
            .counter(
                "plantstore_http_connections_aborted_total",
                "Connections closed by the server because of a fault, by reason.",
            )
            .sample(&[("reason", "idle".into())], self.silent.get())
            .sample(&[("reason", "header_timeout".into())], self.slow_head.get())
            .sample(&[("reason", "header_too_large".into())], self.large_head.get())
            .sample(&[("reason", "malformed".into())], self.malformed.get())
            .sample(&[("reason", "stalled".into())], self.stalled.get())
            .sample(&[("reason", "tls_handshake".into())], self.handshake.get())
            .sample(&[("reason", "protocol_violation".into())], self.misuse.get());
    }
}
