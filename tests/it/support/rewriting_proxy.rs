//! Proxy in front of a real server that rewrites requests or responses, to violate one rule of the interface.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::Value;

use super::{Connection, Response};

/// A request that the proxy has received.
#[derive(Clone, Debug)]
pub(crate) struct ProxiedRequest {
    pub(crate) method: String,
    /// Path with its query.
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl ProxiedRequest {
    pub(crate) fn is(&self, method: &str, path: &str) -> bool {
        self.method == method && self.path.starts_with(path)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn without(&self, name: &str) -> Self {
        let headers = self.headers.iter().filter(|(known, _)| known != name).cloned().collect();
        Self { headers, ..self.clone() }
    }

    pub(crate) fn with(&self, name: &str, value: &str) -> Self {
        let mut request = self.without(name);
        request.headers.push((name.to_owned(), value.to_owned()));
        request
    }

    pub(crate) fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    pub(crate) fn with_json(&self, json: &Value) -> Self {
        Self { body: json.to_string().into_bytes(), ..self.clone() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        for (name, value) in self.headers.iter().filter(|(name, _)| name != "content-length") {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        if ["POST", "PUT"].contains(&self.method.as_str()) {
            let _ = write!(text, "content-length: {}\r\n", self.body.len());
        }
        let mut bytes = (text + "\r\n").into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

impl Response {
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    pub(crate) fn with(self, name: &str, value: &str) -> Self {
        let mut response = self.without(name);
        response.headers.push((name.to_owned(), value.to_owned()));
        response
    }

    pub(crate) fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn with_json(self, json: &Value) -> Self {
        Self { body: json.to_string().into_bytes(), ..self }
    }

    /// Returns the error code of an error response.
    pub(crate) fn error_code(&self) -> Option<i64> {
        serde_json::from_slice::<Value>(&self.body).ok()?["error"].as_i64()
    }
}

/// The server behind the proxy.
#[derive(Clone, Copy)]
pub(crate) struct Upstream(SocketAddr);

impl Upstream {
    /// Another server at this address.
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self(address)
    }

    pub(crate) fn send(self, request: &ProxiedRequest) -> Response {
        let mut connection = Connection::open(self.0);
        connection.send(request.bytes());
        connection.read_response(request.method == "HEAD")
    }
}

/// Action of the proxy on a request.
pub(crate) enum Reply {
    Response(Response),
    /// No response; the connection stays open.
    Silence,
    /// The connection is closed without a response.
    Cut,
    /// The connection is closed after half of the body.
    Half(Response),
    /// A list that does not end.
    Endless,
}

/// The proxy. It runs until the process ends.
pub(crate) struct RewritingProxy {
    address: SocketAddr,
}

impl RewritingProxy {
    pub(crate) fn start(
        server: SocketAddr,
        fault: impl Fn(&ProxiedRequest, Upstream) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port for the proxy");
        let address = listener.local_addr().expect("a local address");
        let fault = Arc::new(fault);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let fault = Arc::clone(&fault);
                std::thread::spawn(move || {
                    // A client may disconnect early.
                    let _ = serve(client, Upstream(server), &*fault);
                });
            }
        });
        Self { address }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn serve(
    mut client: TcpStream,
    server: Upstream,
    fault: &dyn Fn(&ProxiedRequest, Upstream) -> Reply,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut reader = BufReader::new(client.try_clone()?);
    while let Some(request) = read(&mut reader)? {
        match fault(&request, server) {
            Reply::Response(response) => {
                client.write_all(&to_bytes(&request, &response))?;
                if response.header("connection") == Some("close") {
                    return Ok(());
                }
            }
            // Waits until the client disconnects.
            Reply::Silence => return io::copy(&mut reader, &mut io::sink()).map(drop),
            Reply::Cut => return Ok(()),
            Reply::Half(response) => {
                let bytes = to_bytes(&request, &response);
                return client.write_all(&bytes[..bytes.len() - response.body.len().div_ceil(2)]);
            }
            Reply::Endless => {
                client.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[{\"name\":\"x\"}")?;
                let more = br#",{"name":"x"}"#.repeat(1_000);
                loop {
                    client.write_all(&more)?;
                }
            }
        }
    }
    Ok(())
}

fn read(reader: &mut BufReader<TcpStream>) -> io::Result<Option<ProxiedRequest>> {
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).map(|_| line.trim_end().to_owned())
    };
    let first = line()?;
    let mut words = first.split(' ');
    let (Some(method), Some(path)) = (words.next().filter(|word| !word.is_empty()), words.next()) else {
        return Ok(None);
    };
    let mut headers = Vec::new();
    loop {
        let header = line()?;
        let Some((name, value)) = header.split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut request = ProxiedRequest { method: method.to_owned(), path: path.to_owned(), headers, body: Vec::new() };
    let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    request.body = vec![0; length];
    reader.read_exact(&mut request.body)?;
    Ok(Some(request))
}

/// Returns the bytes of a response, with the length of its present body.
fn to_bytes(request: &ProxiedRequest, response: &Response) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {} {}\r\n", response.status, response.reason);
    let about_length = ["content-length", "transfer-encoding"];
    for (name, value) in response.headers.iter().filter(|(name, _)| !about_length.contains(&name.as_str())) {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    if request.method != "HEAD" && response.status != 204 && response.status != 304 {
        let _ = write!(text, "content-length: {}\r\n", response.body.len());
    }
    let mut bytes = (text + "\r\n").into_bytes();
    bytes.extend_from_slice(&response.body);
    bytes
}
