//! Error responses. Their statuses, error codes, messages and header fields are taken from sample values of [`ApiError`].
//!
//! Every error response has the same schema [`ErrorSchema`], whose `error` is any integer and not an enumeration, so that clients
//! generated from an older document can read a new code. The codes of a response are listed in its description and in
//! [`ERROR_CODES_EXTENSION`].

use std::collections::BTreeMap;

use serde_json::json;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::{Response, ResponseBuilder};

use super::headers;
use super::parts::{JSON, Responses, code, reference};
use super::schemas::ErrorSchema;
use crate::api::error::ApiError;
use crate::api::limits::ApiLimits;
use plantstore_model::plant::NewPlant;
use plantstore_model::token::Scope;

/// The extension of a response that lists its error codes.
const ERROR_CODES_EXTENSION: &str = "x-error-codes";

/// Errors of all requests, also without a token.
pub(super) fn common_errors() -> impl Iterator<Item = ApiError> {
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

/// Errors of requests that require this scope.
pub(super) fn caller_errors(scope: Scope) -> impl Iterator<Item = ApiError> {
    any_caller_errors().chain([ApiError::ScopeMissing(scope)])
}

/// Errors of requests that require a token with any scope.
pub(super) fn any_caller_errors() -> impl Iterator<Item = ApiError> {
    // The last two, because a user of an issuer is created at the first request.
    common_errors().chain([
        ApiError::NoToken,
        ApiError::InvalidToken,
        ApiError::TooManyFailures(1),
        ApiError::TooManyRequests(1),
        ApiError::NoIssuerKeys,
        ApiError::Unavailable(String::new()),
        ApiError::OutcomeUnknown(String::new()),
        ApiError::StorageFull(String::new()),
    ])
}

/// Errors of writes.
pub(super) fn write_errors(scope: Scope) -> impl Iterator<Item = ApiError> {
    caller_errors(scope).chain([
        ApiError::ReaderOnly,
        ApiError::NoCollection,
        ApiError::KeyInFlight,
        ApiError::KeyReused,
    ])
}

/// One error of each kind that a body can have.
pub(super) fn body_errors() -> impl Iterator<Item = ApiError> {
    let bodies = [r"{", r#"{"id": 1}"#, r#"{"id": "1", "name": "Rose"}"#, r#"{"id": 1, "name": ""}"#];
    bodies.into_iter().filter_map(|body| NewPlant::from_json(body.as_bytes()).err().map(ApiError::BadBody))
}

/// Returns one response for each status of these errors.
pub(super) fn error_responses(errors: impl IntoIterator<Item = ApiError>) -> Responses {
    let mut by_status: BTreeMap<String, Vec<ApiError>> = BTreeMap::new();
    for error in errors {
        by_status.entry(code(error.code().1)).or_default().push(error);
    }
    by_status.into_iter().map(|(status, errors)| (status, error_response(&errors).into())).collect()
}

/// Returns the response for these errors, which have the same status.
pub(super) fn error_response(errors: &[ApiError]) -> Response {
    let mut codes: Vec<i32> = errors.iter().map(|error| error.code().0).collect();
    codes.sort_unstable();
    codes.dedup();
    let reason = errors.first().and_then(|error| error.code().1.canonical_reason()).unwrap_or_default();
    let listed = codes.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
    let examples = errors.iter().enumerate().map(|(index, error)| {
        let (code, _) = error.code();
        let message = error.to_string();
        let value = json!({"error": code, "message": message});
        (example_name(errors, index), ExampleBuilder::new().summary(message).value(Some(value)))
    });
    let content = ContentBuilder::new().schema(Some(reference::<ErrorSchema>())).examples_from_iter(examples).build();
    let response = ResponseBuilder::new()
        .description(format!("{reason}; `error` is one of: {listed}"))
        .content(JSON, content)
        .extensions(Some(Extensions::from_iter([(ERROR_CODES_EXTENSION, codes)])));
    let rendered: Vec<_> = errors.iter().flat_map(|error| error.render().1).filter_map(|(name, _)| name).collect();
    let names = rendered.iter().filter_map(|name| headers::documented(name.as_str()));
    headers::with(response, names).build()
}

/// Returns the code of the error at this index, with a suffix if an earlier one has the same code.
fn example_name(errors: &[ApiError], index: usize) -> String {
    let code = errors[index].code().0;
    match errors[..index].iter().filter(|before| before.code().0 == code).count() {
        0 => code.to_string(),
        before => format!("{code}-{}", before + 1),
    }
}
