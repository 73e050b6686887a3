//! The operations on plants. The order of a handler's arguments is the order of checks: the caller, the idempotency key,
//! the capacity, then the body.

use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{HeaderValue, LOCATION};

use super::collections::{OwnerParameter, WriteAccess, one_readable, readable};
use super::error::ApiError;
use super::extract::{PathId, PlantBody, ReadCapacity, WriteCapacity};
use super::idempotency::{self, RequestKey};
use super::listing::{ListQuery, PlantQuery, list_plants, read_plant};
use super::response::{json, no_content, serialize};
use super::state::Api;
use crate::auth::{Caller, Delete, Read, Write};
use plantstore_model::plant::NewPlant;

/// `POST /plants`
pub(crate) async fn create(
    State(api): State<&'static Api>,
    access: WriteAccess<Write>,
    key: RequestKey,
    _: WriteCapacity,
    body: PlantBody,
) -> Result<Response, ApiError> {
    let context = access.context;
    let key = key.with_owner(context).with_body(&body.bytes);
    let plant = match body.plant {
        Ok(plant) => plant,
        Err(error) => return Err(key.reject(api, context.user, error).await),
    };
    let id = plant.id;
    let created = created(&plant, &access.owner)?;
    let key = key.with_outcomes(StatusCode::OK, &ApiError::Duplicate(id));
    let outcome = api.store.create(context, plant, key).await.map_err(|error| api.write_error(error))?;
    idempotency::respond(outcome, created, ApiError::Duplicate(id))
}

fn created(plant: &NewPlant, owner: &OwnerParameter) -> Result<Response, ApiError> {
    let mut response = json(serialize(&plant.shown())?);
    if let Ok(location) = HeaderValue::try_from(format!("/plants/{}{}", plant.id, owner.parameter('?'))) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// `GET /plants`
pub(crate) async fn list(
    State(api): State<&'static Api>,
    caller: Caller<Read>,
    _: ReadCapacity,
    query: ListQuery,
) -> Result<Response, ApiError> {
    list_plants(api, readable(&caller, query.owner())?, query).await
}

/// `GET /plants/{id}`
pub(crate) async fn read(
    State(api): State<&'static Api>,
    caller: Caller<Read>,
    _: ReadCapacity,
    query: PlantQuery,
    PathId(id): PathId,
) -> Result<Response, ApiError> {
    read_plant(api, one_readable(&caller, &query.owner)?, query, id?).await
}

/// `DELETE /plants/{id}`
pub(crate) async fn delete(
    State(api): State<&'static Api>,
    access: WriteAccess<Delete>,
    key: RequestKey,
    _: WriteCapacity,
    PathId(id): PathId,
) -> Result<Response, ApiError> {
    let context = access.context;
    let key = key.with_owner(context);
    let id = match id {
        Ok(id) => id,
        Err(error) => return Err(key.reject(api, context.user, error).await),
    };
    let key = key.with_outcomes(StatusCode::NO_CONTENT, &ApiError::NoPlant);
    let outcome = api.store.delete(context, id, key).await.map_err(|error| api.write_error(error))?;
    idempotency::respond(outcome, no_content(), ApiError::NoPlant)
}
