//! The operations on plants. The order of a handler's arguments is the order of checks: the caller, the idempotency key,
//! the capacity, the id in the path, then the body.

use axum::extract::State;
use axum::response::Response;
use hyper::header::{HeaderValue, LOCATION};
use serde_json::{Value, json};
use utoipa::PartialSchema as _;

use super::collections::{OwnerParameter, one_readable, readable};
use super::error::ApiError;
use super::extract::{PathId, PlantBody, ReadCapacity, WriteAccess, WriteCapacity};
use super::idempotency::RequestKey;
use super::listing::{ListQuery, PlantQuery, list_plants, read_plant};
use super::response::{self, no_content};
use super::state::Api;
use crate::auth::{Caller, Delete, Read, Write};
use plantstore_model::plant::NewPlant;
use plantstore_store::PlantWrite;

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
    let plant = match body.parse(None) {
        Ok(plant) => plant,
        Err(error) => return Err(key.reject(api, context.user, error).await),
    };
    let created = created(&plant, &access.owner);
    let duplicate = ApiError::Duplicate(plant.id);
    key.write(api, context, PlantWrite::Create(plant), created, duplicate).await
}

fn created(plant: &NewPlant, owner: &OwnerParameter) -> Response {
    let mut response = shown(plant);
    let location = ["/plants/", &plant.id.get().to_string(), &owner.parameter('?')].concat();
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// Returns the response with a plant that was created or replaced.
fn shown(plant: &NewPlant) -> Response {
    let mut body = Vec::with_capacity(plant.name.as_str().len() + 64);
    plant.shown().write_json(&mut body);
    response::json(body)
}

/// `GET /plants`
pub(crate) async fn list(
    State(api): State<&'static Api>,
    caller: Caller<Read>,
    _: ReadCapacity,
    query: ListQuery,
) -> Result<Response, ApiError> {
    list_plants(api, readable(&caller.session, &query.parameters.owner)?, query).await
}

/// `GET /plants/{id}`
pub(crate) async fn read(
    State(api): State<&'static Api>,
    caller: Caller<Read>,
    _: ReadCapacity,
    query: PlantQuery,
    PathId(id): PathId,
) -> Result<Response, ApiError> {
    read_plant(api, one_readable(&caller.session, &query.owner)?, query, id?).await
}

/// `PUT /plants/{id}`
pub(crate) async fn replace(
    State(api): State<&'static Api>,
    access: WriteAccess<Write>,
    key: RequestKey,
    _: WriteCapacity,
    PathId(id): PathId,
    body: PlantBody,
) -> Result<Response, ApiError> {
    let context = access.context;
    let key = key.with_owner(context).with_body(&body.bytes);
    let plant = match id.and_then(|id| body.parse(Some(id))) {
        Ok(plant) => plant,
        Err(error) => return Err(key.reject(api, context.user, error).await),
    };
    let replaced = shown(&plant);
    key.write(api, context, PlantWrite::Replace(plant), replaced, ApiError::NoPlant).await
}

/// Returns the schema of the body of a replacement: that of a new plant without the id, which is in the path.
pub(crate) fn replacement_schema() -> Value {
    let mut schema = json!(NewPlant::schema());
    schema["description"] = "The new name and tag of a plant".into();
    schema["required"] = json!(["name"]);
    schema["examples"] = json!([{"name": "Monstera", "tag": "indoor"}]);
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.remove("id");
    }
    schema
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
    key.write(api, context, PlantWrite::Delete(id), no_content(), ApiError::NoPlant).await
}
