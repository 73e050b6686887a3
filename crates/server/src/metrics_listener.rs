//! The metrics listener: `GET /metrics` on a port of its own.
//!
//! It uses the same transport as the service, with limits and a state of its own, so that it responds while the service is
//! overloaded or shutting down, and while the store is down.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::handler::Handler as _;
use axum::response::Response;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::Method;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use plantstore_telemetry::metrics::{Exposition, ExpositionFormat};
use tokio::net::TcpListener;

use crate::api::{Api, ApiError};
use crate::auth::{Auth, Public};
use crate::observe::Observe;
use crate::options::{ApiLimits, TransportLimits, defaults};
use crate::request_handler::{NO_ROUTE, RequestHandler};
use crate::server::{Server, leak};
use crate::transport::{self, Transport, TrustedProxies};

/// Time limit for a ping of the store. Prometheus waits for 10 seconds.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of connections: more than the few scrapers that are expected. Beyond it, the oldest is closed.
const CONNECTIONS_MAX: usize = 16;
/// Header and write timeout.
const TIMEOUT: Duration = Duration::from_secs(2);

const METRICS: &str = "/metrics";

/// A function that writes metrics.
pub(crate) type WriteMetrics = Arc<dyn Fn(&mut Exposition) + Send + Sync>;

/// Serves the metrics of `server`, and those that `write_more` writes, for as long as it is polled.
pub fn serve_metrics(listener: TcpListener, server: Server, write_more: WriteMetrics) -> BoxFuture<'static, ()> {
    let limits = TransportLimits {
        header_timeout: TIMEOUT,
        write_timeout: TIMEOUT,
        max_connections: CONNECTIONS_MAX,
        ..defaults()
    };
    let api = ApiLimits { request_timeout: TIMEOUT, list_cache_bytes: 0, ..defaults() };
    let transport = leak(Transport::new(limits, TrustedProxies::default()).for_single_requests());
    let auth = Auth::new(Arc::clone(server.store), None, &defaults());
    let api = leak(Api::new(Arc::clone(server.store), transport, auth, api));
    let write_more = leak(write_more);
    let handler = RequestHandler {
        api,
        observe: Observe::new(vec![METRICS, NO_ROUTE], None),
        cors: None,
        console: false,
        hsts: false,
        label_of: |path| if path == METRICS { METRICS } else { NO_ROUTE },
        is_routine: |label| label == METRICS,
        respond: Box::new(move |request, state| match request.uri().path() {
            METRICS if matches!(*request.method(), Method::GET | Method::HEAD) => {
                let scrape = async move |_: Public, headers: HeaderMap| scrape(&server, write_more, &headers).await;
                scrape.call(request, state)
            }
            METRICS => (async |_: Public| ApiError::MethodNotAllowed("GET,HEAD".to_owned())).call(request, state),
            _ => (async |_: Public| ApiError::NoMetricsHere).call(request, state),
        }),
    };
    let serve = transport::serve(listener, None, transport, leak(handler), std::future::pending());
    Box::pin(serve.map(drop))
}

async fn scrape(server: &Server, write_more: &WriteMetrics, headers: &HeaderMap) -> Response {
    let up = matches!(tokio::time::timeout(PING_TIMEOUT, server.store.ping()).await, Ok(Ok(())));
    let format = requested_format(headers);
    let mut exposition = Exposition::new(format);
    write_more(&mut exposition);
    exposition
        .gauge("plantstore_store_up", "1 if the store responded to this scrape, otherwise 0.")
        .sample(&[], u8::from(up));
    server.store.write_metrics(&mut exposition);
    server.write_metrics(&mut exposition);
    let mut response = Response::new(Body::from(exposition.finish()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns OpenMetrics for a client that accepts it, as Prometheus does, and the text format for others.
fn requested_format(headers: &HeaderMap) -> ExpositionFormat {
    let accepts =
        |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains("application/openmetrics-text"));
    if headers.get_all(ACCEPT).iter().any(accepts) { ExpositionFormat::OpenMetrics } else { ExpositionFormat::Text }
}
