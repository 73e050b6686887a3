//! Liveness and readiness probes, for load balancers and service managers. They need no token.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::header::{self, HeaderValue};

use super::error::ApiError;
use super::openapi::{LiveResponses, ReadParameters, ReadyResponses, SERVICE};
use super::state::Api;
use crate::auth::Public;
use crate::transport::Transport;

/// Paths that are exempt from the limit on HTTP/2 streams.
pub(crate) const PATHS: [&str; 2] = ["/livez", "/readyz"];

/// `GET /livez`
#[utoipa::path(
    get,
    path = "/livez",
    operation_id = "isLive",
    tag = SERVICE,
    summary = "Check that the process is alive",
    description = "Succeeds as long as the process can handle requests.",
    params(ReadParameters),
    responses(LiveResponses),
)]
pub(crate) async fn livez(_: Public) -> Response {
    status(r#"{"status":"live"}"#)
}

/// `GET /readyz`
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "isReady",
    tag = SERVICE,
    summary = "Check that the service is ready for requests",
    description = "Succeeds if the store responds and the service is not shutting down.",
    params(ReadParameters),
    responses(ReadyResponses),
)]
pub(crate) async fn readyz(
    State(api): State<&'static Api>,
    State(transport): State<&'static Transport>,
    _: Public,
) -> Result<Response, ApiError> {
    // A shutdown may begin during the check of the store, so it is looked at again.
    let checked = if transport.is_draining() { Ok(()) } else { api.readiness.check(&api.store).await };
    if transport.is_draining() {
        return Err(ApiError::Draining);
    }
    checked?;
    Ok(status(r#"{"status":"ready"}"#))
}

fn status(body: &'static str) -> Response {
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
