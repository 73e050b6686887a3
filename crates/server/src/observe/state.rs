//! The metrics and the tracer that requests and connections report to.

use plantstore_telemetry::metrics::Exposition;

use super::connection_metrics::ConnectionMetrics;
use super::request_metrics::RequestMetrics;
use super::traces::{Collector, Tracer};

pub(crate) struct Observe {
    pub(super) requests: RequestMetrics,
    pub(crate) connections: ConnectionMetrics,
    pub(crate) tracer: Option<Tracer>,
}

impl Observe {
    /// Observes requests on the routes with these labels.
    pub(crate) fn new(routes: Vec<&'static str>, collector: Option<Collector>) -> Self {
        let requests = RequestMetrics::new(routes);
        Self { requests, connections: ConnectionMetrics::default(), tracer: collector.map(Tracer::start) }
    }

    pub(crate) fn write_request_metrics(&self, exposition: &mut Exposition) {
        self.requests.write(exposition);
    }

    pub(crate) fn write_connection_metrics(&self, exposition: &mut Exposition) {
        self.connections.write(exposition);
    }

    pub(crate) fn write_trace_metrics(&self, exposition: &mut Exposition) {
        if let Some(tracer) = &self.tracer {
            tracer.write_metrics(exposition);
        }
    }

    /// Sends the spans that are queued for the collector. Call it when no request is in flight any more.
    pub(crate) async fn flush_traces(&self) {
        if let Some(tracer) = &self.tracer {
            tracer.finish().await;
        }
    }
}
