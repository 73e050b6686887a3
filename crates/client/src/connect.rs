//! TCP connections to a host, directly or through a proxy.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tower_service::Service;

use crate::error::describe;
use crate::http_url::{Cleartext, host_and_port, is_encrypted};
use crate::proxy::Proxies;

/// Maximum number of addresses of a host name that are tried.
const ADDRESSES_MAX: usize = 16;

#[derive(Clone)]
pub(crate) struct TcpConnector {
    pub(crate) cleartext: Cleartext,
    pub(crate) proxies: Proxies,
}

impl TcpConnector {
    async fn connect(&self, uri: Uri) -> io::Result<TcpConnection> {
        let Some(proxy) = self.proxies.proxy_for(&uri) else {
            // `localhost` may resolve to another machine, which must not be reached over plain HTTP.
            let loopback_only = !is_encrypted(&uri) && self.cleartext == Cleartext::Loopback;
            return connect_directly(&uri, loopback_only).await.map(|stream| TcpConnection::new(stream, false));
        };
        let unreachable = |reason: String| io::Error::other(format!("the proxy {}: {reason}", proxy.uri()));
        if !is_encrypted(&uri) {
            let stream = connect_directly(proxy.uri(), false).await.map_err(|error| unreachable(error.to_string()))?;
            return Ok(TcpConnection::new(stream, true));
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
    type Response = TcpConnection;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TcpConnection>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect(uri).await })
    }
}

async fn connect_directly(uri: &Uri, loopback_only: bool) -> io::Result<TcpStream> {
    let found = lookup_host(host_and_port(uri)).await?;
    let allowed = found.filter(|address| !loopback_only || address.ip().is_loopback());
    let stream = connect_to_any(allowed.take(ADDRESSES_MAX)).await?;
    let _ = stream.set_nodelay(true);
    Ok(stream)
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

/// A TCP connection, to the destination or to a proxy that forwards plain HTTP.
pub(crate) struct TcpConnection {
    io: TokioIo<TcpStream>,
    proxied: bool,
    reused: Reused,
}

/// True once a connection has carried a response, so that another request on it is a reuse.
#[derive(Clone, Default)]
pub(crate) struct Reused(pub(crate) Arc<AtomicBool>);

impl TcpConnection {
    fn new(stream: TcpStream, proxied: bool) -> Self {
        Self { io: TokioIo::new(stream), proxied, reused: Reused::default() }
    }
}

impl Connection for TcpConnection {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.proxied).extra(self.reused.clone())
    }
}

impl Read for TcpConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl Write for TcpConnection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
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

    #[tokio::test]
    async fn error_is_that_of_the_last_address() {
        let rejecting = (Ipv4Addr::LOCALHOST, 1).into();
        let error = connect_to_any([rejecting].into_iter()).await.expect_err("no listener");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let error = connect_to_any(std::iter::empty()).await.expect_err("no address");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
