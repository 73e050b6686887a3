//! Test collector of traces: accepts OTLP over HTTP, in JSON, and can be silent, down or reject exports.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read as _};
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use serde_json::Value;

use super::issuer::Authority;
use super::stub_server::{Duplex, StubServer};
use super::wait_for;

/// A span as it was exported.
#[derive(Clone, Debug)]
pub(crate) struct Span(pub(crate) Value);

impl Span {
    pub(crate) fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    /// Its attributes, all as text.
    pub(crate) fn attributes(&self) -> BTreeMap<String, String> {
        let attributes = self.0["attributes"].as_array().into_iter().flatten();
        let text =
            |value: &Value| value.as_object().and_then(|value| value.values().next()?.as_str().map(str::to_owned));
        attributes
            .map(|attribute| {
                (attribute["key"].as_str().expect("a key").to_owned(), text(&attribute["value"]).expect("text"))
            })
            .collect()
    }
}

pub(crate) struct Collector {
    shared: Arc<CollectorState>,
    url: String,
    pub(crate) server: StubServer,
}

#[derive(Default)]
struct CollectorState {
    bodies: Mutex<Vec<Value>>,
    /// Status line and header fields to send instead of success.
    override_head: Mutex<Option<String>>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    pub(crate) fn start_with_tls(authority: &Authority) -> Self {
        Self::start_with(Some(authority.server()))
    }

    fn start_with(tls: Option<Arc<ServerConfig>>) -> Self {
        let (shared, mut url) = (Arc::<CollectorState>::default(), String::new());
        let server = StubServer::start(tls, |own| {
            url.push_str(own);
            let shared = Arc::clone(&shared);
            move |stream: &mut dyn Duplex| shared.serve(stream)
        });
        Self { shared, url, server }
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Sends this status line and these header fields; success for `None`.
    pub(crate) fn respond_with(&self, head: Option<&str>) {
        *self.shared.override_head.lock().expect("the response") = head.map(str::to_owned);
    }

    /// All that was taken, as text.
    pub(crate) fn text(&self) -> String {
        self.shared.bodies.lock().expect("the bodies").iter().map(Value::to_string).collect()
    }

    /// All spans that were taken.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let bodies = self.shared.bodies.lock().expect("the bodies");
        let of = |value: &Value, field: &str| value[field].as_array().cloned().unwrap_or_default();
        let resources = bodies.iter().flat_map(|body| of(body, "resourceSpans"));
        let scopes = resources.flat_map(|resource| of(&resource, "scopeSpans"));
        scopes.flat_map(|scope| of(&scope, "spans")).map(Span).collect()
    }

    /// Waits for the span of the request with this id, and those within it.
    #[track_caller]
    pub(crate) fn wait_for_request(&self, id: &str) -> (Span, Vec<Span>) {
        wait_for(&format!("the span of {id}"), || self.request(id))
    }

    /// The span of the request with this id, and those within it, if they were taken.
    pub(crate) fn request(&self, id: &str) -> Option<(Span, Vec<Span>)> {
        let spans = self.spans();
        let is_it = |span: &&Span| span.attributes().get("plantstore.request_id").is_some_and(|found| found == id);
        let request = spans.iter().find(is_it)?.clone();
        let within = |span: &&Span| span.text("parentSpanId") == request.text("spanId");
        let children = spans.iter().filter(within).cloned().collect();
        Some((request, children))
    }
}

impl CollectorState {
    fn serve(&self, mut stream: &mut dyn Duplex) -> std::io::Result<()> {
        let mut reader = BufReader::new(&mut stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let head = head.to_lowercase();
        assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
        assert!(head.contains("\r\ncontent-type: application/json\r\n"), "{head}");
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        let mut body = vec![0; length.expect("a length")];
        reader.read_exact(&mut body)?;
        let override_head = self.override_head.lock().expect("the response").clone();
        if override_head.is_none() {
            self.bodies.lock().expect("the bodies").push(serde_json::from_slice(&body).expect("JSON"));
        }
        let head = override_head.unwrap_or_else(|| "200 OK\r\nContent-Type: application/json".to_owned());
        write!(stream, "HTTP/1.1 {head}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}")?;
        stream.flush()
    }
}
