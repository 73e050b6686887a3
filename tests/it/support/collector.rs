//! An OpenTelemetry collector for the tests: accepts OTLP over HTTP, in protobuf, and can be slow, unreachable or
//! reject exports. It decodes requests with the schema that OpenTelemetry publishes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Mutex};

use flate2::read::GzDecoder;
use rustls::ServerConfig;
use serde_json::Value;

use super::issuer::Authority;
use super::stub_server::{Duplex, StubServer};
use super::tools::{in_tests, python_tool};
use super::wait_for;

/// A span in the JSON form of OTLP.
#[derive(Clone, Debug)]
pub(crate) struct Span(pub(crate) Value);

impl Span {
    pub(crate) fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    /// Returns the attributes, with all values as text.
    pub(crate) fn attributes(&self) -> BTreeMap<String, String> {
        attributes(&self.0)
    }
}

fn attributes(holder: &Value) -> BTreeMap<String, String> {
    let attributes = holder["attributes"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_object().and_then(|value| value.values().next()?.as_str().map(str::to_owned));
    attributes
        .map(|attribute| {
            (attribute["key"].as_str().expect("a key").to_owned(), text(&attribute["value"]).expect("text"))
        })
        .collect()
}

pub(crate) struct Collector {
    shared: Arc<CollectorState>,
    url: String,
    decoded: Mutex<Decoded>,
    pub(crate) server: StubServer,
}

#[derive(Default)]
struct CollectorState {
    requests: Mutex<Vec<Request>>,
    response: Mutex<Response>,
}

/// A request that was accepted.
#[derive(Clone)]
pub(crate) struct Request {
    /// Request line and header fields, as they were sent.
    pub(crate) head: String,
    /// Body, decompressed.
    body: Vec<u8>,
}

impl Request {
    /// The value of a header field, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.into_iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Response to requests.
#[derive(Clone, Default)]
struct Response {
    /// Status line and header fields in place of success.
    override_head: Option<String>,
    body: Vec<u8>,
}

/// The accepted requests that were decoded so far.
#[derive(Default)]
struct Decoded {
    decoder: Option<Decoder>,
    requests: Vec<Value>,
}

/// A process that decodes requests.
struct Decoder {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Decoder {
    fn start() -> Self {
        let mut command = python_tool("python");
        command.arg(in_tests("python/otlp.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("Python runs");
        let input = process.stdin.take().expect("standard input is piped");
        let output = BufReader::new(process.stdout.take().expect("standard output is piped"));
        Self { process, input, output }
    }

    fn decode(&mut self, body: &[u8]) -> Value {
        self.input.write_all(format!("{}\n", body.len()).as_bytes()).expect("a decoder");
        self.input.write_all(body).expect("a decoder");
        self.input.flush().expect("a decoder");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("a valid OTLP request")
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
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
        Self { shared, url, decoded: Mutex::default(), server }
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Responds with this status line and these header fields; with 200 for `None`.
    pub(crate) fn respond_with(&self, head: Option<&str>) {
        self.shared.response.lock().expect("the response").override_head = head.map(str::to_owned);
    }

    /// Responds with this body.
    pub(crate) fn respond_with_body(&self, body: &[u8]) {
        self.shared.response.lock().expect("the response").body = body.to_vec();
    }

    /// Returns all accepted requests.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().expect("the requests").clone()
    }

    /// Returns all accepted requests, decoded.
    fn decoded(&self) -> Vec<Value> {
        let mut decoded = self.decoded.lock().expect("the decoder");
        let Decoded { decoder, requests } = &mut *decoded;
        for request in self.requests().iter().skip(requests.len()) {
            requests.push(decoder.get_or_insert_with(Decoder::start).decode(&request.body));
        }
        requests.clone()
    }

    /// Returns all accepted requests as JSON text.
    pub(crate) fn text(&self) -> String {
        self.decoded().iter().map(Value::to_string).collect()
    }

    /// Returns all accepted spans.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let scopes = self.resources().into_iter().flat_map(|resource| items(&resource, "scopeSpans"));
        scopes.flat_map(|scope| items(&scope, "spans")).map(Span).collect()
    }

    /// Returns the resource attributes of the last request.
    pub(crate) fn resource(&self) -> BTreeMap<String, String> {
        attributes(&self.resources().last().expect("a request")["resource"])
    }

    fn resources(&self) -> Vec<Value> {
        self.decoded().iter().flat_map(|request| items(request, "resourceSpans")).collect()
    }

    /// Waits for the span of the request with this id, and returns it with its child spans.
    #[track_caller]
    pub(crate) fn wait_for_request(&self, id: &str) -> (Span, Vec<Span>) {
        wait_for(&format!("the span of {id}"), || self.request(id))
    }

    /// Returns the span of the request with this id and its child spans, if the collector has accepted it.
    pub(crate) fn request(&self, id: &str) -> Option<(Span, Vec<Span>)> {
        let spans = self.spans();
        let is_it = |span: &&Span| span.attributes().get("plantstore.request_id").is_some_and(|found| found == id);
        let request = spans.iter().find(is_it)?.clone();
        let within = |span: &&Span| span.text("parentSpanId") == request.text("spanId");
        let children = spans.iter().filter(within).cloned().collect();
        Some((request, children))
    }
}

fn items(value: &Value, field: &str) -> Vec<Value> {
    value[field].as_array().cloned().unwrap_or_default()
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
        let mut request = Request { head, body: Vec::new() };
        assert!(request.head.starts_with("POST /"), "{}", request.head);
        assert_eq!(request.header("content-type"), Some("application/x-protobuf"), "{}", request.head);
        let length: usize = request.header("content-length").and_then(|length| length.parse().ok()).expect("a length");
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        match request.header("content-encoding") {
            None => request.body = body,
            Some("gzip") => {
                GzDecoder::new(&*body).read_to_end(&mut request.body).expect("gzip");
            }
            Some(other) => panic!("{other} is not a known encoding"),
        }
        let Response { override_head, body } = self.response.lock().expect("the response").clone();
        if override_head.is_none() {
            self.requests.lock().expect("the requests").push(request);
        }
        let head = override_head.unwrap_or_else(|| "200 OK".to_owned());
        let length = body.len();
        let rest = "Content-Type: application/x-protobuf\r\nConnection: close\r\n\r\n";
        write!(stream, "HTTP/1.1 {head}\r\nContent-Length: {length}\r\n{rest}")?;
        stream.write_all(&body)?;
        stream.flush()
    }
}
