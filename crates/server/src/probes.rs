//! What balancers and supervisors ask, without a token: does the process live, and should it get requests?

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::header::{self, HeaderValue};

use super::App;
use super::auth::Public;
use super::error::ApiError;
use super::openapi::{LiveAnswers, ReadParameters, ReadyAnswers, SERVICE};

/// `GET /livez`: answers as long as the process does.
#[utoipa::path(
    get,
    path = "/livez",
    operation_id = "isLive",
    tag = SERVICE,
    summary = "Whether the process lives",
    description = "Answers as long as the process does.",
    params(ReadParameters),
    responses(LiveAnswers),
)]
pub(crate) async fn livez(_: Public) -> Response {
    status(r#"{"status":"live"}"#)
}

/// `GET /readyz`: whether the store answers and the service is not shutting down.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "isReady",
    tag = SERVICE,
    summary = "Whether it should get requests",
    description = "Whether the store answers and the service is not shutting down.",
    params(ReadParameters),
    responses(ReadyAnswers),
)]
pub(crate) async fn readyz(State(app): State<&'static App>, _: Public) -> Result<Response, ApiError> {
    // The store may take a moment: what counts is the state at its end.
    let checked = if app.draining() { Ok(()) } else { app.readiness.check(&app.store).await };
    if app.draining() {
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
