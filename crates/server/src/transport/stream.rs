//! The byte stream of a connection, plain or TLS, with a write timeout, and how it is closed.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// Time limit for sending the last response of a connection, and for discarding unread bytes afterwards. If a socket is closed
/// with unread bytes, TCP resets the connection, and a client that is still sending may lose the response.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of unread bytes that are discarded.
const LINGER_BYTES_MAX: usize = 1 << 20;

/// The first bytes of an HTTP/2 client (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream, plain or TLS.
pub(super) type Stream = Either<Socket, Box<TlsStream<Socket>>>;

/// Returns true if a write failed because the client read nothing for too long.
pub(super) fn write_timed_out(stream: &Stream) -> bool {
    match stream {
        Stream::Left(socket) => socket.timed_out,
        Stream::Right(tls) => tls.get_ref().0.timed_out,
    }
}

/// Sends the last response of a connection, and gives the client time to read it.
pub(super) async fn send_last(mut stream: Stream, response: &[u8]) {
    let send = async {
        stream.write_all(response).await?;
        stream.shutdown().await
    };
    if let Ok(Ok(())) = tokio::time::timeout(CLOSE_TIMEOUT, send).await {
        linger(stream).await;
    }
}

/// Closes a connection; over TLS with a close-notify alert.
pub(super) async fn close(mut stream: Stream) {
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, stream.shutdown()).await;
}

/// Discards what the client is still sending, up to a time limit.
pub(super) async fn linger(mut stream: Stream) {
    let discard = async {
        let mut buffer = vec![0; 16 * 1024];
        let mut discarded = 0;
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            discarded += length;
            if discarded > LINGER_BYTES_MAX {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, discard).await;
}

/// A socket on which a write fails if the client reads nothing for too long. The timeout is below TLS, which has a buffer of its
/// own.
pub(super) struct Socket {
    stream: TcpStream,
    /// Bytes that were read to detect the protocol.
    read_ahead: Vec<u8>,
    write_timeout: Duration,
    writing: Timer,
    /// Time since which no write has succeeded.
    stalled: Option<Instant>,
    /// A write failed because the client read nothing for too long.
    timed_out: bool,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, write_timeout: Duration) -> Self {
        Self {
            stream,
            read_ahead: Vec::new(),
            write_timeout,
            writing: Timer::default(),
            stalled: None,
            timed_out: false,
        }
    }

    /// Returns the first byte without consuming it; `None` if the client has closed the connection.
    pub(super) async fn first_byte(&self) -> Option<u8> {
        let mut first = [0];
        let length = self.stream.peek(&mut first).await.ok()?;
        (length > 0).then_some(first[0])
    }

    /// Returns true as long as the bytes that were read ahead may be the beginning of [`PREFACE`].
    pub(super) fn may_speak_http2(&self) -> bool {
        self.read_ahead.len() < PREFACE.len() && PREFACE.starts_with(&self.read_ahead)
    }

    pub(super) fn speaks_http2(&self) -> bool {
        self.read_ahead == PREFACE
    }

    /// Reads some bytes, at most those of [`PREFACE`], which stay readable. Returns false if there are none.
    pub(super) async fn read_ahead(&mut self) -> bool {
        let missing = PREFACE.len() - self.read_ahead.len();
        let read = (&mut self.stream).take(missing as u64).read_buf(&mut self.read_ahead).await;
        matches!(read, Ok(1..))
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.read_ahead.is_empty() {
            let length = self.read_ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.read_ahead[..length]);
            self.read_ahead.drain(..length);
            // Also reads the rest of the head: after a few bytes alone, hyper would double its buffer.
            let _ = Pin::new(&mut self.stream).poll_read(task, buffer);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(task, buffer)
    }
}

impl Socket {
    /// Passes the result of a write on. Fails if no write has succeeded for too long.
    fn written(&mut self, written: Poll<io::Result<usize>>, task: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let since = *self.stalled.get_or_insert_with(Instant::now);
        let deadline = since + self.write_timeout;
        ready!(self.writing.poll(deadline, task));
        self.timed_out = true;
        // After an ordinary close, unsent bytes would stay in the kernel for minutes.
        let _ = self.stream.set_zero_linger();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(task, bytes);
        self.written(written, task)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(task, parts);
        self.written(written, task)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(task)
    }
}

/// Timer for a deadline that usually moves before it is reached. To save resets, it is reset only for an earlier deadline, and
/// when it fires too early.
#[derive(Default)]
pub(super) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    pub(super) fn poll(&mut self, deadline: Instant, task: &mut Context<'_>) -> Poll<()> {
        let deadline = tokio::time::Instant::from_std(deadline);
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if deadline < sleep.deadline() {
            sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(sleep.as_mut().poll(task));
            if tokio::time::Instant::now() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}
