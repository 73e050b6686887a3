//! Header fields of responses. General fields of HTTP (`Date`, `Content-Length`, `Content-Type` …) are not described.

use serde_json::{Value, json};
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::{Header, ObjectBuilder, Ref, RefOr, Response, ResponseBuilder, Type};

/// Name, description and example value.
type HeaderEntry = (&'static str, &'static str, HeaderExample);

enum HeaderExample {
    Text(&'static str),
    Number(u32),
}
use HeaderExample::{Number, Text};

/// Header fields that any response may have.
const COMMON: [&str; 7] = [
    "X-Request-Id",
    "X-Content-Type-Options",
    "Strict-Transport-Security",
    "Access-Control-Allow-Origin",
    "Access-Control-Expose-Headers",
    "RateLimit-Policy",
    "Vary",
];

const ALL: [HeaderEntry; 20] = [
    (
        "X-Request-Id",
        "The id of the request: the one that was sent, if it is valid, or a new one",
        Text("4a1b6bfe6f3d4d0e"),
    ),
    ("X-Content-Type-Options", "Always `nosniff`", Text("nosniff")),
    ("Strict-Transport-Security", "Over TLS: use this host over TLS only", Text("max-age=31536000")),
    (
        "Access-Control-Allow-Origin",
        "The origin whose pages may read the response, if the operator allows it",
        Text("https://app.example"),
    ),
    ("Access-Control-Expose-Headers", "Header fields that those pages may read", Text("ETag, Link, Location")),
    ("Access-Control-Allow-Methods", "Methods that those pages may use", Text("GET, HEAD, POST, PUT, DELETE")),
    ("Access-Control-Allow-Headers", "Header fields that those pages may send", Text("Authorization, Content-Type")),
    ("Access-Control-Max-Age", "Seconds for which a browser may cache this response", Number(7_200)),
    ("RateLimit-Policy", "The quota of a user, if the operator has set one", Text(r#""user";q=100;w=60"#)),
    ("RateLimit", "The remaining quota", Text(r#""user";r=99;t=1"#)),
    ("Vary", "Request header fields that the response depends on", Text("Authorization")),
    ("Content-Encoding", "`gzip` for clients that accept it", Text("gzip")),
    ("Cache-Control", "Directives for caches", Text("private, no-cache")),
    ("ETag", "The version of the list or plant, for `If-None-Match`", Text(r#"W/"0f343b0931126a20f133d67c2b018a3b""#)),
    (
        "Link",
        "The address of the next page, if there is one",
        Text(r#"</plants?limit=20&after=010000000000000014fa679ec8>; rel="next""#),
    ),
    ("Location", "The address of the new plant or token", Text("/plants/1")),
    ("Idempotency-Replayed", "`true` for the stored response to an earlier request with the same key", Text("true")),
    ("WWW-Authenticate", "How to authenticate, and what was wrong with the token", Text(r#"Bearer realm="plants""#)),
    ("Retry-After", "Seconds after which to try again", Number(1)),
    ("Allow", "The methods that this address has", Text("GET,HEAD,POST")),
];

/// Returns all header fields, for the document's components.
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

/// Adds these header fields and the common ones to a response.
pub(super) fn with<'a>(response: ResponseBuilder, names: impl IntoIterator<Item = &'a str>) -> ResponseBuilder {
    COMMON.into_iter().chain(names).fold(response, |response, name| response.header_ref(name, reference(name)))
}

pub(super) fn add(response: &mut Response, name: &str) {
    response.headers.insert(name.to_owned(), RefOr::Ref(reference(name)));
}

fn reference(name: &str) -> Ref {
    Ref::new(format!("#/components/headers/{name}"))
}

/// Returns the name of a header field in the spelling of the document; `None` if it is not described.
pub(super) fn documented(name: &str) -> Option<&'static str> {
    ALL.iter().map(|(known, _, _)| *known).find(|known| known.eq_ignore_ascii_case(name))
}
