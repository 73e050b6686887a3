//! Liveness and readiness probes, for load balancers and service managers. They need no token.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::header::{self, HeaderValue};
use serde_json::{Value, json};

use super::error::ApiError;
use super::state::Api;
use crate::auth::Public;
use crate::transport::Transport;

/// Paths that are exempt from the limit on HTTP/2 streams.
pub(crate) const PATHS: [&str; 2] = ["/livez", "/readyz"];

/// `GET /livez`
pub(crate) async fn livez(_: Public) -> Response {
    status(r#"{"status":"live"}"#)
}

/// `GET /readyz`
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

/// Returns the schema of the body of a probe with this status.
pub(crate) fn schema(status: &str) -> Value {
    json!({"type": "object", "required": ["status"], "properties": {"status": {"type": "string", "enum": [status]}}})
}

fn status(body: &'static str) -> Response {
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
