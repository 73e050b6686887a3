//! How a server is asked: one request, one answer, under a deadline and bounded in size. Whatever the server does, asking ends.

use std::error::Error as _;
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, USER_AGENT};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::answer::Answer;
use plantstore_client::trust::{self, TrustFault};

/// Bytes of an answer at the most.
pub(super) const ANSWER_MAX: usize = 4 << 20;

/// Where a server is: scheme, host and port. The contract names its paths from the root, so there is nothing else.
#[derive(Clone, Debug)]
pub struct ServerUrl {
    host: String,
    port: u16,
    encrypted: bool,
    /// Host and port as they were written, for the `Host` header.
    authority: String,
}

/// Why a text is not the address of a server. The messages say what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlFault {
    /// Not a URL with a host.
    #[error("write the server's address as http://HOST:PORT or https://HOST:PORT, for example http://127.0.0.1:8080")]
    Malformed,
    /// Something in front of the host.
    #[error("an address holds no user name and no password: the token is in PLANTSTORE_TOKEN or in --token-file")]
    Credentials,
    /// Something after the host.
    #[error("the interface names its paths from the root: leave out everything after host and port")]
    Path,
}

impl FromStr for ServerUrl {
    type Err = ServerUrlFault;

    fn from_str(text: &str) -> Result<Self, ServerUrlFault> {
        let uri: Uri = text.parse().map_err(|_| ServerUrlFault::Malformed)?;
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(ServerUrlFault::Malformed),
        };
        let authority = uri.authority().ok_or(ServerUrlFault::Malformed)?.as_str();
        if authority.contains('@') {
            return Err(ServerUrlFault::Credentials);
        }
        // The parser drops what follows `#`.
        if uri.path() != "/" || uri.query().is_some() || text.contains('#') {
            return Err(ServerUrlFault::Path);
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(ServerUrlFault::Malformed)?;
        let port = match authority.strip_prefix(host) {
            Some("") => Some(if encrypted { 443 } else { 80 }),
            Some(port) => port.strip_prefix(':').and_then(|port| port.parse().ok()),
            None => None,
        };
        Ok(Self {
            port: port.ok_or(ServerUrlFault::Malformed)?,
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            encrypted,
            authority: authority.to_owned(),
        })
    }
}

impl std::fmt::Display for ServerUrl {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}://{}", if self.encrypted { "https" } else { "http" }, self.authority)
    }
}

impl ServerUrl {
    /// Whether what is sent there can be read on the way.
    pub fn is_readable_on_the_way(&self) -> bool {
        let here = self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
        !self.encrypted && !here
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// No connection.
    #[error("cannot connect to {0}: {1}")]
    Unreachable(String, String),
    /// The connection ended, or what came is not HTTP.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// Not in time.
    #[error("no whole answer within {0:?}")]
    Late(Duration),
    /// More than anybody wants to read.
    #[error("an answer of more than {ANSWER_MAX} bytes")]
    TooLarge,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Option<String>,
}

impl Ask {
    pub(super) fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: None }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(super) fn body(mut self, body: impl Into<String>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// As messages name it: without its header fields, which hold the token.
    fn described(&self) -> String {
        match &self.body {
            Some(body) => format!("{} {} with {body}", self.method, self.path),
            None => format!("{} {}", self.method, self.path),
        }
    }
}

/// Asks one server.
pub(super) struct Client {
    url: ServerUrl,
    tls: Option<TlsConnector>,
    timeout: Duration,
}

impl Client {
    /// A client that trusts the authorities in the file, or else the system's.
    pub(super) fn new(url: ServerUrl, authorities: Option<&Path>, timeout: Duration) -> Result<Self, TrustFault> {
        if !url.encrypted {
            return Ok(Self { url, tls: None, timeout });
        }
        let config = ClientConfig::builder_with_provider(trust::cryptography())
            .with_safe_default_protocol_versions()
            .expect("the cryptography has suites for every version")
            .with_root_certificates(trust::authorities(authorities, "--ca")?)
            .with_no_client_auth();
        Ok(Self { url, tls: Some(TlsConnector::from(Arc::new(config))), timeout })
    }

    /// One request on a connection of its own.
    pub(super) async fn ask(&self, ask: &Ask) -> Result<Answer, Failure> {
        let exchange = async { self.open().await?.exchange(ask).await };
        timeout(self.timeout, exchange).await.map_err(|_| Failure::Late(self.timeout))?
    }

    /// Several requests on one connection, one after the other.
    pub(super) async fn ask_in_a_row(&self, asks: &[Ask]) -> Result<Vec<Answer>, Failure> {
        let exchanges = async {
            let mut line = self.open().await?;
            let mut answers = Vec::with_capacity(asks.len());
            for ask in asks {
                answers.push(line.exchange(ask).await?);
            }
            Ok(answers)
        };
        timeout(self.timeout, exchanges).await.map_err(|_| Failure::Late(self.timeout))?
    }

