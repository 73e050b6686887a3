//! Liveness and readiness probes, for load balancers and service managers. They need no token.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::error::ApiError;
use super::response::uncached_json;
use super::state::Api;
use crate::auth::Public;

/// Paths that are exempt from the limit on HTTP/2 streams.
pub(crate) const PATHS: [&str; 2] = ["/livez", "/readyz"];

/// `GET /livez`
pub(crate) async fn livez(_: Public) -> Response {
    uncached_json(r#"{"status":"live"}"#)
}

/// `GET /readyz`
pub(crate) async fn readyz(State(api): State<&'static Api>, _: Public) -> Result<Response, ApiError> {
    // A shutdown may begin during the check of the store, so it is looked at again.
    let checked = if api.transport.is_draining() { Ok(()) } else { api.readiness.check(&api.store).await };
    if api.transport.is_draining() {
        return Err(ApiError::Draining);
    }
    checked?;
    let lost = api.store.lost_servers();
    if lost.is_empty() {
        return Ok(uncached_json(r#"{"status":"ready"}"#));
    }
    Ok(uncached_json(json!({"status": "ready", "lost": lost}).to_string()))
}

/// Returns the schema of the body of a probe with this status.
pub(crate) fn schema(status: &str) -> Value {
    json!({"type": "object", "required": ["status"], "properties": {"status": {"type": "string", "enum": [status]}}})
}
