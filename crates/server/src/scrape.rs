//! The second listener: `GET /metrics`, for whoever collects the numbers.
//!
//! It is served like the first, with limits of its own, and shares nothing with it: it answers while the service is busy,
//! while it stops, and while the store is down.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::get;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use tokio::net::TcpListener;

use super::auth::Public;
use super::error::ApiError;
use super::limits::Limits;
use super::serve::serve_with;
use super::{App, Service, Surface};
use plantstore_telemetry::metrics::{Format, Page};

/// How long the store gets to say that it is there; Prometheus waits for 10 seconds.
const PING_PATIENCE: Duration = Duration::from_secs(2);
/// Connections at the same time: more than the few that have business here.
const CONNECTIONS_MAX: usize = 16;
/// For a request to arrive, for a client to take some of its response, and between two requests of one connection: idle
/// connections must not shut out scrapes for longer.
const TIMEOUT: Duration = Duration::from_secs(2);

const SURFACE: Surface = Surface { routes: &["/metrics", "-"], route_of };

/// Serves the metrics of `app`, and whatever else `more` writes, for as long as it is polled.
pub async fn serve_metrics(listener: TcpListener, app: &'static App, more: impl Fn(&mut Page) + Send + Sync + 'static) {
    let limits = Limits {
        header_timeout: TIMEOUT,
        request_timeout: TIMEOUT,
        idle_timeout: TIMEOUT,
        write_timeout: TIMEOUT,
        connections: CONNECTIONS_MAX,
        list_cache_bytes: 0,
        ..Limits::default()
    };
    let own = &*Box::leak(Box::new(App::on_surface(&SURFACE, Arc::clone(&app.store), limits)));
    let more = Arc::new(more);
    let metrics = async move |_: Public, headers: HeaderMap| scrape(app, &*more, &headers).await;
    let router = Router::new()
        .route("/metrics", get(metrics))
        .fallback(async |_: Public| ApiError::NoMetricsHere)
        .method_not_allowed_fallback(async |_: Public| ApiError::MethodNotAllowed(String::new()))
        .with_state(own);
    serve_with(listener, None, Service::new(own, router), std::future::pending()).await;
}

fn route_of(path: &str) -> &'static str {
    if path == "/metrics" { "/metrics" } else { "-" }
}

async fn scrape(app: &App, more: impl Fn(&mut Page), headers: &HeaderMap) -> Response {
    let up = matches!(tokio::time::timeout(PING_PATIENCE, app.store.ping()).await, Ok(Ok(())));
    let format = format_for(headers);
    let mut page = Page::new(format);
    more(&mut page);
    page.gauge("plantstore_store_up", "Whether the store answers, asked for this very page.").sample(&[], u8::from(up));
    app.store.write_metrics(&mut page);
    app.write_metrics(&mut page);
    let mut response = Response::new(Body::from(page.finish()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Prometheus asks for OpenMetrics; people, and older programs, do not.
fn format_for(headers: &HeaderMap) -> Format {
    let asked = |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains("application/openmetrics-text"));
    if headers.get_all(ACCEPT).iter().any(asked) { Format::OpenMetrics } else { Format::Text }
}
