//! The OpenAPI document, from the table of operations. Facts are derived, not repeated: schemas come from the types that are sent
//! and received; statuses, messages and header fields of errors from [`ApiError`].

use std::collections::{BTreeMap, BTreeSet};

use hyper::StatusCode;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::error::{ApiError, ErrorBody};
use super::operation::{Access, Operation, one, reference};
use crate::options::{ApiLimits, defaults};
use plantstore_model::plant::{NewPlant, PlantId, PlantIdError, TAG_MAX_CHARS};
use plantstore_model::self_service::TokenRequestError;
use plantstore_model::token::{Scope, TokenId};
use plantstore_model::user::UserName;

/// The parts of the document that do not follow from code: general information, parameters, header fields, and the texts of each
/// operation with the status of its success. Header fields that any response may have are in it once, not with every response.
/// The version is that of the API, not of the program: it changes when clients have to change. General fields of HTTP (`Date`,
/// `Content-Type` …) are not described.
const FIXED: &str = include_str!("openapi.json");
const DESCRIPTION: &str = include_str!("openapi.md");

fn references(kind: &str, names: &[&str]) -> Map<String, Value> {
    names.iter().map(|name| ((*name).to_owned(), reference(kind, name))).collect()
}

const VALIDATORS: [&str; 2] = ["ETag", "Cache-Control"];

/// Error codes of all requests, also without a token.
const COMMON_ERRORS: [i32; 6] = [40007, 40800, 41300, 43100, 50000, 50300];
/// Error codes of requests with a token. The last two, because a user of an issuer is created at the first request.
const CALLER_ERRORS: [i32; 5] = [40100, 40101, 42900, 50301, 50700];
const SCOPE_MISSING: i32 = 40300;

