//! Spans as OTLP has them, in JSON, under the names of the semantic conventions for HTTP. No path, query or body is among them,
//! no header field but `tracestate` and the request id, and of the user the number alone.

use std::sync::LazyLock;

use hyper::{Method, Version};
use serde_json::{Value, json};

use super::id::{SpanId, TraceId, random};
use super::span::{Child, Interval, Spans};

/// The kinds of spans: the request itself, and what was done for it.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
/// That a span failed.
const ERROR: u8 = 2;
/// The trace is recorded; it is known where the parent was, and it was elsewhere.
const SAMPLED: u32 = 0x001;
const PARENT_KNOWN: u32 = 0x100;
const PARENT_REMOTE: u32 = 0x200;
/// Methods that spans are named after; all others share one name, so that clients cannot choose the names of spans.
const METHODS: [Method; 5] = [Method::GET, Method::HEAD, Method::POST, Method::DELETE, Method::OPTIONS];

/// A whole request to the collector.
pub(super) fn request(spans: &[Spans]) -> Vec<u8> {
    /// Tells this process from others of the service.
    static INSTANCE: LazyLock<String> = LazyLock::new(|| {
        // Without randomness the instances are one.
        format!("{:032x}", u128::from_be_bytes(random().unwrap_or_default()))
    });
    let version = env!("CARGO_PKG_VERSION");
    let resource = [
        text("service.name", "plantstore"),
        text("service.version", version),
        text("service.instance.id", INSTANCE.as_str()),
    ];
    let spans: Vec<Value> = spans.iter().flat_map(all).collect();
    let scope = json!({ "name": "plantstore", "version": version });
    let whole = json!({
        "resourceSpans": [{
            "resource": { "attributes": resource },
            "scopeSpans": [{ "scope": scope, "spans": spans }],
        }],
    });
    whole.to_string().into_bytes()
}

/// The span of a request, and those within it.
fn all(spans: &Spans) -> impl Iterator<Item = Value> {
    let children = spans.children.iter().map(|child| internal(spans, child));
    std::iter::once(server(spans)).chain(children)
}

fn server(spans: &Spans) -> Value {
    let method = spans.method.as_ref().filter(|method| METHODS.contains(method)).map_or("_OTHER", Method::as_str);
    let route = Some(spans.route).filter(|route| *route != "-");
    // What is the client's fault is no failure of ours.
    let failed = spans.status.is_none_or(|status| status.is_server_error()) || !spans.complete;
    let error_type = match spans.error {
        _ if !failed => None,
        Some(number) => Some(number.to_string()),
        None => Some("incomplete".to_owned()),
    };
    let attributes: Vec<Value> = [
        Some(text("http.request.method", method)),
        route.map(|route| text("http.route", route)),
        spans.status.map(|status| number("http.response.status_code", status.as_u16().into())),
        error_type.map(|name| text("error.type", &name)),
        spans.error.map(|error| number("plantstore.error_code", error.into())),
        spans.user.map(|user| text("user.id", &user.get().to_string())),
        Some(text("plantstore.request_id", &spans.request_id)),
        Some(number("http.response.body.size", i64::try_from(spans.bytes).unwrap_or(i64::MAX))),
        protocol(spans.version).map(|version| text("network.protocol.version", version)),
    ]
    .into_iter()
    .flatten()
    .collect();
    let name = route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
    let mut span = span(spans.trace, spans.span, &name, SERVER, spans.time);
    span["attributes"] = attributes.into();
    span["flags"] = (SAMPLED | PARENT_KNOWN).into();
    if let Some(parent) = spans.parent {
        span["parentSpanId"] = parent.to_string().into();
        span["flags"] = (SAMPLED | PARENT_KNOWN | PARENT_REMOTE).into();
    }
    if let Some(state) = &spans.state {
        span["traceState"] = state.as_str().into();
    }
    if failed {
        span["status"] = json!({ "code": ERROR });
    }
    span
}

fn internal(spans: &Spans, child: &Child) -> Value {
    let mut span = span(spans.trace, child.span, child.name, INTERNAL, child.time);
    span["parentSpanId"] = spans.span.to_string().into();
    span["flags"] = (SAMPLED | PARENT_KNOWN).into();
    if let Some(state) = &spans.state {
        span["traceState"] = state.as_str().into();
    }
    span
}

fn span(trace: TraceId, span: SpanId, name: &str, kind: u8, time: Interval) -> Value {
    json!({
        "traceId": trace.to_string(),
        "spanId": span.to_string(),
        "name": name,
        "kind": kind,
        "startTimeUnixNano": time.start.to_string(),
        "endTimeUnixNano": time.end.to_string(),
    })
}

fn protocol(version: Version) -> Option<&'static str> {
    match version {
        Version::HTTP_10 => Some("1.0"),
        Version::HTTP_11 => Some("1.1"),
        Version::HTTP_2 => Some("2"),
        _ => None,
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Whole numbers of 64 bits are strings in this JSON.
fn number(key: &str, value: i64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}
