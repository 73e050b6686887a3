//! The answers of each operation. Errors are samples of what the handlers give: their statuses, numbers, messages and
//! header fields are taken from them.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::{Value, json};
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::link::LinkBuilder;
use utoipa::openapi::{AllOfBuilder, ArrayBuilder, ObjectBuilder, Ref, RefOr, Response, ResponseBuilder, Schema, Type};
use utoipa::{IntoResponses, ToSchema};

use super::headers;
use super::schemas::Error;
use crate::http::error::ApiError;
use crate::plant::{IdFault, NewPlant, Plant, PlantId};
use crate::token::Scope;

type Answers = BTreeMap<String, RefOr<Response>>;

const JSON: &str = "application/json";
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
        let content = ContentBuilder::new().schema(Some(Plant::reference()));
        let content = content.example(Some(json!({"name": "Monstera", "tag": "indoor"})));
        let created = ResponseBuilder::new()
            .description("The plant, as it was created; its id is in `Location`")
            .content(JSON, content.build())
            .link("delete", delete.build());
        let mut answers = errors(writing(Scope::Write).chain(faults_of_bodies()).chain([
            ApiError::Duplicate(PlantId::new(1)),
            ApiError::BodyTooLarge { limit: 16_384, close: true },
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
        let schema = ArrayBuilder::new().items(Plant::reference());
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
        answers.insert(code(StatusCode::OK), headers::with(document, VALIDATORS).into());
        answers.insert(code(StatusCode::NOT_MODIFIED), headers::with(unchanged, VALIDATORS).into());
        answers
    }
}

/// What is answered where there is no operation.
pub(super) fn outside_of_operations() -> Answers {
    let preflight = ResponseBuilder::new().description("What pages of another origin may do");
    let allowed = ["Access-Control-Allow-Methods", "Access-Control-Allow-Headers", "Access-Control-Max-Age"];
    let mut not_allowed = answer(&[ApiError::MethodNotAllowed]);
    // By the router, which knows them.
    headers::add(&mut not_allowed, "Allow");
    let refused = [("NoSuchAddress", answer(&[ApiError::NoRoute])), ("MethodNotAllowed", not_allowed)];
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

/// What can go wrong for anybody who connects.
fn anybody() -> impl Iterator<Item = ApiError> {
    [
        ApiError::BadRequest("send exactly one `Host` header"),
        ApiError::RequestTimeout,
        ApiError::HeadersTooLarge,
        ApiError::Internal(String::new()),
        ApiError::Draining,
        ApiError::Overloaded,
    ]
    .into_iter()
}

/// What can go wrong for somebody who needs this scope.
fn calling(scope: Scope) -> impl Iterator<Item = ApiError> {
    // The last two: users of an issuer are made at their first request.
    anybody().chain([
        ApiError::NoToken,
        ApiError::InvalidToken,
        ApiError::ScopeMissing(scope),
        ApiError::TooManyFailures(1),
        ApiError::TooManyRequests(1),
        ApiError::NoIssuerKeys,
        ApiError::Unavailable(String::new()),
        ApiError::OutcomeUnknown(String::new()),
        ApiError::StorageFull(String::new()),
    ])
}

/// What can go wrong for somebody who changes something.
fn writing(scope: Scope) -> impl Iterator<Item = ApiError> {
    calling(scope).chain([ApiError::ReaderOnly, ApiError::NoCollection, ApiError::KeyInFlight, ApiError::KeyReused])
}

/// One fault of each kind.
fn faults_of_bodies() -> impl Iterator<Item = ApiError> {
    let bodies = [r"{", r#"{"id": 1}"#, r#"{"id": "1", "name": "Rose"}"#, r#"{"id": 1, "name": ""}"#];
    bodies.into_iter().filter_map(|body| NewPlant::from_json(body.as_bytes()).err().map(ApiError::BadBody))
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

/// One answer for each status of these errors.
fn errors(errors: impl IntoIterator<Item = ApiError>) -> Answers {
    let mut by_status: BTreeMap<String, Vec<ApiError>> = BTreeMap::new();
    for error in errors {
        by_status.entry(code(error.code().1)).or_default().push(error);
    }
    by_status.into_iter().map(|(status, errors)| (status, answer(&errors).into())).collect()
}

/// The answer to requests that meet one of these errors, which have the same status.
fn answer(errors: &[ApiError]) -> Response {
    let mut numbers: Vec<i32> = errors.iter().map(|error| error.code().0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let reason = errors.first().and_then(|error| error.code().1.canonical_reason()).unwrap_or_default();
    let listed = numbers.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
    let examples = errors.iter().map(|error| {
        let (number, _) = error.code();
        let message = error.to_string();
        let value = json!({"error": number, "message": message});
        (example_name(errors, error), ExampleBuilder::new().summary(message).value(Some(value)))
    });
    let content = ContentBuilder::new().schema(Some(error_of(&numbers))).examples_from_iter(examples).build();
    let response = ResponseBuilder::new().description(format!("{reason} ({listed})")).content(JSON, content);
    let rendered: Vec<_> = errors.iter().flat_map(|error| error.render().1).filter_map(|(name, _)| name).collect();
    let names = rendered.iter().filter_map(|name| headers::documented(name.as_str()));
    headers::with(response, names).build()
}

/// The number, and a letter where several errors share it.
fn example_name(errors: &[ApiError], error: &ApiError) -> String {
    let number = error.code().0;
    let same: Vec<_> = errors.iter().filter(|other| other.code().0 == number).collect();
    let place = same.iter().position(|other| std::ptr::eq(*other, error)).unwrap_or_default();
    let letter = u8::try_from(place).ok().and_then(|place| b'a'.checked_add(place)).map_or('z', char::from);
    if same.len() == 1 { number.to_string() } else { format!("{number}{letter}") }
}

/// The shape of an error whose number is one of these.
fn error_of(numbers: &[i32]) -> Schema {
    let numbers: Vec<Value> = numbers.iter().map(|number| json!(number)).collect();
    let known = ObjectBuilder::new().schema_type(Type::Integer).enum_values(Some(numbers));
    let narrowed = ObjectBuilder::new().property("error", known);
    AllOfBuilder::new().item(Error::reference()).item(narrowed).into()
}

/// The schema of a type, by its name among the document's components.
trait Reference: ToSchema {
    fn reference() -> Ref {
        Ref::from_schema_name(Self::name())
    }
}

impl<T: ToSchema> Reference for T {}

fn code(status: StatusCode) -> String {
    status.as_str().to_owned()
}