    async fn open(&self) -> Result<Line, Failure> {
        let unreachable = |error: io::Error| Failure::Unreachable(self.url.to_string(), in_words(&error));
        let stream = TcpStream::connect((self.url.host.as_str(), self.url.port)).await.map_err(unreachable)?;
        let _ = stream.set_nodelay(true);
        let authority = self.url.authority.clone();
        let Some(tls) = &self.tls else {
            return Line::open(stream, authority).await;
        };
        let name = ServerName::try_from(self.url.host.clone()).map_err(|error| unreachable(io::Error::other(error)))?;
        Line::open(tls.connect(name, stream).await.map_err(unreachable)?, authority).await
    }
}

/// What went wrong and, where that is known, what to do about it.
fn in_words(error: &io::Error) -> String {
    use rustls::{CertificateError, Error, InvalidMessage};
    let advice = match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            ": name the authority that has signed it with --ca"
        }
        Some(Error::InvalidCertificate(CertificateError::Other(other)))
            if other.to_string().contains("CaUsedAsEndEntity") =>
        {
            ": an authority's own certificate is no server's, so make one with basicConstraints=CA:FALSE"
        }
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => ": it speaks in clear, so write http://",
        _ => "",
    };
    format!("{error}{advice}")
}

/// One connection.
struct Line {
    sender: SendRequest<String>,
    authority: String,
    driver: JoinHandle<()>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Line {
    async fn open(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        authority: String,
    ) -> Result<Self, Failure> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
        // What goes wrong on it is told to whoever waits for an answer.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, authority, driver })
    }

    async fn exchange(&mut self, ask: &Ask) -> Result<Answer, Failure> {
        let malformed = |error: hyper::http::Error| Failure::Broken(error.to_string());
        let method = Method::from_bytes(ask.method.as_bytes()).map_err(|error| malformed(error.into()))?;
        let mut request = Request::builder()
            .method(method)
            .uri(&ask.path)
            .header(HOST, &self.authority)
            .header(USER_AGENT, concat!("plantstore/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &ask.headers {
            request = request.header(*name, value);
        }
        let request = request.body(ask.body.clone().unwrap_or_default()).map_err(malformed)?;
        self.sender.ready().await.map_err(|error| broken(&error))?;
        let (parts, body) = self.sender.send_request(request).await.map_err(|error| broken(&error))?.into_parts();
        let text = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = parts.headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
        Ok(Answer { asked: ask.described(), status: parts.status.as_u16(), headers, body: whole(body).await? })
    }
}

async fn whole(mut body: Incoming) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        if let Ok(data) = frame.map_err(|error| broken(&error))?.into_data() {
            bytes.extend_from_slice(&data);
        }
        if bytes.len() > ANSWER_MAX {
            return Err(Failure::TooLarge);
        }
    }
    Ok(bytes)
}

fn broken(error: &hyper::Error) -> Failure {
    Failure::Broken(error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, host, port) in [
            ("http://127.0.0.1:8080", "127.0.0.1", 8080),
            ("http://plants.example/", "plants.example", 80),
            ("https://[::1]", "::1", 443),
            ("https://plants.example:8443", "plants.example", 8443),
        ] {
            let url: ServerUrl = text.parse().expect("an address");
            assert_eq!((url.host.as_str(), url.port), (host, port), "{text}");
            assert_eq!(url.to_string(), text.trim_end_matches('/'));
        }
        for text in ["", "plants.example", "ftp://plants.example", "http://", "http://x:99999", "http://x:y"] {
            assert_eq!(text.parse::<ServerUrl>().err(), Some(ServerUrlFault::Malformed), "{text}");
        }
        for text in ["http://x/plants", "http://x/?a=b", "http://x/#a"] {
            assert_eq!(text.parse::<ServerUrl>().err(), Some(ServerUrlFault::Path), "{text}");
        }
        assert_eq!("http://ada:secret@x".parse::<ServerUrl>().err(), Some(ServerUrlFault::Credentials));
    }

    #[test]
    fn only_this_machine_and_encryption_keep_a_token_from_being_read() {
        for (text, readable) in [
            ("http://127.0.0.1:8080", false),
            ("http://[::1]:8080", false),
            ("http://LocalHost", false),
            ("https://plants.example", false),
            ("http://plants.example", true),
            ("http://10.0.0.1", true),
        ] {
            let url: ServerUrl = text.parse().expect("an address");
            assert_eq!(url.is_readable_on_the_way(), readable, "{text}");
        }
    }
}
