//! A collector of traces of the tests' own: takes OTLP over HTTP, in JSON, and can be slow, unwilling or away.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustls::{ServerConfig, ServerConnection};
use serde_json::Value;

use super::issuer::Authority;
use super::{PATIENCE, wait_for};

/// A span as it was told.
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
    shared: Arc<Shared>,
    address: SocketAddr,
    serving: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    tls: Option<Arc<ServerConfig>>,
    bodies: Mutex<Vec<Value>>,
    /// What it answers in place of success.
    unwilling: Mutex<Option<String>>,
    attempts: AtomicUsize,
    silent: AtomicBool,
    stopping: AtomicBool,
}

impl Collector {
    pub(crate) fn start() -> Self {
        Self::start_with(Shared::default())
    }

    pub(crate) fn start_with_tls(authority: &Authority) -> Self {
        Self::start_with(Shared { tls: Some(authority.server()), ..Shared::default() })
    }

    fn start_with(shared: Shared) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("its address");
        let mut collector = Self { shared: Arc::new(shared), address, serving: None };
        collector.serve(listener);
        collector
    }

    fn serve(&mut self, listener: TcpListener) {
        let shared = Arc::clone(&self.shared);
        shared.stopping.store(false, Ordering::SeqCst);
        self.serving = Some(std::thread::spawn(move || {
            let mut left_alone = Vec::new();
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                if shared.stopping.load(Ordering::SeqCst) {
                    break;
                }
                shared.attempts.fetch_add(1, Ordering::SeqCst);
                if shared.silent.load(Ordering::SeqCst) {
                    left_alone.push(stream);
                } else {
                    // Whoever does not trust it goes away in the middle.
                    let _ = shared.answer(stream);
                }
            }
        }));
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.shared.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Nobody listens on its port any more.
    pub(crate) fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            self.shared.stopping.store(true, Ordering::SeqCst);
            let _ = TcpStream::connect(self.address);
            serving.join().expect("its end");
        }
    }

    pub(crate) fn restart(&mut self) {
        self.stop();
        // Meanwhile a connection of somebody else may have come by the port.
        let listener = wait_for("the collector's port", || TcpListener::bind(self.address).ok());
        self.serve(listener);
    }

    /// Takes connections, and says nothing on them.
    pub(crate) fn be_silent(&self, silent: bool) {
        self.shared.silent.store(silent, Ordering::SeqCst);
    }

    /// Answers with this status line and these header fields; with success for `None`.
    pub(crate) fn be_unwilling(&self, head: Option<&str>) {
        *self.shared.unwilling.lock().expect("the answer") = head.map(str::to_owned);
    }

    /// How often somebody has connected.
    pub(crate) fn attempts(&self) -> usize {
        self.shared.attempts.load(Ordering::SeqCst)
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

impl Drop for Collector {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        match &self.tls {
            None => self.speak(stream),
            Some(config) => {
                let connection = ServerConnection::new(Arc::clone(config)).expect("a connection");
                let mut stream = rustls::StreamOwned::new(connection, stream);
                self.speak(&mut stream)?;
                stream.conn.send_close_notify();
                stream.flush()
            }
        }
    }

    fn speak(&self, mut stream: impl Read + Write) -> std::io::Result<()> {
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
        let unwilling = self.unwilling.lock().expect("the answer").clone();
        if unwilling.is_none() {
            self.bodies.lock().expect("the bodies").push(serde_json::from_slice(&body).expect("JSON"));
        }
        let head = unwilling.unwrap_or_else(|| "200 OK\r\nContent-Type: application/json".to_owned());
        write!(stream, "HTTP/1.1 {head}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}")?;
        stream.flush()
    }
}
