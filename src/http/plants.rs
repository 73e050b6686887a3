//! The three operations. The order of the arguments is the policy: who calls, then what they ask for.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};

use super::App;
use super::auth::{Caller, Deleting, Reading, Writing};
use super::collections::Author;
use super::error::ApiError;
use super::extract::{PathId, PlantBody};
use super::listing::{self, ListQuery};
use crate::store::{Creation, Deletion};

/// `POST /plants`
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    author: Author<Writing>,
    PlantBody(plant): PlantBody,
) -> Result<Response, ApiError> {
    let id = plant.id;
    let shown = serde_json::to_vec(&plant.shown()).map_err(|error| ApiError::Internal(error.to_string()))?;
    let _slot = app.writes.enter().await?;
    match app.store.create(author.actor, plant).await? {
        Creation::Created => {}
        Creation::Duplicate => return Err(ApiError::Duplicate(id)),
        Creation::NoUser => return Err(ApiError::InvalidToken),
        Creation::NoOwner => return Err(ApiError::NoCollection),
    }
    let mut response = Response::new(Body::from(shown));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(location) = HeaderValue::try_from(format!("/plants/{id}{}", author.owner.parameter('?'))) {
        headers.insert(header::LOCATION, location);
    }
    Ok(response)
}

/// `GET /plants`
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Reading>,
    query: ListQuery,
) -> Result<Response, ApiError> {
    listing::answer(app, caller.readable(query.owner())?, query).await
}

/// `DELETE /plants/{id}`
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    author: Author<Deleting>,
    PathId(id): PathId,
) -> Result<Response, ApiError> {
    let _slot = app.writes.enter().await?;
    match app.store.delete(author.actor, id).await? {
        Deletion::Deleted => {}
        Deletion::NoPlant => return Err(ApiError::NoPlant),
        Deletion::NoUser => return Err(ApiError::InvalidToken),
        Deletion::NoOwner => return Err(ApiError::NoCollection),
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}
