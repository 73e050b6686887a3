//! Contract test: every response that any test gets must be listed in the OpenAPI document.

use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

use super::response::Response;

/// HTML pages and their files, and the page of the metrics listener. The document does not describe them.
const PAGES: [&str; 5] = ["/docs", "/", "/console", "/favicon.ico", "/metrics"];

/// Header fields that every HTTP/1.1 message may have, or that the document describes elsewhere (`content`).
const OF_HTTP: [&str; 5] = ["connection", "content-length", "content-type", "date", "transfer-encoding"];

/// Returns the OpenAPI document of the tested binary.
pub(crate) fn document() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
        let output = Command::new(env!("CARGO_BIN_EXE_plantstore")).arg("openapi").output().expect("the command runs");
        serde_json::from_slice(&output.stdout).expect("a JSON document")
    });
    &DOCUMENT
}

/// Parts of a request that select an operation of the document.
#[derive(Debug)]
pub(crate) struct RequestLine {
    method: String,
    path: String,
}

impl RequestLine {
    pub(crate) fn new(method: &str, target: &str) -> Self {
        // A target in absolute form contains the host.
        let target = target.split_once("://").map_or(target, |(_, rest)| &rest[rest.find('/').unwrap_or(rest.len())..]);
        let path = target.split('?').next().unwrap_or_default().to_owned();
        Self { method: method.to_lowercase(), path }
    }
}

/// Requests on a connection that have no response yet.
#[derive(Default)]
pub(crate) struct PendingRequests {
    bytes: Vec<u8>,
    /// Bytes of a body that are still to come.
    missing_body: usize,
}

impl PendingRequests {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let of_body = self.missing_body.min(bytes.len());
        self.missing_body -= of_body;
        self.bytes.extend_from_slice(&bytes[of_body..]);
    }

    /// Takes the next request. Returns `None` if it is incomplete or malformed.
    pub(crate) fn next(&mut self) -> Option<RequestLine> {
        let end = find(&self.bytes, b"\r\n\r\n")?;
        let head: Vec<u8> = self.bytes.drain(..end).collect();
        let head = String::from_utf8_lossy(&head);
        let mut lines = head.lines();
        let words: Vec<&str> = lines.next()?.split(' ').collect();
        let [method, target, "HTTP/1.1" | "HTTP/1.0"] = words[..] else { return None };
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("content-length") {
                self.drop_body(value.trim().parse().unwrap_or_default());
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                let end = find(&self.bytes, b"0\r\n\r\n").unwrap_or(self.bytes.len());
                self.bytes.drain(..end);
            }
        }
        Some(RequestLine::new(method, target))
    }

    fn drop_body(&mut self, length: usize) {
        let there = length.min(self.bytes.len());
        self.bytes.drain(..there);
        self.missing_body = length - there;
    }
}

/// Returns the position after the first occurrence of `end`.
fn find(bytes: &[u8], end: &[u8]) -> Option<usize> {
    bytes.windows(end.len()).position(|window| window == end).map(|at| at + end.len())
}

/// Fails unless the document lists the response's status, its header fields, its media type and its error code.
#[track_caller]
pub(crate) fn check(request: Option<&RequestLine>, response: &Response) {
    let path = request.map_or("", |request| &request.path);
    if PAGES.iter().any(|page| path.strip_prefix(page).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))) {
        return;
    }
    // Bodies of lists are not searched: without optimization, that takes most of the time of some tests.
    if response.status == 404 && find(&response.body, b"the metrics are at /metrics").is_some() {
        // A response of the metrics listener.
        return;
    }
    if response.status == 404 && response.header("content-type") == Some("text/html; charset=utf-8") {
        // The page for browsers, which `info.description` mentions.
        return;
    }
    let listed = listed(request, response.status);
    let exchange = || format!("the response to {request:?} is {}", response.wire());
    let listed = listed.unwrap_or_else(|| panic!("the document does not list the status: {}", exchange()));
    let common = &document()["x-common-headers"];
    let headers = [
        Some(&listed.response["headers"]),
        Some(&common["all"]),
        Some(&common["authenticated"]).filter(|_| !listed.is_public),
        Some(&common["errors"]).filter(|_| response.status >= 400),
    ];
    let headers: Vec<_> = headers.into_iter().flatten().filter_map(Value::as_object).flatten().collect();
    let is_of_proxy =
        |name: &str, value: &str| name == "server" && ["nginx", "Caddy"].iter().any(|proxy| value.starts_with(proxy));
    let of_service = response.headers.iter().filter(|(name, value)| !is_of_proxy(name, value));
    for (name, _) in of_service.filter(|(name, _)| !OF_HTTP.contains(&name.as_str())) {
        let known = headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
        assert!(known, "the document does not list `{name}`: {}", exchange());
    }
    let listed = listed.response;
    let is_head = request.is_some_and(|request| request.method == "head");
    assert!(!is_head || response.body.is_empty(), "a response to HEAD has a body: {}", exchange());
    // A response to HEAD has a content type but no body.
    if let Some(media_type) = response.header("content-type").filter(|_| !response.body.is_empty()) {
        let content = &listed["content"][media_type];
        assert!(content.is_object(), "the document does not list the media type: {}", exchange());
        if response.status >= 400 {
            let codes = listed["x-error-codes"].as_array().expect("error codes");
            assert!(
                codes.contains(&response.json()["error"]),
                "the document does not list the error code: {}",
                exchange()
            );
        }
    }
}

/// The document's description of a response.
struct Listed {
    response: &'static Value,
    /// The operation requires no token.
    is_public: bool,
}

/// Follows a reference within the document.
pub(crate) fn resolved(value: &'static Value) -> &'static Value {
    let Some(reference) = value["$ref"].as_str() else { return value };
    reference.strip_prefix('#').and_then(|pointer| document().pointer(pointer)).expect("a valid reference")
}

/// Returns the document's description of a response with this status to this request.
fn listed(request: Option<&RequestLine>, status: u16) -> Option<Listed> {
    let responses = |path: &str, method: &str| {
        let operation = &document()["paths"][path][method];
        let response = resolved(operation["responses"].get(status.to_string())?);
        Some(Listed { response, is_public: operation["security"] == Value::Array(Vec::new()) })
    };
    let outside = |name: &str| {
        Some(Listed { response: document()["components"]["responses"].get(name)?, is_public: name == "Preflight" })
    };
    let Some(RequestLine { method, path }) = request else {
        // Malformed requests get the responses that every operation lists.
        return responses("/livez", "get");
    };
    // HEAD is described as GET without a body.
    let method = if method == "head" { "get" } else { method.as_str() };
    let operation = template(path).filter(|template| document()["paths"][*template].get(method).is_some());
    match (operation, status) {
        (Some(template), _) => responses(template, method),
        (None, 204) if method == "options" => outside("Preflight"),
        (None, 405) if template(path).is_some() => outside("MethodNotAllowed"),
        (None, 404) => outside("NoSuchAddress"),
        // Other errors are those that every authenticated operation lists.
        (None, 400..) => responses("/plants", "get"),
        (None, _) => None,
    }
}

/// Returns the path template of the document that matches a path.
fn template(path: &str) -> Option<&'static str> {
    let matches = |known: &str| {
        let of_one = |(prefix, _): (&str, &str)| {
            path.strip_prefix(prefix).is_some_and(|one| !one.is_empty() && !one.contains('/'))
        };
        known == path || known.split_once('{').is_some_and(of_one)
    };
    let paths = document()["paths"].as_object().expect("paths");
    paths.keys().map(String::as_str).find(|known| matches(known))
}
