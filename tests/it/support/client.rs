//! A plain HTTP/1.1 client that hides nothing: the tests are about bytes and headers.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::PATIENCE;
use super::contract::{self, Sent};

pub(crate) const JSON: (&str, &str) = ("Content-Type", "application/json");

/// An answer as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) reason: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body in UTF-8")
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("a JSON body, not {:?}", self.text()))
    }

    /// The error number, after checking that the answer has exactly the error shape.
    #[track_caller]
    pub(crate) fn error(&self) -> i64 {
        let json = self.json();
        let shape = json.as_object().expect("an object");
        assert_eq!(shape.keys().collect::<Vec<_>>(), ["error", "message"], "{}", self.text());
        assert!(shape["message"].as_str().is_some_and(|message| !message.is_empty()));
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert!(self.header("x-request-id").is_some());
        let number = shape["error"].as_i64().expect("a number");
        assert_eq!(number / 100, i64::from(self.status), "the number starts with the status");
        number
    }

    pub(crate) fn message(&self) -> String {
        self.json()["message"].as_str().expect("a message").to_owned()
    }

    /// Status, headers and body as they went over the wire, without what differs from run to run.
    pub(crate) fn wire(&self) -> String {
        let mut text = format!("{} {}\n", self.status, self.reason);
        for (name, value) in &self.headers {
            let value = match name.as_str() {
                "date" => "(a date)",
                "x-request-id" => "(an id)",
                "etag" => "(a tag)",
                _ => value,
            };
            let _ = writeln!(text, "{name}: {value}");
        }
        text + "\n" + self.text()
    }

    /// The address in the `Link` to the next page.
    pub(crate) fn next(&self) -> Option<String> {
        let link = self.header("link")?;
        let address = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
        Some(address.unwrap_or_else(|| panic!("an RFC 8288 link, not {link}")).to_owned())
    }

    pub(crate) fn ids(&self) -> Vec<i64> {
        let json = self.json();
        json.as_array().expect("an array").iter().map(|plant| plant["id"].as_i64().expect("an id")).collect()
    }
}

/// One connection, kept open.
pub(crate) struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
    sent: Sent,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::try_open(address).expect("a connection")
    }

    pub(crate) fn try_open(address: SocketAddr) -> io::Result<Self> {
        Self::try_open_with(address, PATIENCE)
    }

    /// Sets this timeout for connecting and for every read and write.
    pub(crate) fn try_open_with(address: SocketAddr, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, unread: Vec::new(), sent: Sent::default() })
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("bytes sent");
    }

    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.sent.add(bytes.as_ref());
        self.stream.write_all(bytes.as_ref())
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Reads one answer; `to_head` when it answers a HEAD request and so has no body.
    #[track_caller]
    pub(crate) fn answer(&mut self, to_head: bool) -> Answer {
        self.try_answer(to_head).expect("an answer")
    }

    /// Whatever it is, the OpenAPI document must list it.
    pub(crate) fn try_answer(&mut self, to_head: bool) -> io::Result<Answer> {
        let answer = self.read_answer(to_head)?;
        if answer.status >= 200 {
            contract::check(self.sent.next().as_ref(), &answer);
        }
        Ok(answer)
    }

    fn read_answer(&mut self, to_head: bool) -> io::Result<Answer> {
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
        let mut answer = Answer { status, reason, headers, body: Vec::new() };
        if to_head || status == 204 || status == 304 || status < 200 {
            return Ok(answer);
        }
        if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = self.until(b"\r\n")?;
                let size = std::str::from_utf8(&size).ok().and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
                let size = size.ok_or(io::ErrorKind::InvalidData)?;
                let chunk = self.exactly(size + 2)?;
                if size == 0 {
                    break;
                }
                answer.body.extend_from_slice(&chunk[..size]);
            }
        } else if let Some(length) = answer.header("content-length") {
            let length = length.parse().expect("a length");
            answer.body = self.exactly(length)?;
        } else {
            self.stream.read_to_end(&mut self.unread)?;
            answer.body = std::mem::take(&mut self.unread);
        }
        Ok(answer)
    }

    /// Returns true if the server closes the connection without sending another byte. A timeout is not a close.
    pub(crate) fn is_closed_by_server(&mut self) -> bool {
        let closed = match self.read(&mut [0; 1]) {
            Ok(length) => length == 0,
            Err(error) => matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe),
        };
        closed && self.unread.is_empty()
    }

    /// Reads what there is; a signal that comes in between is nothing.
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
                return Ok(self.unread.drain(..at + end.len()).collect());
            }
            self.fill()?;
        }
    }

    fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < length {
            self.fill()?;
        }
        Ok(self.unread.drain(..length).collect())
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
    /// The bytes of a request, with the token if there is one.
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
    pub(crate) fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&[u8]>) -> Answer {
        let mut connection = self.connect();
        connection.send(self.bytes(method, path, headers, body));
        connection.answer(method == "HEAD")
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &[], None)
    }

    #[track_caller]
    pub(crate) fn delete(&self, id: impl std::fmt::Display) -> Answer {
        self.call("DELETE", &format!("/plants/{id}"), &[], None)
    }

    #[track_caller]
    pub(crate) fn post(&self, body: impl AsRef<[u8]>) -> Answer {
        self.call("POST", "/plants", &[("Content-Type", "application/json")], Some(body.as_ref()))
    }

    /// Creates a plant that must be new.
    #[track_caller]
    pub(crate) fn plant(&self, id: i64, name: &str) {
        let answer = self.post(serde_json::json!({ "id": id, "name": name }).to_string());
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// All ids, in the order of the list.
    #[track_caller]
    pub(crate) fn ids(&self) -> Vec<i64> {
        self.get("/plants?include=id").ids()
    }
}
