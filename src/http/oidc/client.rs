//! How the issuer is asked: over an encrypted connection, unless it is on this machine; under a deadline of the caller's,
//! without following it anywhere else.

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
use hyper::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

use crate::trust::{self, TrustFault};

/// Bytes of an answer at the most.
const ANSWER_MAX: usize = 1 << 20;
/// Addresses of one name that are tried at the most.
const ADDRESSES_MAX: usize = 16;
/// Characters of what somebody else calls himself that are repeated in the log.
const SHOWN_CHARS: usize = 200;
/// Where an issuer tells of itself, below its own address.
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Where something of the issuer's is: `https://` anywhere, `http://` on this machine.
#[derive(Clone, Debug)]
pub(super) struct Address {
    host: String,
    port: u16,
    encrypted: bool,
    /// Host and port as they were written, for the `Host` header.
    authority: String,
    path: String,
}

/// The issuer's own address, which is also its name: kept exactly as it was written.
#[derive(Clone, Debug)]
pub struct IssuerUrl {
    text: String,
    discovery: Address,
}

/// Why a text is not the address of an issuer. The messages say what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssuerUrlFault {
    /// Not a URL with a host.
    #[error("write it as https://HOST/PATH, without user name and password, for example https://login.example.com")]
    Malformed,
    /// Something after the path.
    #[error("an issuer's address has neither a query nor a fragment: leave out what follows `?` or `#`")]
    TooLong,
    /// Not encrypted.
    #[error(
        "without encryption anybody on the way could put his own keys in place of the issuer's: use https:// (http:// is for \
         127.0.0.1, [::1] and localhost alone)"
    )]
    Clear,
}

impl Address {
    pub(super) fn parse(text: &str) -> Result<Self, IssuerUrlFault> {
        let uri: Uri = text.parse().map_err(|_| IssuerUrlFault::Malformed)?;
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(IssuerUrlFault::Malformed),
        };
        let authority = uri.authority().ok_or(IssuerUrlFault::Malformed)?.as_str();
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(IssuerUrlFault::Malformed)?;
        // In front of the host stands nothing: a password would be in every log of the way. Behind it, a port at the most.
        let port = match authority.strip_prefix(host) {
            Some("") => Some(if encrypted { 443 } else { 80 }),
            Some(port) => port.strip_prefix(':').and_then(|port| port.parse().ok()),
            None => None,
        };
        let port = port.ok_or(IssuerUrlFault::Malformed)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        // The parser drops what follows.
        if text.contains('#') {
            return Err(IssuerUrlFault::TooLong);
        }
        if !encrypted && !names_this_machine(host) {
            return Err(IssuerUrlFault::Clear);
        }
        Ok(Self {
            host: host.to_owned(),
            port,
            encrypted,
            authority: authority.to_owned(),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }
}

fn names_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

impl IssuerUrl {
    /// Reads an issuer's address as operators write it.
    pub fn parse(text: &str) -> Result<Self, IssuerUrlFault> {
        if text.contains(['?', '#']) {
            return Err(IssuerUrlFault::TooLong);
        }
        Address::parse(text)?;
        let below = text.strip_suffix('/').unwrap_or(text);
        Ok(Self { text: text.to_owned(), discovery: Address::parse(&format!("{below}{DISCOVERY}"))? })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn discovery(&self) -> &Address {
        &self.discovery
    }
}

/// Why the issuer's keys could not be fetched. The texts are for the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchFault {
    #[error("the issuer did not answer in time")]
    Silent,
    #[error("cannot connect to {0}: {1}")]
    Unreachable(String, io::Error),
    #[error("no certificates are known by which {0} could be trusted: name a file of them with --oidc-ca")]
    NobodyTrusted(String),
    #[error("{0} gives no usable answer: {1}")]
    Broken(String, String),
    #[error("{0} answers {1}, not 200")]
    Status(String, StatusCode),
    #[error("the issuer's {DISCOVERY} holds no `issuer` or no `jwks_uri`")]
    NoDiscovery,
    #[error("the issuer calls itself {0:?}: --oidc-issuer must be exactly that")]
    AnotherIssuer(String),
    #[error("the issuer's `jwks_uri` cannot be used: {0}")]
    BadKeysAddress(IssuerUrlFault),
    #[error("what is at the issuer's `jwks_uri` is no set of keys")]
    NoKeySet,
}

impl FetchFault {
    pub(super) fn another_issuer(name: &str) -> Self {
        Self::AnotherIssuer(name.chars().take(SHOWN_CHARS).collect())
    }
}

/// Fetches documents of the issuer.
pub(super) struct Client {
    tls: Option<TlsConnector>,
}

impl Client {
    /// A client that trusts the authorities in the file, or else the system's. An issuer on this machine may do without.
    pub(super) fn new(url: &IssuerUrl, authorities: Option<&Path>) -> Result<Self, TrustFault> {
        let trusted = match trust::authorities(authorities, "--oidc-ca") {
            Err(_) if authorities.is_none() && !url.discovery.encrypted => return Ok(Self { tls: None }),
            trusted => trusted?,
        };
        let config = ClientConfig::builder_with_provider(trust::cryptography())
            .with_safe_default_protocol_versions()
            .expect("the cryptography has suites for every version")
            .with_root_certificates(trusted)
            .with_no_client_auth();
        Ok(Self { tls: Some(TlsConnector::from(Arc::new(config))) })
    }

    pub(super) async fn get(&self, address: &Address) -> Result<Bytes, FetchFault> {
        let unreachable = |error| FetchFault::Unreachable(address.authority.clone(), error);
        let stream = connect(address).await.map_err(unreachable)?;
        if !address.encrypted {
            return exchange(stream, address).await;
        }
        let tls = self.tls.as_ref().ok_or_else(|| FetchFault::NobodyTrusted(address.authority.clone()))?;
        let name = ServerName::try_from(address.host.clone()).map_err(|error| unreachable(io::Error::other(error)))?;
        exchange(tls.connect(name, stream).await.map_err(unreachable)?, address).await
    }
}

async fn connect(address: &Address) -> io::Result<TcpStream> {
    let found = lookup_host((address.host.as_str(), address.port)).await?;
    // In clear not even a name that leads elsewhere leads elsewhere.
    let allowed = found.filter(|found| address.encrypted || found.ip().is_loopback());
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

/// One request on a connection of its own.
async fn exchange(stream: impl AsyncRead + AsyncWrite + Unpin, address: &Address) -> Result<Bytes, FetchFault> {
    let broken = |why: String| FetchFault::Broken(address.authority.clone(), why);
    let failed = |error: hyper::Error| broken(describe(&error));
    let request = Request::get(&address.path)
        .header(HOST, &address.authority)
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, concat!("plantstore/", env!("CARGO_PKG_VERSION")))
        .header(CONNECTION, "close")
        .body(String::new())
        .map_err(|error| broken(error.to_string()))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let mut answering = pin!(async {
        let response = sender.send_request(request).await.map_err(failed)?;
        if response.status() != StatusCode::OK {
            return Err(FetchFault::Status(address.authority.clone(), response.status()));
        }
        let too_large = |_| broken(format!("it breaks off, or is larger than {ANSWER_MAX} bytes"));
        to_bytes(Body::new(response.into_body()), ANSWER_MAX).await.map_err(too_large)
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
