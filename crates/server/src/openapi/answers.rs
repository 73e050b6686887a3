//! The answers of each operation.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::json;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::link::LinkBuilder;
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, Ref, RefOr, Response, ResponseBuilder, Type};
use utoipa::{IntoResponses, ToSchema};

use super::errors::{answer, anybody, calling, errors, faults_of_bodies, writing};
use super::headers;
use super::schemas::PlantSchema;
use crate::error::ApiError;
use plantstore_model::plant::{IdFault, PlantId};
use plantstore_model::token::Scope;

/// Answers by their status, or by their name.
pub(super) type Answers = BTreeMap<String, RefOr<Response>>;

pub(super) const JSON: &str = "application/json";
/// What tells a client how long a list holds.
const VALIDATORS: [&str; 2] = ["ETag", "Cache-Control"];

/// Of `POST /plants`.
pub(crate) struct CreateAnswers;
/// Of `GET /plants`.
pub(crate) struct ListAnswers;
/// Of `DELETE /plants/{id}`.
pub(crate) struct DeleteAnswers;
/// Of `GET /livez`.
pub(crate) struct LiveAnswers;
/// Of `GET /readyz`.
pub(crate) struct ReadyAnswers;
/// Of `GET /openapi.json`.
pub(crate) struct OpenapiAnswers;

impl IntoResponses for CreateAnswers {
    fn responses() -> Answers {
        let delete = LinkBuilder::new()
            .operation_id("deletePlant")
            .parameter("id", "$request.body#/id")
            .description("The id that was chosen is the one to delete by.");
        let content = ContentBuilder::new().schema(Some(reference::<PlantSchema>()));
        let content = content.example(Some(json!({"name": "Monstera", "tag": "indoor"})));
        let created = ResponseBuilder::new()
            .description("The plant, as it was created; its id is in `Location`")
            .content(JSON, content.build())
            .link("delete", delete.build());
        let mut answers = errors(writing(Scope::Write).chain(faults_of_bodies()).chain([
            ApiError::Duplicate(PlantId::new(1)),
            ApiError::BodyUnreadable,
            ApiError::NotJsonType,
        ]));
        answers.insert(code(StatusCode::OK), headers::with(created, ["Location"]).into());
        mark_replayed(&mut answers, StatusCode::OK, &ApiError::Duplicate(PlantId::new(1)));
        told_of_quota(answers)
    }
}

impl IntoResponses for ListAnswers {
    fn responses() -> Answers {
        let schema = ArrayBuilder::new().items(reference::<PlantSchema>());
        let content =
            ContentBuilder::new().schema(Some(schema)).example(Some(json!([{"name": "Monstera", "tag": "indoor"}])));
        let listed = ResponseBuilder::new()
            .description("The plants that the caller can read, ascending by id")
            .content(JSON, content.build());
        let unchanged = ResponseBuilder::new().description("What `If-None-Match` names is still true");
        let mut answers = errors(calling(Scope::Read).chain([
            ApiError::BadLimit("must be an integer from 0 to 2147483647, without leading zeros"),
            ApiError::BadCursor,
            ApiError::NoCollection,
        ]));
        answers.insert(code(StatusCode::OK), headers::with(listed, VALIDATORS.into_iter().chain(["Link"])).into());
        answers.insert(code(StatusCode::NOT_MODIFIED), headers::with(unchanged, VALIDATORS).into());
        told_of_quota(answers)
    }
}

impl IntoResponses for DeleteAnswers {
    fn responses() -> Answers {
        let deleted = ResponseBuilder::new().description("The plant is gone");
        let wrong = [ApiError::BadPathId(IdFault::NotAnInteger), ApiError::NoPlant];
        let mut answers = errors(writing(Scope::Delete).chain(wrong));
        answers.insert(code(StatusCode::NO_CONTENT), headers::with(deleted, []).into());
        mark_replayed(&mut answers, StatusCode::NO_CONTENT, &ApiError::NoPlant);
        told_of_quota(answers)
    }
}

impl IntoResponses for LiveAnswers {
    fn responses() -> Answers {
        probed("The process lives", "live", errors(anybody()))
    }
}

impl IntoResponses for ReadyAnswers {
    fn responses() -> Answers {
        let unavailable = ApiError::Unavailable(String::new());
        probed("The store answers, and the service is not stopping", "ready", errors(anybody().chain([unavailable])))
    }
}

impl IntoResponses for OpenapiAnswers {
    fn responses() -> Answers {
        let schema = ObjectBuilder::new().schema_type(Type::Object);
        let document = ResponseBuilder::new()
            .description("This document")
            .content(JSON, ContentBuilder::new().schema(Some(schema)).build());
        let unchanged = ResponseBuilder::new().description("What `If-None-Match` names is still true");
        let mut answers = errors(anybody());
        let sent = VALIDATORS.into_iter().chain(["Content-Encoding"]);
        answers.insert(code(StatusCode::OK), headers::with(document, sent).into());
        answers.insert(code(StatusCode::NOT_MODIFIED), headers::with(unchanged, VALIDATORS).into());
        answers
    }
}

/// What is answered where there is no operation.
pub(super) fn outside_of_operations() -> Answers {
    let preflight = ResponseBuilder::new().description("What pages of another origin may do");
    let allowed = ["Access-Control-Allow-Methods", "Access-Control-Allow-Headers", "Access-Control-Max-Age"];
    let not_allowed = ApiError::MethodNotAllowed("GET,HEAD,POST".to_owned());
    let refused = [("NoSuchAddress", answer(&[ApiError::NoRoute])), ("MethodNotAllowed", answer(&[not_allowed]))];
    let mut answers = told_of_quota(refused.map(|(name, answer)| (name.to_owned(), answer.into())).into());
    answers.insert("Preflight".to_owned(), headers::with(preflight, allowed).into());
    answers
}

fn probed(description: &str, status: &str, mut answers: Answers) -> Answers {
    let known = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([status]));
    let schema = ObjectBuilder::new().property("status", known).required("status");
    let content = ContentBuilder::new().schema(Some(schema)).example(Some(json!({"status": status})));
    let probed = ResponseBuilder::new().description(description).content(JSON, content.build());
    answers.insert(code(StatusCode::OK), headers::with(probed, ["Cache-Control"]).into());
    answers
}

/// Marks what may be given again to a request with a key: the success, this refusal, and whatever is wrong with a request
/// itself.
fn mark_replayed(answers: &mut Answers, done: StatusCode, refused: &ApiError) {
    let kept = [&ApiError::BadRequest(""), &ApiError::NotJsonType, refused].map(|error| error.code().1);
    for status in kept.into_iter().chain([done]) {
        if let Some(RefOr::T(answer)) = answers.get_mut(&code(status)) {
            headers::add(answer, "Idempotency-Replayed");
        }
    }
}

/// Whoever is known is told what is left of their quota, also with an error.
fn told_of_quota(mut answers: Answers) -> Answers {
    for answer in answers.values_mut() {
        if let RefOr::T(answer) = answer {
            headers::add(answer, "RateLimit");
        }
    }
    answers
}

/// The schema of a type, by its name among the document's components.
pub(super) fn reference<T: ToSchema>() -> Ref {
    Ref::from_schema_name(T::name())
}

/// A status as the document names it.
pub(super) fn code(status: StatusCode) -> String {
    status.as_str().to_owned()
}
