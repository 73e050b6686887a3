//! HTTP/2 client, and raw frames for tests of misuse.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use bytes::Bytes;
use h2::client::SendRequest;
use hyper::http::Request;

use super::contract;
use super::{Client, Response, TIMEOUT};

/// Connection preface of a client.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection of a client that obeys the protocol.
pub(crate) struct Http2 {
    runtime: tokio::runtime::Runtime,
    sender: SendRequest<Bytes>,
    client: Client,
}

impl Http2 {
    pub(crate) fn open(client: &Client) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let sender = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(client.address).await.expect("a connection");
            stream.set_nodelay(true).expect("no delay");
            let (sender, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
            tokio::spawn(connection);
            sender
        });
        Self { runtime, sender, client: client.clone() }
    }

    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&[u8]>) -> Response {
        self.try_call(method, path, headers, body).expect("a response")
    }

    #[track_caller]
    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.call("GET", path, &[], None)
    }

    pub(crate) fn try_call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Result<Response, h2::Error> {
        let uri = format!("http://{}{path}", self.client.address);
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(token) = &self.client.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request");
        let exchange = exchange(self.sender.clone(), request, body.map(Bytes::copy_from_slice));
        self.runtime.block_on(exchange)
    }

    /// Sends a request to each of these paths concurrently and returns the statuses.
    pub(crate) fn all_at_once(&mut self, method: &str, paths: &[String], body: impl Fn(usize) -> String) -> Vec<u16> {
        let token = self.client.token.as_deref().unwrap_or_default();
        let exchanges = paths.iter().enumerate().map(|(index, path)| {
            let request = Request::builder()
                .method(method)
                .uri(format!("http://{}{path}", self.client.address))
                .header("authorization", format!("Bearer {token}"))
                .header("content-type", "application/json");
            exchange(self.sender.clone(), request.body(()).expect("a request"), Some(Bytes::from(body(index))))
        });
        let all = futures_util::future::join_all(exchanges);
        let responses = self.runtime.block_on(all);
        responses.into_iter().map(|response| response.expect("a response").status).collect()
    }
}

async fn exchange(
    sender: SendRequest<Bytes>,
    request: Request<()>,
    body: Option<Bytes>,
) -> Result<Response, h2::Error> {
    let request_line = contract::RequestLine::new(request.method().as_str(), &request.uri().to_string());
    let (response, mut stream) = sender.ready().await?.send_request(request, body.is_none())?;
    if let Some(body) = body {
        // The server may reject the body after it has sent its response.
        let _ = stream.send_data(body, true);
    }
    let (head, mut body) = in_time(response).await?.into_parts();
    let text = |value: &hyper::header::HeaderValue| String::from_utf8(value.as_bytes().to_vec()).expect("text");
    let mut response = Response {
        status: head.status.as_u16(),
        reason: "(HTTP/2)".to_owned(),
        headers: head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        body: Vec::new(),
    };
    while let Some(data) = in_time(body.data()).await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        response.body.extend_from_slice(&data);
    }
    contract::check(Some(&request_line), &response);
    Ok(response)
}

/// Waits for the next part of a response. The timeout is for each part, not for the whole.
async fn in_time<T>(next: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, next).await.expect("the next part of the response in time")
}

/// Frame types.
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
/// Frame flags.
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
/// `SETTINGS_INITIAL_WINDOW_SIZE`: number of bytes of a response before the client must open the window.
pub(crate) const INITIAL_WINDOW: u16 = 4;
/// Error codes of `RST_STREAM` and GOAWAY.
pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const CANCEL: u32 = 8;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// Returns the error code of a `RST_STREAM` or GOAWAY frame.
    pub(crate) fn reason(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes"))
    }
}

/// A connection on which the test sends raw frames.
pub(crate) struct Frames<S> {
    pub(crate) stream: S,
}

impl Frames<TcpStream> {
    /// Opens a connection and sends the preface and these settings.
    pub(crate) fn open(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        stream.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
        Self::begin(stream, settings)
    }
}

impl<S: Read + Write> Frames<S> {
    pub(crate) fn begin(stream: S, settings: &[(u16, u32)]) -> Self {
        let mut frames = Self { stream };
        frames.stream.write_all(PREFACE).expect("the preface sent");
        let settings: Vec<u8> = settings.iter().flat_map(|(name, value)| setting(*name, *value)).collect();
        frames.send(SETTINGS, 0, 0, &settings);
        frames
    }

    #[track_caller]
    pub(crate) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.try_send(&frame(kind, flags, stream, payload)).expect("a frame sent");
    }

    pub(crate) fn try_send(&mut self, frames: &[u8]) -> io::Result<()> {
        self.stream.write_all(frames)?;
        self.stream.flush()
    }

    /// Reads the next frame; `None` if the server has closed the connection. A timeout fails the test.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        if let Err(error) = self.stream.read_exact(&mut head) {
            assert!(!matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "timed out");
            return None;
        }
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).ok()?;
        let stream = u32::from_be_bytes(head[5..].try_into().expect("four bytes"));
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// Reads the next frame of this type and skips others.
    #[track_caller]
    pub(crate) fn next_of(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.next().unwrap_or_else(|| panic!("the connection ended before a frame of type {kind}"));
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Reads until the connection ends, and returns the error code of the last GOAWAY.
    pub(crate) fn ending(&mut self) -> Option<u32> {
        let mut reason = None;
        while let Some(frame) = self.next() {
            if frame.kind == GOAWAY {
                reason = Some(frame.reason());
            }
        }
        reason
    }

    /// Reads the response on this stream to its end and returns the body.
    #[track_caller]
    pub(crate) fn body(&mut self, stream: u32) -> String {
        let mut body = Vec::new();
        loop {
            let frame = self.next().expect("the rest of the response");
            if frame.stream != stream {
                continue;
            }
            if frame.kind == DATA {
                body.extend_from_slice(&frame.payload);
            }
            if matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0 {
                return String::from_utf8(body).expect("text");
            }
        }
    }
}

pub(crate) fn setting(name: u16, value: u32) -> Vec<u8> {
    [name.to_be_bytes().as_slice(), value.to_be_bytes().as_slice()].concat()
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a small frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes the header fields of a request without compression.
pub(crate) fn head(client: &Client, method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let address = client.address.to_string();
    let bearer = client.token.as_ref().map(|token| format!("Bearer {token}"));
    let mut fields = vec![(":method", method), (":scheme", "http"), (":path", path), (":authority", address.as_str())];
    fields.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
    fields.extend(more);
    fields.into_iter().flat_map(|(name, value)| field(&name.to_lowercase(), value)).collect()
}

/// Encodes a field as a literal without indexing.
pub(crate) fn field(name: &str, value: &str) -> Vec<u8> {
    [vec![0], length(name.len()), name.into(), length(value.len()), value.into()].concat()
}

/// Encodes a length as an HPACK integer with a 7-bit prefix.
fn length(number: usize) -> Vec<u8> {
    if number < 127 {
        return vec![u8::try_from(number).expect("seven bits")];
    }
    let (mut bytes, mut rest) = (vec![127], number - 127);
    while rest >= 128 {
        bytes.push(u8::try_from(rest % 128).expect("seven bits") | 128);
        rest /= 128;
    }
    bytes.push(u8::try_from(rest).expect("seven bits"));
    bytes
}
