//! How others are asked, an issuer for its keys and a collector to take spans: one request on a connection of its own,
//! verified where it is encrypted, under a deadline of the caller's, without following anybody anywhere else.

use std::error::Error as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use hyper::http::request::Builder;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

use crate::trust::{self, TrustFault};

const JSON: &str = "application/json";
/// Bytes of an answer at the most.
const ANSWER_MAX: usize = 1 << 20;
/// Addresses of one name that are tried at the most.
const ADDRESSES_MAX: usize = 16;

/// Where something is: `https://` anywhere, `http://` as far as it may lead.
#[derive(Clone, Debug)]
pub struct Address {
    host: String,
    port: u16,
    encrypted: bool,
    clear: Clear,
    /// Host and port as they were written, for the `Host` header.
    authority: String,
    path: String,
}

/// Where a connection without encryption may lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clear {
    /// To this machine alone.
    Here,
    Anywhere,
}

/// Why a text is no [`Address`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFault {
    Malformed,
    Fragment,
    /// Without encryption, and beyond this machine.
    Clear,
}

impl Address {
    pub fn parse(text: &str, clear: Clear) -> Result<Self, AddressFault> {
        let uri: Uri = text.parse().map_err(|_| AddressFault::Malformed)?;
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(AddressFault::Malformed),
        };
        let authority = uri.authority().ok_or(AddressFault::Malformed)?.as_str();
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(AddressFault::Malformed)?;
        // In front of the host stands nothing: a password would be in every log of the way. Behind it, a port at the most.
        let port = match authority.strip_prefix(host) {
            Some("") => Some(if encrypted { 443 } else { 80 }),
            Some(port) => port.strip_prefix(':').and_then(|port| port.parse().ok()),
            None => None,
        };
        let port = port.ok_or(AddressFault::Malformed)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        // The parser drops what follows.
        if text.contains('#') {
            return Err(AddressFault::Fragment);
        }
        if !encrypted && clear == Clear::Here && !names_this_machine(host) {
            return Err(AddressFault::Clear);
        }
        Ok(Self {
            host: host.to_owned(),
            port,
            encrypted,
            clear,
            authority: authority.to_owned(),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }

    /// Host and port, as they were written.
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

fn names_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Why somebody could not be asked. The texts are for the log.
#[derive(Debug, thiserror::Error)]
pub enum ClientFault {
    #[error("cannot connect to {0}: {1}")]
    Unreachable(String, io::Error),
    #[error("no certificates are known by which {0} could be trusted: name a file of them with {1}")]
    NobodyTrusted(String, &'static str),
    #[error("{0} gives no usable answer: {1}")]
    Broken(String, String),
}

/// What somebody answers.
pub struct Answer {
    pub status: StatusCode,
    /// After how many seconds it wants to be asked again, if it says so.
    pub retry_after: Option<u64>,
    pub body: Bytes,
}

/// Asks others.
pub struct Client {
    tls: Option<TlsConnector>,
    /// How operators name a file of authorities.
    option: &'static str,
}

impl Client {
    /// A client that trusts the authorities in the file that `option` names, or else the system's. Whoever is spoken to in
    /// clear, as `address` is, may do without.
    #[expect(clippy::missing_panics_doc, reason = "only a provider without cipher suites would panic")]
    pub fn new(address: &Address, authorities: Option<&Path>, option: &'static str) -> Result<Self, TrustFault> {
        let trusted = match trust::authorities(authorities, option) {
            Err(_) if authorities.is_none() && !address.encrypted => return Ok(Self { tls: None, option }),
            trusted => trusted?,
        };
        let config = ClientConfig::builder_with_provider(trust::cryptography())
            .with_safe_default_protocol_versions()
            .expect("the cryptography has suites for every version")
            .with_root_certificates(trusted)
            .with_no_client_auth();
        Ok(Self { tls: Some(TlsConnector::from(Arc::new(config))), option })
    }

    pub async fn get(&self, address: &Address) -> Result<Answer, ClientFault> {
        self.ask(address, request(address, Method::GET).header(ACCEPT, JSON), Bytes::new()).await
    }

    pub async fn post_json(&self, address: &Address, body: Bytes) -> Result<Answer, ClientFault> {
        self.ask(address, request(address, Method::POST).header(CONTENT_TYPE, JSON), body).await
    }

    async fn ask(&self, address: &Address, request: Builder, body: Bytes) -> Result<Answer, ClientFault> {
        let broken = |why: String| ClientFault::Broken(address.authority.clone(), why);
        let unreachable = |error| ClientFault::Unreachable(address.authority.clone(), error);
        let request = request.body(Body::from(body)).map_err(|error| broken(error.to_string()))?;
        let stream = connect(address).await.map_err(unreachable)?;
        if !address.encrypted {
            return exchange(stream, request).await.map_err(broken);
        }
        let nobody = || ClientFault::NobodyTrusted(address.authority.clone(), self.option);
        let tls = self.tls.as_ref().ok_or_else(nobody)?;
        let name = ServerName::try_from(address.host.clone()).map_err(|error| unreachable(io::Error::other(error)))?;
        exchange(tls.connect(name, stream).await.map_err(unreachable)?, request).await.map_err(broken)
    }
}

fn request(address: &Address, method: Method) -> Builder {
    Request::builder()
        .method(method)
        .uri(&address.path)
        .header(HOST, &address.authority)
        .header(USER_AGENT, concat!("plantstore/", env!("CARGO_PKG_VERSION")))
        .header(CONNECTION, "close")
}

async fn connect(address: &Address) -> io::Result<TcpStream> {
    let found = lookup_host((address.host.as_str(), address.port)).await?;
    // In clear not even a name that leads elsewhere leads elsewhere.
    let allowed =
        found.filter(|found| address.encrypted || address.clear == Clear::Anywhere || found.ip().is_loopback());
    connect_to_any(allowed.take(ADDRESSES_MAX)).await
}

/// Connects to whichever answers first. All are asked at once: one that hangs must not keep us from the one that answers.
async fn connect_to_any(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut attempts: FuturesUnordered<_> = addresses.map(TcpStream::connect).collect();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "its name leads to no address that may be used");
    while let Some(attempt) = attempts.next().await {
        match attempt {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// One request on a connection of its own. An error says why there is no usable answer.
async fn exchange(stream: impl AsyncRead + AsyncWrite + Unpin, request: Request<Body>) -> Result<Answer, String> {
    let failed = |error: hyper::Error| describe(&error);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let mut answering = pin!(async {
        let response = sender.send_request(request).await.map_err(failed)?;
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let too_large = |_| format!("it breaks off, or is larger than {ANSWER_MAX} bytes");
        let body = to_bytes(Body::new(response.into_body()), ANSWER_MAX).await.map_err(too_large)?;
        Ok(Answer { status, retry_after, body })
    });
    tokio::select! {
        answer = &mut answering => return answer,
        ended = connection => ended.map_err(failed)?,
    }
    // The last of the answer may have come with the end.
    answering.await
}

fn describe(error: &hyper::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::timeout;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// An address on which connections are neither made nor refused: its listener has as many waiting as it takes. They
    /// wait for as long as what is handed over with it lives.
    async fn black_hole() -> (SocketAddr, impl Sized) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let listener = socket.listen(1).expect("a listener");
        let address = listener.local_addr().expect("its address");
        let mut waiting = Vec::new();
        // On this machine a connection is made at once or not at all.
        while let Ok(made) = timeout(Duration::from_millis(500), TcpStream::connect(address)).await {
            waiting.push(made.expect("a connection"));
        }
        (address, (listener, waiting))
    }

    #[tokio::test]
    async fn an_address_that_is_silent_keeps_nobody_from_one_that_answers() {
        let (silent, _kept) = black_hole().await;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let answering = listener.local_addr().expect("its address");
        let refusing = (Ipv4Addr::LOCALHOST, 1).into();
        for addresses in [vec![silent, answering], vec![refusing, silent, answering], vec![answering, silent]] {
            let connecting = connect_to_any(addresses.into_iter());
            let stream = timeout(PATIENCE, connecting).await.expect("in time").expect("a connection");
            assert_eq!(stream.peer_addr().expect("whom it is to"), answering);
        }
    }

    #[tokio::test]
    async fn without_an_address_that_answers_the_reason_is_told() {
        let refusing = (Ipv4Addr::LOCALHOST, 1).into();
        let error = connect_to_any([refusing].into_iter()).await.expect_err("nobody listens there");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let error = connect_to_any(std::iter::empty()).await.expect_err("there is nowhere to go");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
