//! TCP connections to a host, directly or through a proxy, in the syntax of `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::Uri;
use hyper::http::uri::Scheme;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tower_service::Service;

use crate::error::describe;
use crate::http_url::{Cleartext, host_and_port, is_encrypted, is_loopback};

/// Maximum number of addresses of a host name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Selects the proxy of a destination, none for loopback addresses. Without `Debug`: the URLs may contain passwords.
#[derive(Clone, Default)]
pub struct Proxies(Option<Arc<Matcher>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write the proxy as http://HOST:PORT")]
pub struct ProxyError;

impl Proxies {
    /// Takes the proxies for `http://` and for `https://` (empty for none), and the hosts that are reached without one.
    pub fn new(http: &str, https: &str, none_for: &str) -> Result<Self, ProxyError> {
        if http.is_empty() && https.is_empty() {
            return Ok(Self::default());
        }
        for proxy in [http, https].into_iter().filter(|proxy| !proxy.is_empty()) {
            check(proxy)?;
        }
        let matcher = Matcher::builder().http(http.to_owned()).https(https.to_owned()).no(none_for.to_owned());
        Ok(Self(Some(Arc::new(matcher.build()))))
    }

    pub(crate) fn proxy_for(&self, uri: &Uri) -> Option<Intercept> {
        self.0.as_ref().filter(|_| !is_loopback(uri))?.intercept(uri)
    }
}

/// Rejects values that the matcher would ignore, and proxies that are not reached over plain HTTP.
fn check(proxy: &str) -> Result<(), ProxyError> {
    let matcher = Matcher::builder().all(proxy.to_owned()).build();
    let found = matcher.intercept(&Uri::from_static("http://destination"));
    let usable = found.is_some_and(|found| found.uri().scheme() == Some(&Scheme::HTTP));
    if usable { Ok(()) } else { Err(ProxyError) }
}

#[derive(Clone)]
pub(crate) struct TcpConnector {
    pub(crate) cleartext: Cleartext,
    pub(crate) proxies: Proxies,
}

impl TcpConnector {
    async fn connect(&self, uri: Uri) -> io::Result<TokioIo<TcpStream>> {
        let Some(proxy) = self.proxies.proxy_for(&uri) else {
            // `localhost` may resolve to another machine, which must not be reached over plain HTTP.
            let allowed = if is_encrypted(&uri) { Cleartext::Anywhere } else { self.cleartext };
            return connect_directly(&uri, allowed).await;
        };
        let unreachable = |reason: String| io::Error::other(format!("the proxy {}: {reason}", proxy.uri()));
        if !is_encrypted(&uri) {
            let stream = connect_directly(proxy.uri(), Cleartext::Anywhere).await;
            return stream.map_err(|error| unreachable(error.to_string()));
        }
        let direct = Self { cleartext: Cleartext::Anywhere, proxies: Proxies::default() };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), direct);
        if let Some(credentials) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        tunnel.call(uri).await.map_err(|error| unreachable(describe(&error)))
    }
}

impl Service<Uri> for TcpConnector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<TcpStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect(uri).await })
    }
}

async fn connect_directly(uri: &Uri, allowed: Cleartext) -> io::Result<TokioIo<TcpStream>> {
    let found = lookup_host(host_and_port(uri)).await?;
    let found = found.filter(|address| allowed == Cleartext::Anywhere || address.ip().is_loopback());
    let stream = connect_to_any(found.take(ADDRESSES_MAX)).await?;
    let _ = stream.set_nodelay(true);
    Ok(TokioIo::new(stream))
}

/// Returns the first connection. All addresses are tried concurrently, so that an unresponsive one does not delay the others.
async fn connect_to_any(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut attempts: FuturesUnordered<_> = addresses.map(TcpStream::connect).collect();
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "its name resolves to no address that may be used");
    while let Some(attempt) = attempts.next().await {
        match attempt {
            Ok(stream) => return Ok(stream),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::timeout;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Returns an address that neither accepts nor rejects connections, because the backlog of its listener is full, and a
    /// guard that keeps it full.
    async fn unresponsive_address() -> (SocketAddr, impl Sized) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let listener = socket.listen(1).expect("a listener");
        let address = listener.local_addr().expect("its address");
        let mut waiting = Vec::new();
        // On loopback a connection is established at once or not at all.
        while let Ok(connected) = timeout(Duration::from_millis(500), TcpStream::connect(address)).await {
            waiting.push(connected.expect("a connection"));
        }
        (address, (listener, waiting))
    }

    #[tokio::test]
    async fn unresponsive_address_does_not_delay_another() {
        let (silent, _full_backlog) = unresponsive_address().await;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let accepting = listener.local_addr().expect("its address");
        let rejecting = (Ipv4Addr::LOCALHOST, 1).into();
        for addresses in [vec![silent, accepting], vec![rejecting, silent, accepting], vec![accepting, silent]] {
            let connecting = connect_to_any(addresses.into_iter());
            let stream = timeout(TIMEOUT, connecting).await.expect("in time").expect("a connection");
            assert_eq!(stream.peer_addr().expect("the other end"), accepting);
        }
    }
}
