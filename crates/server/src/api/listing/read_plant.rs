//! `GET /plants/{id}`: one plant of a collection. It has the entity tag of the collection, which changes at least as often as the
//! plant.

use std::ops::ControlFlow;

use axum::response::Response;
use hyper::header::VARY;
use plantstore_model::plant::{Plant, PlantId};
use plantstore_store::{CollectionAccess, PlantRange};

use super::query::PlantQuery;
use crate::api::collections::ReadableCollections;
use crate::api::error::ApiError;
use crate::api::response::{self, NOT_NEGOTIATED};
use crate::api::state::Api;

/// Responds with the plant of this id in a single collection.
pub(crate) async fn read_plant(
    api: &'static Api,
    readable: ReadableCollections,
    query: PlantQuery,
    id: PlantId,
) -> Result<Response, ApiError> {
    let [CollectionAccess { owner, owner_id, .. }] = readable.collections() else {
        return Err(ApiError::Internal("a plant of several collections".to_owned()));
    };
    let _slot = api.read_limiter.acquire(readable.user_id()).await?;
    let mut ranges = [PlantRange::all_of(*owner_id).starting_at(id).through(id)];
    let include = query.include;
    let mut body = Vec::new();
    let found = |_, id, name: &str, tag: Option<&str>| {
        let plant = Plant { id: include.id.then_some(id), owner: include.owner.then(|| owner.as_str()), name, tag };
        plant.write_json(&mut body);
        ControlFlow::Break(())
    };
    let listed = api.store.list(&mut ranges, None, 1, found).await?;
    readable.check_owners_exist(&listed.versions)?;
    if body.is_empty() {
        return Err(ApiError::NoPlant);
    }
    let tag = readable.tag(&listed.versions).header();
    if query.if_none_match.is_some_and(|condition| condition.matches(&tag)) {
        let mut response = response::plants_not_modified(tag);
        response.headers_mut().insert(VARY, NOT_NEGOTIATED);
        return Ok(response);
    }
    Ok(response::plants(body, None, tag))
}
