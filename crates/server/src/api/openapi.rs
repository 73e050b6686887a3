//! The OpenAPI document, from the table of operations. Facts are derived, not repeated: schemas come from the types that are sent
//! and received; statuses, messages and header fields of errors from [`ApiError`].

use std::collections::{BTreeMap, BTreeSet};

use hyper::StatusCode;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::error::{ApiError, ErrorBody};
use super::operation::{Access, BodyType, Operation, PLANTS, Returns, SELF_SERVICE, SERVICE, one, reference};
use crate::options::{ApiLimits, defaults};
use plantstore_model::plant::{NewPlant, PlantId, PlantIdError, TAG_MAX_CHARS};
use plantstore_model::self_service::TokenRequestError;
use plantstore_model::token::{Scope, TokenId};
use plantstore_model::user::UserName;

/// Version of the API, not of the program: it changes when clients have to change.
const INTERFACE_VERSION: &str = "1.0.0";

/// Returns references by their names.
fn references(kind: &str, names: &[&str]) -> Map<String, Value> {
    names.iter().map(|name| ((*name).to_owned(), reference(kind, name))).collect()
}

/// Header fields of responses: name, description and example. General fields of HTTP (`Date`, `Content-Type` …) are not described.
const HEADERS: [(&str, &str, &str); 21] = [
    ("X-Request-Id", "The id of the request: the one that was sent, if it is valid, or a new one", "4a1b6bfe6f3d4d0e"),
    ("X-Content-Type-Options", "Always `nosniff`", "nosniff"),
    ("Strict-Transport-Security", "Over TLS: use this host over TLS only", "max-age=31536000"),
    (
        "Access-Control-Allow-Origin",
        "The origin whose pages may read the response, if the operator allows it",
        "https://app.example",
    ),
    ("Access-Control-Expose-Headers", "Header fields that those pages may read", "ETag, Link, Location"),
    ("Access-Control-Allow-Methods", "Methods that those pages may use", "GET, HEAD, POST, PUT, DELETE"),
    ("Access-Control-Allow-Headers", "Header fields that those pages may send", "Authorization, Content-Type"),
    ("Access-Control-Max-Age", "Seconds for which a browser may cache this response", "7200"),
    ("RateLimit-Policy", "The quota of a user, if the operator has set one", r#""user";q=100;w=60"#),
    ("RateLimit", "The remaining quota", r#""user";r=99;t=1"#),
    ("Vary", "Request header fields that the response depends on", "Authorization"),
    ("Content-Encoding", "`gzip` for clients that accept it", "gzip"),
    ("Cache-Control", "Directives for caches", "private, no-cache"),
    ("X-Accel-Buffering", "Asks proxies to pass events on at once", "no"),
    ("ETag", "The version of the list or plant, for `If-None-Match`", r#"W/"0f343b0931126a20f133d67c2b018a3b""#),
    (
        "Link",
        "The address of the next page, if there is one",
        r#"</plants?limit=20&after=010000000000000014fa679ec8>; rel="next""#,
    ),
    ("Location", "The address of the new plant or token", "/plants/1"),
    ("Idempotency-Replayed", "`true` for the stored response to an earlier request with the same key", "true"),
    ("WWW-Authenticate", "How to authenticate, and what was wrong with the token", r#"Bearer realm="plants""#),
    ("Retry-After", "Seconds after which to try again", "1"),
    ("Allow", "The methods that this address has", "GET,HEAD,POST"),
];

/// Header fields that any response may have. They are in the document once, not with every response.
const COMMON_HEADERS: [&str; 7] = [
    "X-Request-Id",
    "X-Content-Type-Options",
    "Strict-Transport-Security",
    "Access-Control-Allow-Origin",
    "Access-Control-Expose-Headers",
    "RateLimit-Policy",
    "Vary",
];
/// Header fields of requests with a token.
const AUTHENTICATED_HEADERS: [&str; 1] = ["RateLimit"];
/// Header fields of all errors.
const ERROR_HEADERS: [&str; 1] = ["Cache-Control"];
/// Header fields for conditional requests.
const VALIDATORS: [&str; 2] = ["ETag", "Cache-Control"];

/// Error codes of all requests, also without a token.
const COMMON_ERRORS: [i32; 6] = [40007, 40800, 41300, 43100, 50000, 50300];
/// Error codes of requests with a token. The last two, because a user of an issuer is created at the first request.
const CALLER_ERRORS: [i32; 5] = [40100, 40101, 42900, 50301, 50700];
const SCOPE_MISSING: i32 = 40300;

/// Returns an error with each code.
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

/// Returns the OpenAPI document of these operations.
pub(crate) fn document(operations: &[Operation]) -> Value {
    let mut paths = Map::new();
    let mut bodies = Vec::new();
    let mut responses = ErrorResponses::new();
    for operation in operations {
        let path = paths.entry(operation.path()).or_insert_with(|| json!({}));
        path[operation.method().to_lowercase()] = describe(operation, &mut responses);
        bodies.extend(operation.takes);
        bodies.extend(operation.returns.body());
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "plantstore",
            "version": INTERFACE_VERSION,
            "description": DESCRIPTION,
            "license": {"name": "MIT or Apache 2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The server of this document"}],
        "tags": [
            {"name": PLANTS, "description": "Create, list, read, edit and delete plants."},
            {"name": SELF_SERVICE, "description": "Your own tokens and shares."},
            {"name": SERVICE, "description": "About the service itself; no token is needed."},
        ],
        "paths": paths,
        "x-common-headers": {
            "all": references("headers", &COMMON_HEADERS),
            "authenticated": references("headers", &AUTHENTICATED_HEADERS),
            "errors": references("headers", &ERROR_HEADERS),
        },
        "components": {
            "schemas": schemas(bodies.into_iter()),
            "parameters": parameters(),
            "headers": headers(),
            "responses": responses.finish(),
            "examples": examples(),
            "securitySchemes": {"bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "An access token of this service, or one of the OpenID Connect issuer that the service trusts.",
            }},
        },
    })
}

const DESCRIPTION: &str = "A small HTTP/JSON service that keeps people's plants: each user sees only what is theirs, and what \
    others share with them.\n\n\
    Every response that is neither a success nor a 304 is `{\"error\": <error code>, \"message\": <what to do>}`. Error codes \
    are stable: match on them, and show the message to people. Each response lists its codes in `x-error-codes`; treat a \
    code that you do not know by its status, because later releases may add some. Beside the errors of each operation, \
    an address that does not exist is answered as `components/responses/NoSuchAddress` says, a method that an address \
    does not have as `MethodNotAllowed`, and, where the operator allows pages of other origins, a preflight request as \
    `Preflight`. A person who opens an address in a browser (`Accept: text/html`, no `Authorization`) gets pages in place of \
    these errors: where there is none, a 404 in HTML that is the same at every address.\n\n\
    `HEAD` is allowed wherever `GET` is, and has the same status and header fields without a body. Header fields that any \
    response may have, or any to a request with a token, or any error, are in `x-common-headers` and not repeated with each \
    response.\n\n\
    **Ids in JavaScript:** an id is any integer of 64 bits. `JSON.parse` and `fetch` read integers beyond ±(2^53 − 1) as \
    the nearest number that they can represent, without an error: choose ids within that range, or parse the body with \
    a library that reads such integers as `BigInt`.";

fn describe(operation: &Operation, errors: &mut ErrorResponses) -> Value {
    let has = |parameter| operation.parameters.contains(&parameter);
    let parameters = operation.parameters.iter().chain([&"X-Request-Id"]);
    let mut responses = errors.of(operation, has("Idempotency-Key"));
    let mut names = operation.headers.to_vec();
    if has("Idempotency-Key") {
        names.push("Idempotency-Replayed");
    }
    if has("If-None-Match") {
        names.extend(VALIDATORS);
        let unchanged = "Not modified: the entity tag in `If-None-Match` is current";
        let unchanged = json!({"description": unchanged, "headers": references("headers", &VALIDATORS)});
        responses.insert(StatusCode::NOT_MODIFIED.as_str().to_owned(), unchanged);
    }
    let mut success = json!({"description": operation.success});
    if !names.is_empty() {
        success["headers"] = references("headers", &names).into();
    }
    if let Returns::Events = operation.returns {
        success["content"] = json!({"text/event-stream": {"schema": {"type": "string"}}});
    }
    if let Some(body) = operation.returns.body() {
        success["content"] = content(&(body.schema)());
    }
    if operation.id == "createPlant" {
        success["links"] = json!({
            "read": {"operationId": "readPlant", "parameters": {"id": "$request.body#/id"}},
            "replace": {"operationId": "replacePlant", "parameters": {"id": "$request.body#/id"}},
            "delete": {"operationId": "deletePlant", "parameters": {"id": "$request.body#/id"}},
        });
    }
    responses.insert(operation.returns.status().as_str().to_owned(), success);
    let mut described = json!({
        "operationId": operation.id,
        "tags": [operation.tag()],
        "summary": operation.summary,
        "description": operation.description,
        "parameters": parameters.map(|name| reference("parameters", name)).collect::<Vec<_>>(),
        "responses": responses,
        // Without it, tools cannot tell "public" from "forgotten".
        "security": match operation.access {
            Access::Public => json!([]),
            Access::AnyToken => json!([{"bearer": []}]),
            Access::Scope(scope) => json!([{"bearer": [scope.name()]}]),
        },
    });
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
    samples: BTreeMap<i32, ApiError>,
    responses: Map<String, Value>,
}

impl ErrorResponses {
    fn new() -> Self {
        let samples = samples().map(|error| (error.code(), error)).collect();
        Self { samples, responses: Map::new() }
    }

    /// Returns references to the error responses of an operation by their statuses. `stored` adds `Idempotency-Replayed` to
    /// those that are stored under an idempotency key.
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
        let own = HEADERS.iter().map(|(name, ..)| *name).filter(|name| is_sent(name) && !ERROR_HEADERS.contains(name));
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

    /// Adds the responses to requests that match no operation.
    fn finish(mut self) -> Map<String, Value> {
        self.add(Some("NoSuchAddress"), &[40401], false);
        self.add(Some("MethodNotAllowed"), &[40500], false);
        let allowed = ["Access-Control-Allow-Methods", "Access-Control-Allow-Headers", "Access-Control-Max-Age"];
        let preflight = json!({
            "description": "Methods and header fields that pages of another origin may use",
            "headers": references("headers", &allowed),
        });
        self.responses.insert("Preflight".to_owned(), preflight);
        self.responses
    }
}

/// Returns an example of each error, by its code.
fn examples() -> Map<String, Value> {
    let example = |error: ApiError| {
        let code = error.code();
        let message = error.to_string();
        (code.to_string(), json!({"value": {"error": code, "message": message}}))
    };
    samples().map(example).collect()
}

fn headers() -> Map<String, Value> {
    let header = |(name, description, example): &(&str, &str, &str)| {
        let number = example.parse::<u32>().ok();
        let schema_type = if number.is_some() { "integer" } else { "string" };
        let example = number.map_or_else(|| json!(example), |number| json!(number));
        ((*name).to_owned(), json!({"description": description, "schema": {"type": schema_type}, "example": example}))
    };
    HEADERS.iter().map(header).collect()
}

/// Returns the parameters and header fields of requests, by the names that [`Operation::parameters`] has.
fn parameters() -> Map<String, Value> {
    let schema = |name: &str| reference("schemas", name);
    let text = |format: &str| json!({"type": "string", "format": format});
    // Bare, or a quoted string of RFC 8941. It cannot start or end with a space, because HTTP strips these.
    let key = r#"^(?:[!#-~](?:[ -~]{0,253}[!-~])?|"(?:[ !#-\[\]-~]|\\["\\]){1,255}")$"#;
    let all = [
        ("PlantId", "path", "id", "The id of the plant", schema("PlantId")),
        ("TokenId", "path", "id", "The id of the token", schema("TokenId")),
        ("User", "path", "user", "The name of the user who gets or loses access", schema("UserName")),
        ("SharingOwner", "path", "owner", "The name of the owner who shares with you", schema("UserName")),
        (
            "limit",
            "query",
            "limit",
            "Maximum number of plants to return, all of them unless given; if there are more, `Link` has the next page",
            json!({"type": "integer", "format": "int32", "minimum": 0, "maximum": i32::MAX}),
        ),
        ("after", "query", "after", "Opaque cursor from the `Link` of the previous page", text("cursor")),
        (
            "tag",
            "query",
            "tag",
            "Lists only plants with exactly this tag; a plant without a tag is not listed",
            json!({"type": "string", "maxLength": TAG_MAX_CHARS}),
        ),
        ("include", "query", "include", "Optional fields to include in each plant", schema("Include")),
        (
            "owner",
            "query",
            "owner",
            "Owner of the plants; you unless given, and for a list all owners whose plants you can read. To change plants of \
             another owner, you need the role `editor`",
            text("user-name"),
        ),
        (
            "Idempotency-Key",
            "header",
            "Idempotency-Key",
            "A new key for every new request. A request that is sent again with the same key is executed once and gets the \
             first response again",
            json!({"type": "string", "pattern": key}),
        ),
        (
            "If-None-Match",
            "header",
            "If-None-Match",
            "The `ETag` of a response that you have; 304 if it is still current",
            json!({"type": "string"}),
        ),
        (
            "Last-Event-ID",
            "header",
            "Last-Event-ID",
            "The `id` of the last event; if it is current, no event is sent at once",
            json!({"type": "string"}),
        ),
        (
            "X-Request-Id",
            "header",
            "X-Request-Id",
            "An id of your own for the log; 1 to 128 letters, digits and `-_.:+/=@`, others are replaced",
            json!({"type": "string"}),
        ),
    ];
    let parameter = |(component, place, name, description, schema): (&str, &str, &str, &str, Value)| {
        let required = place == "path";
        let parameter =
            json!({"in": place, "name": name, "required": required, "description": description, "schema": schema});
        (component.to_owned(), parameter)
    };
    let mut parameters: Map<_, _> = all.into_iter().map(parameter).collect();
    let examples = [
        ("PlantId", json!(1)),
        ("TokenId", json!(1)),
        ("User", json!("bob")),
        ("SharingOwner", json!("eve")),
        ("limit", json!(20)),
        ("include", json!("id")),
        ("tag", json!("indoor")),
    ];
    for (component, example) in examples {
        parameters[component]["example"] = example;
    }
    parameters
}

/// Returns the schemas of these types, and that of the parameter `include`.
fn schemas(types: impl Iterator<Item = BodyType>) -> BTreeMap<String, Value> {
    let mut schemas = Vec::new();
    for body in types.chain([one::<ErrorBody>(), one::<PlantId>(), one::<TokenId>(), one::<UserName>()]) {
        (body.components)(&mut schemas);
    }
    let include = json!({"type": "string", "enum": ["id", "owner", "id,owner", "owner,id"], "description": "Optional fields of a plant"});
    let named = schemas.into_iter().map(|(name, schema)| (name, json!(schema)));
    named.chain([("Include".to_owned(), include)]).collect()
}
