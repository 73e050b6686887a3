//! Encodes spans as an OTLP request (`ExportTraceServiceRequest`), with the attribute names of the semantic conventions
//! for HTTP, and decodes the response. No path, query or body is exported, no header field but `tracestate` and the request
//! id, and of the user only the numeric id.

use hyper::{Method, Version};

use super::config::Resource;
use super::id::{SpanId, TraceId};
use super::protobuf::{Message, Value, field};
use super::span::{Child, Interval, RequestSpans};

/// Kinds of spans.
const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
/// Status code of a span that failed.
const ERROR: u64 = 2;
/// Flags of a span: the trace is sampled; it is known where the parent was; the parent was another process.
const SAMPLED: u32 = 0x001;
const PARENT_KNOWN: u32 = 0x100;
const PARENT_REMOTE: u32 = 0x200;
/// Methods that appear in names of spans. All others share one name, so that clients cannot choose the names.
const METHODS: [Method; 6] = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS];
/// Characters of a collector's message at most.
const MESSAGE_MAX: usize = 200;

/// Encodes a request to the collector.
pub(super) fn request(resource: &Resource, batch: &[RequestSpans]) -> Vec<u8> {
    let mut attributes = Message::default();
    for (key, value) in resource.attributes() {
        attributes.message(1, &text(key, value));
    }
    let mut scope = Message::default();
    scope.bytes(1, "plantstore").bytes(2, env!("CARGO_PKG_VERSION"));
    let mut scope_spans = Message::default();
    scope_spans.message(1, &scope);
    for spans in batch {
        scope_spans.message(2, &server_span(spans));
        for child in &spans.children {
            scope_spans.message(2, &internal_span(spans, child));
        }
    }
    let mut resource_spans = Message::default();
    resource_spans.message(1, &attributes).message(2, &scope_spans);
    let mut request = Message::default();
    request.message(1, &resource_spans);
    request.into_bytes()
}

/// A collector's acceptance of a request, which may be partial.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PartialSuccess {
    pub(super) rejected: u64,
    pub(super) message: String,
}

/// Decodes the body of a successful response (`ExportTraceServiceResponse`).
pub(super) fn partial_success(body: &[u8]) -> PartialSuccess {
    let Some(Value::Bytes(partial)) = field(body, 1) else {
        return PartialSuccess::default();
    };
    let rejected = match field(partial, 1) {
        Some(Value::Number(number)) => u64::try_from(number.cast_signed()).unwrap_or(0),
        _ => 0,
    };
    PartialSuccess { rejected, message: message(partial) }
}

/// Decodes the message of an unsuccessful response (`google.rpc.Status`), or of a partial success: both have it in field 2.
pub(super) fn message(body: &[u8]) -> String {
    match field(body, 2) {
        Some(Value::Bytes(message)) => str::from_utf8(message).unwrap_or_default().chars().take(MESSAGE_MAX).collect(),
        _ => String::new(),
    }
}

fn server_span(spans: &RequestSpans) -> Message {
    let method = spans.method.as_ref().filter(|method| METHODS.contains(method)).map_or("_OTHER", Method::as_str);
    let route = Some(spans.route).filter(|route| *route != "-");
    let name = route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
    // A mistake of the client is not a failure of the service.
    let failed = spans.status.is_none_or(|status| status.is_server_error()) || !spans.complete;
    let error_type = match spans.error {
        _ if !failed => None,
        Some(code) => Some(code.to_string()),
        None => Some("incomplete".to_owned()),
    };
    let attributes = [
        Some(text("http.request.method", method)),
        route.map(|route| text("http.route", route)),
        spans.status.map(|status| number("http.response.status_code", status.as_u16().into())),
        error_type.map(|name| text("error.type", &name)),
        spans.error.map(|error| number("plantstore.error_code", error.into())),
        spans.user.map(|user| text("user.id", &user.get().to_string())),
        Some(text("plantstore.request_id", &spans.request_id)),
        Some(number("http.response.body.size", i64::try_from(spans.bytes).unwrap_or(i64::MAX))),
        protocol(spans.version).map(|version| text("network.protocol.version", version)),
    ];
    let mut span = span(spans, spans.span, spans.parent, &name, SERVER, spans.time);
    for attribute in attributes.iter().flatten() {
        span.message(9, attribute);
    }
    if failed {
        let mut status = Message::default();
        status.uint64(3, ERROR);
        span.message(15, &status);
    }
    let remote = if spans.parent.is_some() { PARENT_REMOTE } else { 0 };
    span.fixed32(16, SAMPLED | PARENT_KNOWN | remote);
    span
}

fn internal_span(spans: &RequestSpans, child: &Child) -> Message {
    let mut span = span(spans, child.span, Some(spans.span), child.name, INTERNAL, child.time);
    span.fixed32(16, SAMPLED | PARENT_KNOWN);
    span
}

/// Encodes the fields that all spans have.
fn span(
    RequestSpans { trace: TraceId(trace), state, .. }: &RequestSpans,
    SpanId(id): SpanId,
    parent: Option<SpanId>,
    name: &str,
    kind: u64,
    time: Interval,
) -> Message {
    let mut span = Message::default();
    span.bytes(1, trace).bytes(2, id).bytes(3, state.as_deref().unwrap_or_default());
    if let Some(SpanId(parent)) = parent {
        span.bytes(4, parent);
    }
    span.bytes(5, name).uint64(6, kind).fixed64(7, time.start).fixed64(8, time.end);
    span
}

fn protocol(version: Version) -> Option<&'static str> {
    match version {
        Version::HTTP_10 => Some("1.0"),
        Version::HTTP_11 => Some("1.1"),
        Version::HTTP_2 => Some("2"),
        _ => None,
    }
}

fn text(key: &str, value: &str) -> Message {
    let mut any = Message::default();
    any.present_bytes(1, value);
    attribute(key, &any)
}

fn number(key: &str, value: i64) -> Message {
    let mut any = Message::default();
    any.present_int64(3, value);
    attribute(key, &any)
}

fn attribute(key: &str, value: &Message) -> Message {
    let mut attribute = Message::default();
    attribute.bytes(1, key).message(2, value);
    attribute
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_rejected_by_a_partial_success_are_read() {
        let response = |rejected: i64, text: &str| {
            let mut partial = Message::default();
            partial.present_int64(1, rejected).bytes(2, text);
            let mut response = Message::default();
            response.message(1, &partial);
            partial_success(&response.into_bytes())
        };
        assert_eq!(response(3, "too old"), PartialSuccess { rejected: 3, message: "too old".to_owned() });
        assert_eq!(response(-1, ""), PartialSuccess::default());
        assert_eq!(response(0, &"é".repeat(300)).message.chars().count(), MESSAGE_MAX);
        for body in [&b""[..], b"{}", b"\x08\x01", b"\x0a\x7f"] {
            assert_eq!(partial_success(body), PartialSuccess::default(), "{body:?}");
        }
    }
}
