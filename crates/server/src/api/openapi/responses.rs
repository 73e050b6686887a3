//! The responses of each operation.

use hyper::StatusCode;
use serde_json::json;
use utoipa::IntoResponses;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::link::LinkBuilder;
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, RefOr, ResponseBuilder, Type};

use super::errors::{body_errors, caller_errors, common_errors, error_response, error_responses, write_errors};
use super::headers;
use super::parts::{JSON, Responses, code, reference};
use super::schemas::PlantSchema;
use crate::api::error::ApiError;
use plantstore_model::plant::{PlantId, PlantIdError};
use plantstore_model::token::Scope;

/// Header fields for conditional requests.
const VALIDATORS: [&str; 2] = ["ETag", "Cache-Control"];

/// Of `POST /plants`.
pub(crate) struct CreateResponses;
/// Of `GET /plants`.
pub(crate) struct ListResponses;
/// Of `GET /plants/{id}`.
pub(crate) struct ReadPlantResponses;
/// Of `DELETE /plants/{id}`.
pub(crate) struct DeleteResponses;
/// Of `GET /livez`.
pub(crate) struct LiveResponses;
/// Of `GET /readyz`.
pub(crate) struct ReadyResponses;
/// Of `GET /openapi.json`.
pub(crate) struct OpenapiResponses;

impl IntoResponses for CreateResponses {
    fn responses() -> Responses {
        let by_id = |operation: &str, description: &str| {
            let link = LinkBuilder::new().operation_id(operation).parameter("id", "$request.body#/id");
            link.description(description).build()
        };
        let content = ContentBuilder::new().schema(Some(reference::<PlantSchema>()));
        let content = content.example(Some(json!({"name": "Monstera", "tag": "indoor"})));
        let created = ResponseBuilder::new()
            .description("The plant, as it was created; its id is in `Location`")
            .content(JSON, content.build())
            .link("read", by_id("readPlant", "Reads the plant by the id that the client has chosen."))
            .link("delete", by_id("deletePlant", "Deletes the plant by the id that the client has chosen."));
        let mut responses = error_responses(write_errors(Scope::Write).chain(body_errors()).chain([
            ApiError::Duplicate(PlantId::new(1)),
            ApiError::BodyUnreadable,
            ApiError::NotJsonType,
        ]));
        responses.insert(code(StatusCode::OK), headers::with(created, ["Location"]).into());
        mark_replayed(&mut responses, StatusCode::OK, &ApiError::Duplicate(PlantId::new(1)));
        with_quota(responses)
    }
}

impl IntoResponses for ListResponses {
    fn responses() -> Responses {
        let schema = ArrayBuilder::new().items(reference::<PlantSchema>());
        let content =
            ContentBuilder::new().schema(Some(schema)).example(Some(json!([{"name": "Monstera", "tag": "indoor"}])));
        let listed = ResponseBuilder::new()
            .description("The plants that the caller can read, ascending by id")
            .content(JSON, content.build());
        let unchanged =
            ResponseBuilder::new().description("Not modified: the entity tag in `If-None-Match` is current");
        let mut responses = error_responses(caller_errors(Scope::Read).chain([
            ApiError::BadLimit("must be an integer from 0 to 2147483647, without leading zeros"),
            ApiError::BadCursor,
            ApiError::NoCollection,
        ]));
        responses.insert(
            code(StatusCode::OK),
            headers::with(listed, VALIDATORS.into_iter().chain(["Link", "Content-Encoding"])).into(),
        );
        responses.insert(code(StatusCode::NOT_MODIFIED), headers::with(unchanged, VALIDATORS).into());
        with_quota(responses)
    }
}

impl IntoResponses for ReadPlantResponses {
    fn responses() -> Responses {
        let content = ContentBuilder::new().schema(Some(reference::<PlantSchema>()));
        let content = content.example(Some(json!({"name": "Monstera", "tag": "indoor"})));
        let found = ResponseBuilder::new().description("The plant").content(JSON, content.build());
        let unchanged =
            ResponseBuilder::new().description("Not modified: the entity tag in `If-None-Match` is current");
        let own_errors = [ApiError::BadPathId(PlantIdError::NotAnInteger), ApiError::NoPlant, ApiError::NoCollection];
        let mut responses = error_responses(caller_errors(Scope::Read).chain(own_errors));
        responses.insert(code(StatusCode::OK), headers::with(found, VALIDATORS).into());
        responses.insert(code(StatusCode::NOT_MODIFIED), headers::with(unchanged, VALIDATORS).into());
        with_quota(responses)
    }
}

