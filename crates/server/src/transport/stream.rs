//! The byte stream of a connection, plain or TLS, and how it is closed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::socket::Socket;

/// Time limit for sending the last response of a connection, and for discarding unread bytes afterwards. If a socket is closed
/// with unread bytes, TCP resets the connection, and a client that is still sending may lose the response.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of unread bytes that are discarded.
const LINGER_BYTES_MAX: usize = 1 << 20;

pub(super) type TlsStream = tokio_rustls::server::TlsStream<Socket>;

pub(super) enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Returns true if a write failed because the client read nothing for too long.
    pub(super) fn write_timed_out(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.write_timed_out(),
            Self::Tls(stream) => stream.get_ref().0.write_timed_out(),
        }
    }

    /// Sends the last response of a connection, and gives the client time to read it.
    pub(super) async fn send_last(mut self, response: &[u8]) {
        let send = async {
            self.write_all(response).await?;
            self.shutdown().await
        };
        if let Ok(Ok(())) = tokio::time::timeout(CLOSE_TIMEOUT, send).await {
            self.linger().await;
        }
    }

    /// Closes the connection; over TLS with a close-notify alert.
    pub(super) async fn close(mut self) {
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.shutdown()).await;
    }

    /// Discards what the client is still sending, up to a time limit.
    pub(super) async fn linger(mut self) {
        let discard = async {
            let mut buffer = vec![0; 16 * 1024];
            let mut discarded = 0;
            while let Ok(length @ 1..) = self.read(&mut buffer).await {
                discarded += length;
                if discarded > LINGER_BYTES_MAX {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, discard).await;
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(socket) => Pin::new(socket).poll_read(task, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(task, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Plain(socket) => Pin::new(socket).poll_write(task, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(task, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(socket) => Pin::new(socket).poll_flush(task),
            Self::Tls(stream) => Pin::new(stream).poll_flush(task),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(task),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(task),
        }
    }
}
