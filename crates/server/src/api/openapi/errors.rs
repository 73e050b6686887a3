//! Errors, not described but sampled: their statuses, error codes, messages and header fields are those that the handlers
//! give.
//!
//! Every error response has the one schema [`Error`], whose `error` is an open integer: clients that were generated from an
//! older document can read a new code. The codes of a response are listed in its description and in
//! [`ERROR_CODES_EXTENSION`].

use std::collections::BTreeMap;

use serde_json::json;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::{Response, ResponseBuilder};

use super::headers;
use super::parts::{JSON, Responses, code, reference};
use super::schemas::Error;
use crate::api::error::ApiError;
use crate::api::limits::ApiLimits;
use plantstore_model::plant::NewPlant;
use plantstore_model::token::Scope;

/// The extension of a response that lists its error codes.
const ERROR_CODES_EXTENSION: &str = "x-error-codes";

/// Errors of requests without a token.
pub(super) fn anybody() -> impl Iterator<Item = ApiError> {
    [
        ApiError::BadRequest("send exactly one `Host` header"),
        ApiError::BadTransferEncoding,
        ApiError::RequestTimeout,
        ApiError::BodyTooLarge { limit: ApiLimits::default().max_body_bytes, close: true },
        ApiError::HeadersTooLarge,
        ApiError::Internal(String::new()),
        ApiError::Draining,
        ApiError::Overloaded,
    ]
    .into_iter()
}

/// Errors of requests that need this scope.
pub(super) fn calling(scope: Scope) -> impl Iterator<Item = ApiError> {
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

/// Errors of writes.
pub(super) fn writing(scope: Scope) -> impl Iterator<Item = ApiError> {
    calling(scope).chain([ApiError::ReaderOnly, ApiError::NoCollection, ApiError::KeyInFlight, ApiError::KeyReused])
}

/// One fault of each kind.
pub(super) fn faults_of_bodies() -> impl Iterator<Item = ApiError> {
    let bodies = [r"{", r#"{"id": 1}"#, r#"{"id": "1", "name": "Rose"}"#, r#"{"id": 1, "name": ""}"#];
    bodies.into_iter().filter_map(|body| NewPlant::from_json(body.as_bytes()).err().map(ApiError::BadBody))
}

/// Returns one response for each status of these errors.
pub(super) fn errors(errors: impl IntoIterator<Item = ApiError>) -> Responses {
    let mut by_status: BTreeMap<String, Vec<ApiError>> = BTreeMap::new();
    for error in errors {
        by_status.entry(code(error.code().1)).or_default().push(error);
    }
    by_status.into_iter().map(|(status, errors)| (status, error_response(&errors).into())).collect()
}

/// Returns the response with one of these errors, which have the same status.
pub(super) fn error_response(errors: &[ApiError]) -> Response {
    let mut codes: Vec<i32> = errors.iter().map(|error| error.code().0).collect();
    codes.sort_unstable();
    codes.dedup();
    let reason = errors.first().and_then(|error| error.code().1.canonical_reason()).unwrap_or_default();
    let listed = codes.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
    let examples = errors.iter().enumerate().map(|(place, error)| {
        let (number, _) = error.code();
        let message = error.to_string();
        let value = json!({"error": number, "message": message});
        (example_name(errors, place), ExampleBuilder::new().summary(message).value(Some(value)))
    });
    let content = ContentBuilder::new().schema(Some(reference::<Error>())).examples_from_iter(examples).build();
    let response = ResponseBuilder::new()
        .description(format!("{reason}; `error` is one of: {listed}"))
        .content(JSON, content)
        .extensions(Some(Extensions::from_iter([(ERROR_CODES_EXTENSION, codes)])));
    let rendered: Vec<_> = errors.iter().flat_map(|error| error.render().1).filter_map(|(name, _)| name).collect();
    let names = rendered.iter().filter_map(|name| headers::documented(name.as_str()));
    headers::with(response, names).build()
}

/// Returns the code of the error at this place, with a suffix where several share it.
fn example_name(errors: &[ApiError], place: usize) -> String {
    let number = errors[place].code().0;
    match errors[..place].iter().filter(|before| before.code().0 == number).count() {
        0 => number.to_string(),
        before => format!("{number}-{}", before + 1),
    }
}
