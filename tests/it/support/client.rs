//! HTTP/1.1 client that exposes every byte and header field.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, sockopt};

use super::TIMEOUT;
use super::contract::{self, PendingRequests};
use super::response::Response;

pub(crate) const JSON: (&str, &str) = ("Content-Type", "application/json");

/// Persistent connection.
pub(crate) struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
    pending: PendingRequests,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::try_open(address).expect("a connection")
    }

    pub(crate) fn try_open(address: SocketAddr) -> io::Result<Self> {
        Self::try_open_with(address, TIMEOUT)
    }

    /// Sets this timeout for connecting and for every read and write.
    pub(crate) fn try_open_with(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, unread: Vec::new(), pending: PendingRequests::default() })
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("bytes sent");
    }

    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.pending.add(bytes.as_ref());
        self.stream.write_all(bytes.as_ref())
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends a request and reads the next response, which is not that to a HEAD request.
    #[track_caller]
    pub(crate) fn ask(&mut self, bytes: impl AsRef<[u8]>) -> Response {
        self.send(bytes);
        self.read_response(false)
    }

    /// Reads one response; `to_head` for the response to a HEAD request, which has no body.
    #[track_caller]
    pub(crate) fn read_response(&mut self, to_head: bool) -> Response {
        self.try_read_response(to_head).expect("a response")
    }

    /// Reads one response, which the OpenAPI document must list.
    pub(crate) fn try_read_response(&mut self, to_head: bool) -> io::Result<Response> {
        let response = self.parse_response(to_head)?;
        if response.status >= 200 {
            contract::check(self.pending.next().as_ref(), &response);
        }
        Ok(response)
    }

    /// Reads the head of a response, which the OpenAPI document must list; its body may be read in chunks.
    pub(crate) fn try_read_head(&mut self) -> io::Result<Response> {
        let response = self.parse_head()?;
        contract::check(self.pending.next().as_ref(), &response);
        Ok(response)
    }

    #[track_caller]
    pub(crate) fn read_head(&mut self) -> Response {
        self.try_read_head().expect("the head of a response")
    }

    /// Reads the next chunk of a body, which is empty at its end.
    pub(crate) fn read_chunk(&mut self) -> io::Result<Vec<u8>> {
        let size = self.until(b"\r\n")?;
        let size = std::str::from_utf8(&size).ok().and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
        let size = size.ok_or(io::ErrorKind::InvalidData)?;
        let mut chunk = self.exactly(size + 2)?;
        chunk.truncate(size);
        Ok(chunk)
    }

    fn parse_head(&mut self) -> io::Result<Response> {
        let head = self.until(b"\r\n\r\n")?;
        let head = String::from_utf8(head).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let mut words = status_line.splitn(3, ' ');
        let version = words.next().unwrap_or_default();
        assert!(version == "HTTP/1.1" || version == "HTTP/1.0", "a status line, not {status_line:?}");
        let status = words.next().and_then(|word| word.parse().ok()).expect("a status");
        let reason = words.next().unwrap_or_default().to_owned();
        let headers = lines
            .map(|line| line.split_once(": ").unwrap_or_else(|| panic!("a header, not {line:?}")))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Ok(Response { status, reason, headers, body: Vec::new() })
    }

    fn parse_response(&mut self, to_head: bool) -> io::Result<Response> {
        let mut response = self.parse_head()?;
        let status = response.status;
        if to_head || status == 204 || status == 304 || status < 200 {
            return Ok(response);
        }
        if response.header("transfer-encoding") == Some("chunked") {
            loop {
                let chunk = self.read_chunk()?;
                if chunk.is_empty() {
                    break;
                }
                response.body.extend_from_slice(&chunk);
            }
        } else if let Some(length) = response.header("content-length") {
            let length = length.parse().expect("a length");
            response.body = self.exactly(length)?;
        } else {
            self.stream.read_to_end(&mut self.unread)?;
            response.body = std::mem::take(&mut self.unread);
        }
        Ok(response)
    }

    /// Returns true if the server closes the connection without sending another byte. A timeout is not a close.
    pub(crate) fn is_closed_by_server(&mut self) -> bool {
        let closed = match self.read(&mut [0; 1]) {
            Ok(length) => length == 0,
            Err(error) => matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe),
        };
        closed && self.unread.is_empty()
    }

    /// Reads available bytes. A read that a signal interrupts is repeated.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    fn until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.unread.windows(end.len()).position(|window| window == end) {
                return self.exactly(at + end.len());
            }
            self.fill()?;
        }
    }

    fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < length {
            self.fill()?;
        }
        let rest = self.unread.split_off(length);
        Ok(std::mem::replace(&mut self.unread, rest))
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        match self.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            length => {
                self.unread.extend_from_slice(&buffer[..length]);
                Ok(())
            }
        }
    }
}

/// Client of the service, with or without a token. It opens a connection for every call.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) token: Option<String>,
}

impl Client {
    /// Returns the bytes of a request, with the token if there is one.
    pub(crate) fn bytes(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&[u8]>) -> Vec<u8> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.address);
        if let Some(token) = &self.token {
            let _ = write!(text, "Authorization: Bearer {token}\r\n");
        }
        for (name, value) in headers {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        if let Some(body) = body {
            let _ = write!(text, "Content-Length: {}\r\n", body.len());
        }
        let mut bytes = (text + "\r\n").into_bytes();
        bytes.extend_from_slice(body.unwrap_or_default());
        bytes
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.address)
    }

    #[track_caller]
    pub(crate) fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&[u8]>) -> Response {
        let mut connection = self.connect();
        connection.send(self.bytes(method, path, headers, body));
        connection.read_response(method == "HEAD")
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Response {
        self.call("GET", path, &[], None)
    }

    #[track_caller]
    pub(crate) fn delete(&self, id: impl std::fmt::Display) -> Response {
        self.call("DELETE", &format!("/plants/{id}"), &[], None)
    }

    #[track_caller]
    pub(crate) fn post(&self, body: impl AsRef<[u8]>) -> Response {
        self.call("POST", "/plants", &[("Content-Type", "application/json")], Some(body.as_ref()))
    }

    #[track_caller]
    pub(crate) fn put(&self, id: impl std::fmt::Display, body: impl AsRef<[u8]>) -> Response {
        self.call("PUT", &format!("/plants/{id}"), &[JSON], Some(body.as_ref()))
    }

    /// Creates a plant, which must succeed.
    #[track_caller]
    pub(crate) fn plant(&self, id: i64, name: &str) {
        let response = self.post(serde_json::json!({ "id": id, "name": name }).to_string());
        assert_eq!(response.status, 200, "{}", response.text());
    }

    /// Requests a list on a connection with a small receive buffer and reads only its first bytes.
    #[track_caller]
    pub(crate) fn unread_list(&self, headers: &[(&str, &str)]) -> TcpStream {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        sockopt::set_socket_recv_buffer_size(&socket, 4_096).expect("a buffer size");
        rustix::net::connect(&socket, &self.address).expect("a connection");
        let mut stream = TcpStream::from(socket);
        stream.write_all(&self.bytes("GET", "/plants", headers, None)).expect("a request");
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("a status");
        assert_eq!(&status, b"HTTP/1.1 200");
        stream
    }

    /// Returns the ids of all plants, in the order of the list.
    #[track_caller]
    pub(crate) fn ids(&self) -> Vec<i64> {
        self.get("/plants?include=id").ids()
    }
}
