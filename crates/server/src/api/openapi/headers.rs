//! The header fields of answers. Those that every message of HTTP/1.1 has (`Date`, `Content-Length`, `Content-Type` and the
//! like) need no description.

use serde_json::{Value, json};
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::{Header, ObjectBuilder, Ref, RefOr, Response, ResponseBuilder, Type};

/// A name, what it means, and what it may look like.
type Described = (&'static str, &'static str, Example);

enum Example {
    Text(&'static str),
    Number(u32),
}
use Example::{Number, Text};

/// What any answer may carry.
const COMMON: [&str; 6] = [
    "X-Request-Id",
    "X-Content-Type-Options",
    "Access-Control-Allow-Origin",
    "Access-Control-Expose-Headers",
    "RateLimit-Policy",
    "Vary",
];

const ALL: [Described; 19] = [
    (
        "X-Request-Id",
        "The id of the request: the one that was sent, if it is sane, or a new one",
        Text("4a1b6bfe6f3d4d0e"),
    ),
    ("X-Content-Type-Options", "Always `nosniff`", Text("nosniff")),
    (
        "Access-Control-Allow-Origin",
        "Where the operator allows it: the origin whose pages may read this",
        Text("https://app.example"),
    ),
    ("Access-Control-Expose-Headers", "What those pages may read of the header", Text("ETag, Link, Location")),
    ("Access-Control-Allow-Methods", "What those pages may do", Text("GET, HEAD, POST, DELETE")),
    ("Access-Control-Allow-Headers", "What those pages may send", Text("Authorization, Content-Type")),
    ("Access-Control-Max-Age", "Seconds for which a browser need not ask again", Number(7_200)),
    ("RateLimit-Policy", "Where the operator has set one: the quota of a user", Text(r#""user";q=100;w=60"#)),
    ("RateLimit", "What is left of the quota", Text(r#""user";r=99;t=1"#)),
    ("Vary", "What of a request the answer depends on", Text("Authorization")),
    ("Content-Encoding", "`gzip` for clients that accept it", Text("gzip")),
    ("Cache-Control", "How long the answer may be kept", Text("private, no-cache")),
    ("ETag", "What the list was made of, for `If-None-Match`", Text(r#"W/"0f343b0931126a20f133d67c2b018a3b""#)),
    (
        "Link",
        "The address of the next page, as long as there is one",
        Text(r#"</plants?limit=20&after=010000000000000014fa679ec8>; rel="next""#),
    ),
    ("Location", "The address of the new plant", Text("/plants/1")),
    ("Idempotency-Replayed", "`true` when this answer was given before, to a request with the same key", Text("true")),
    ("WWW-Authenticate", "How to authenticate, and what was wrong with the token", Text(r#"Bearer realm="plants""#)),
    ("Retry-After", "Seconds after which to try again", Number(1)),
    ("Allow", "The methods that this address has", Text("GET,HEAD,POST")),
];

/// All of them, for the document's components.
pub(super) fn all() -> impl Iterator<Item = (String, RefOr<Header>)> {
    ALL.iter().map(|(name, description, example)| {
        let (schema_type, example) = match example {
            Text(text) => (Type::String, Value::from(*text)),
            Number(number) => (Type::Integer, json!(number)),
        };
        let schema = ObjectBuilder::new().schema_type(schema_type);
        let header = HeaderBuilder::new().schema(Some(schema)).description(Some(*description)).example(Some(example));
        ((*name).to_owned(), header.build().into())
    })
}

/// The answer with these header fields, and with those that any answer may carry.
pub(super) fn with<'a>(response: ResponseBuilder, names: impl IntoIterator<Item = &'a str>) -> ResponseBuilder {
    COMMON.into_iter().chain(names).fold(response, |response, name| response.header_ref(name, reference(name)))
}

/// Adds this header field to an answer.
pub(super) fn add(response: &mut Response, name: &str) {
    response.headers.insert(name.to_owned(), RefOr::Ref(reference(name)));
}

fn reference(name: &str) -> Ref {
    Ref::new(format!("#/components/headers/{name}"))
}

/// The name of a header field as the document spells it; `None` for those that need no description.
pub(super) fn documented(name: &str) -> Option<&'static str> {
    ALL.iter().map(|(known, _, _)| *known).find(|known| known.eq_ignore_ascii_case(name))
}