fn samples() -> impl Iterator<Item = ApiError> {
    let bodies = [r"{", r#"{"id": 1}"#, r#"{"id": "1", "name": "Rose"}"#, r#"{"id": 1, "name": ""}"#];
    let bodies = bodies.into_iter().filter_map(|body| NewPlant::from_json(body.as_bytes()).err());
    let others = [
        ApiError::BadLimit("must be an integer from 0 to 2147483647, without leading zeros"),
        ApiError::BadPathId(PlantIdError::NotAnInteger),
        ApiError::BadCursor,
        ApiError::BadRequest("send exactly one `Host` header"),
        ApiError::ExceedsToken(TokenRequestError::NoDefaultScopes),
        ApiError::NoToken,
        ApiError::InvalidToken,
        ApiError::ScopeMissing(Scope::Read),
        ApiError::NoPlant,
        ApiError::NoRoute,
        ApiError::UnknownToken,
        ApiError::UnknownShare,
        ApiError::MethodNotAllowed("GET,HEAD,POST".to_owned()),
        ApiError::RequestTimeout,
        ApiError::Duplicate(PlantId::new(1)),
        ApiError::KeyInFlight,
        ApiError::TooManyTokens,
        ApiError::TooManyGranted,
        ApiError::BodyTooLarge { limit: defaults::<ApiLimits>().max_body_bytes, close: true },
        ApiError::NotJsonType,
        ApiError::KeyReused,
        ApiError::TooManyRequests(1),
        ApiError::HeadersTooLarge,
        ApiError::Internal(String::new()),
        ApiError::Overloaded,
        ApiError::OutcomeUnknown(String::new()),
        ApiError::StorageFull(String::new()),
    ];
    bodies.map(ApiError::BadBody).chain(others)
}

pub(crate) fn document(operations: &[Operation]) -> Value {
    let mut document: Value = serde_json::from_str(FIXED).expect("the file is JSON");
    let mut texts = document["paths"].take();
    let components = &mut document["components"];
    let mut bodies = vec![one::<ErrorBody>(), one::<PlantId>(), one::<TokenId>(), one::<UserName>()];
    let mut responses = ErrorResponses::new(&components["headers"]);
    let mut paths = Map::new();
    for operation in operations {
        let method = operation.method().to_lowercase();
        let text = texts[operation.path()][&method].take();
        let path = paths.entry(operation.path()).or_insert_with(|| json!({}));
        path[method] = describe(operation, text, &mut responses);
        bodies.extend(operation.takes.into_iter().chain(operation.returns));
    }
    let mut schemas = Vec::new();
    for body in bodies {
        (body.components)(&mut schemas);
    }
    for (name, schema) in schemas {
        components["schemas"][name] = json!(schema);
    }
    for (name, response) in responses.finish() {
        components["responses"][name] = response;
    }
    components["parameters"]["tag"]["schema"]["maxLength"] = TAG_MAX_CHARS.into();
    components["examples"] = examples().into();
    document["info"]["description"] = DESCRIPTION.trim_end().into();
    document["paths"] = paths.into();
    document
}

/// Adds to the texts of an operation what the table of operations says about it.
fn describe(operation: &Operation, mut described: Value, errors: &mut ErrorResponses) -> Value {
    let has = |parameter| operation.parameters.contains(&parameter);
    let parameters = operation.parameters.iter().chain([&"X-Request-Id"]);
    let mut names = operation.headers.to_vec();
    let responses = described["responses"].as_object_mut().expect("the texts have the response of a success");
    if has("Idempotency-Key") {
        names.push("Idempotency-Replayed");
    }
    if has("If-None-Match") {
        names.extend(VALIDATORS);
    }
    for success in responses.values_mut() {
        if !names.is_empty() {
            success["headers"] = references("headers", &names).into();
        }
        if let Some(body) = operation.returns {
            success["content"] = content(&(body.schema)());
        }
    }
    if has("If-None-Match") {
        let unchanged = "Not modified: the entity tag in `If-None-Match` is current";
        let unchanged = json!({"description": unchanged, "headers": references("headers", &VALIDATORS)});
        responses.insert(StatusCode::NOT_MODIFIED.as_str().to_owned(), unchanged);
    }
    responses.extend(errors.of(operation, has("Idempotency-Key")));
    described["tags"] = json!([operation.tag()]);
    described["parameters"] = parameters.map(|name| reference("parameters", name)).collect();
    // Without it, tools cannot tell "public" from "forgotten".
    described["security"] = match operation.access {
        Access::Public => json!([]),
        Access::AnyToken => json!([{"bearer": []}]),
        Access::Scope(scope) => json!([{"bearer": [scope.name()]}]),
    };
    if let Some(body) = operation.takes {
        described["requestBody"] = json!({"required": true, "content": content(&(body.schema)())});
    }
    described
}

fn content(schema: &Value) -> Value {
    json!({"application/json": {"schema": schema}})
}

/// The error responses of all operations, by their names. Operations with the same codes share them.
struct ErrorResponses {
    /// The names of all header fields.
    headers: Vec<String>,
    samples: BTreeMap<i32, ApiError>,
    responses: Map<String, Value>,
}

impl ErrorResponses {
    fn new(headers: &Value) -> Self {
        let headers = headers.as_object().into_iter().flat_map(Map::keys).cloned().collect();
        let samples = samples().map(|error| (error.code(), error)).collect();
        Self { headers, samples, responses: Map::new() }
    }

    /// Returns references to the error responses of an operation. With `stored`, some have `Idempotency-Replayed`.
    fn of(&mut self, operation: &Operation, stored: bool) -> Map<String, Value> {
        let caller: &[i32] = if matches!(operation.access, Access::Public) { &[] } else { &CALLER_ERRORS };
        let scope: &[i32] = if matches!(operation.access, Access::Scope(_)) { &[SCOPE_MISSING] } else { &[] };
        let mut by_status: BTreeMap<i32, BTreeSet<i32>> = BTreeMap::new();
        for code in [&COMMON_ERRORS, caller, scope, operation.errors].concat() {
            by_status.entry(code / 100).or_default().insert(code);
        }
        // Other errors are not stored, nor is 40400 about an owner.
        let is_stored = |code: &i32| match code {
            40000..=40007 | 40900 | 41500 => stored,
            40400 => stored && operation.path().contains("{id}"),
            _ => false,
        };
        let mut responses = Map::new();
        for (status, codes) in by_status {
            let codes: Vec<_> = codes.into_iter().collect();
            let name = self.add(None, &codes, codes.iter().any(is_stored));
            responses.insert(status.to_string(), reference("responses", &name));
        }
        responses
    }

    /// Adds the response with these codes, which have the same status, and returns its name.
    fn add(&mut self, name: Option<&str>, codes: &[i32], stored: bool) -> String {
        let errors: Vec<&ApiError> = codes.iter().map(|code| &self.samples[code]).collect();
        let reason = errors.first().and_then(|error| error.status().canonical_reason()).unwrap_or_default();
        let listed: Vec<String> = codes.iter().map(i32::to_string).collect();
        let default =
            format!("{}-{}{}", reason.replace(' ', ""), listed.join("-"), if stored { "-replayed" } else { "" });
        let name = name.map_or(default, str::to_owned);
        let sent: Vec<_> = errors.iter().flat_map(|error| error.render().1).filter_map(|(name, _)| name).collect();
        let is_sent = |name: &str| sent.iter().any(|sent| sent.as_str().eq_ignore_ascii_case(name));
        // All errors have `Cache-Control`.
        let own = self.headers.iter().map(String::as_str).filter(|name| is_sent(name) && *name != "Cache-Control");
        let headers: Vec<_> = own.chain(stored.then_some("Idempotency-Replayed")).collect();
        let examples: Vec<_> = listed.iter().map(String::as_str).collect();
        let mut content = content(&reference("schemas", &ErrorBody::name()));
        content["application/json"]["examples"] = references("examples", &examples).into();
        let mut response = json!({
            "description": format!("{reason}; `error` is one of: {}", listed.join(", ")),
            "x-error-codes": codes,
            "content": content,
        });
        if !headers.is_empty() {
            response["headers"] = references("headers", &headers).into();
        }
        self.responses.insert(name.clone(), response);
        name
    }

    fn finish(mut self) -> Map<String, Value> {
        self.add(Some("NoSuchAddress"), &[40401], false);
        self.add(Some("MethodNotAllowed"), &[40500], false);
        self.responses
    }
}

fn examples() -> Map<String, Value> {
    let example = |error: ApiError| {
        let code = error.code();
        let message = error.to_string();
        (code.to_string(), json!({"value": {"error": code, "message": message}}))
    };
    samples().map(example).collect()
}