impl IntoResponses for DeleteResponses {
    fn responses() -> Responses {
        let deleted = ResponseBuilder::new().description("The plant is deleted");
        let own_errors = [ApiError::BadPathId(PlantIdError::NotAnInteger), ApiError::NoPlant];
        let mut responses = error_responses(write_errors(Scope::Delete).chain(own_errors));
        responses.insert(code(StatusCode::NO_CONTENT), headers::with(deleted, []).into());
        mark_replayed(&mut responses, StatusCode::NO_CONTENT, &ApiError::NoPlant);
        with_quota(responses)
    }
}

impl IntoResponses for LiveResponses {
    fn responses() -> Responses {
        with_probe_status("The process is alive", "live", error_responses(common_errors()))
    }
}

impl IntoResponses for ReadyResponses {
    fn responses() -> Responses {
        let errors = error_responses(common_errors().chain([ApiError::Unavailable(String::new())]));
        with_probe_status("The store responds, and the service is not shutting down", "ready", errors)
    }
}

impl IntoResponses for OpenapiResponses {
    fn responses() -> Responses {
        let schema = ObjectBuilder::new().schema_type(Type::Object);
        let document = ResponseBuilder::new()
            .description("This document")
            .content(JSON, ContentBuilder::new().schema(Some(schema)).build());
        let unchanged =
            ResponseBuilder::new().description("Not modified: the entity tag in `If-None-Match` is current");
        let mut responses = error_responses(common_errors());
        let sent = VALIDATORS.into_iter().chain(["Content-Encoding"]);
        responses.insert(code(StatusCode::OK), headers::with(document, sent).into());
        responses.insert(code(StatusCode::NOT_MODIFIED), headers::with(unchanged, VALIDATORS).into());
        responses
    }
}

/// Returns the responses to requests that match no operation.
pub(super) fn outside_of_operations() -> Responses {
    let preflight =
        ResponseBuilder::new().description("Methods and header fields that pages of another origin may use");
    let allowed = ["Access-Control-Allow-Methods", "Access-Control-Allow-Headers", "Access-Control-Max-Age"];
    let not_allowed = ApiError::MethodNotAllowed("GET,HEAD,POST".to_owned());
    let errors =
        [("NoSuchAddress", error_response(&[ApiError::NoRoute])), ("MethodNotAllowed", error_response(&[not_allowed]))];
    let mut responses = with_quota(errors.map(|(name, response)| (name.to_owned(), response.into())).into());
    responses.insert("Preflight".to_owned(), headers::with(preflight, allowed).into());
    responses
}

/// Adds the success response of a probe.
fn with_probe_status(description: &str, status: &str, mut responses: Responses) -> Responses {
    let value = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([status]));
    let schema = ObjectBuilder::new().property("status", value).required("status");
    let content = ContentBuilder::new().schema(Some(schema)).example(Some(json!({"status": status})));
    let success = ResponseBuilder::new().description(description).content(JSON, content.build());
    responses.insert(code(StatusCode::OK), headers::with(success, ["Cache-Control"]).into());
    responses
}

/// Adds `Idempotency-Replayed` to the responses that may be replayed: the success, this error, and errors in the request itself.
fn mark_replayed(responses: &mut Responses, success: StatusCode, error: &ApiError) {
    let stored = [&ApiError::BadRequest(""), &ApiError::NotJsonType, error].map(|error| error.code().1);
    for status in stored.into_iter().chain([success]) {
        if let Some(RefOr::T(response)) = responses.get_mut(&code(status)) {
            headers::add(response, "Idempotency-Replayed");
        }
    }
}

/// Adds `RateLimit`, which an authenticated caller gets with errors, too.
pub(super) fn with_quota(mut responses: Responses) -> Responses {
    for response in responses.values_mut() {
        if let RefOr::T(response) = response {
            headers::add(response, "RateLimit");
        }
    }
    responses
}
