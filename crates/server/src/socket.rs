//! One connection's socket: a deadline for whoever takes nothing of what is written to it, in clear or encrypted, and a
//! good end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::tls::TlsStream;

/// How long the last words on a connection may take, and how long its unread rest is thrown away afterwards: closing a
/// socket with unread bytes would take our answer away from a client that is still sending.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);
/// Unread bytes thrown away at the most.
const LINGER_BYTES: usize = 1 << 20;

/// A socket that fails when the client takes nothing for too long. The deadline is below the encryption, which has a
/// buffer of its own.
pub(crate) struct Socket {
    stream: TcpStream,
    patience: Duration,
    writing: Timer,
    /// Since when the client takes nothing of what is written to it.
    stalled: Option<Instant>,
    /// Whether that was too long.
    gave_up: bool,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, patience: Duration) -> Self {
        Self { stream, patience, writing: Timer::default(), stalled: None, gave_up: false }
    }

    /// The first byte that has come, left where it is; `None` when none will.
    pub(crate) async fn first_byte(&self) -> Option<u8> {
        let mut first = [0];
        let length = self.stream.peek(&mut first).await.ok()?;
        (length > 0).then_some(first[0])
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(task, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(task, bytes) {
            self.stalled = None;
            return Poll::Ready(written);
        }
        let since = *self.stalled.get_or_insert_with(Instant::now);
        let deadline = since + self.patience;
        ready!(self.writing.poll(deadline, task));
        self.gave_up = true;
        // What the client does not read would stay in the kernel for minutes after an ordinary close.
        let _ = self.stream.set_zero_linger();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(task)
    }
}

/// A connection's bytes as the protocols see them.
pub(crate) enum Stream {
    Clear(Socket),
    Encrypted(Box<TlsStream>),
}

impl Stream {
    /// Whether the client took nothing of what was written to it for too long.
    pub(crate) fn gave_up(&self) -> bool {
        match self {
            Self::Clear(socket) => socket.gave_up,
            Self::Encrypted(stream) => stream.get_ref().0.gave_up,
        }
    }

    /// Answers in a library's place and gives the client a moment to take it.
    pub(crate) async fn last_words(mut self, answer: &[u8]) {
        let farewell = async {
            self.write_all(answer).await?;
            self.shutdown().await
        };
        if let Ok(Ok(())) = tokio::time::timeout(LAST_WORDS, farewell).await {
            self.linger().await;
        }
    }

    /// Ends what is encrypted with a word, so that the client knows it for the end.
    pub(crate) async fn close(mut self) {
        let _ = tokio::time::timeout(LAST_WORDS, self.shutdown()).await;
    }

    /// Throws away what the client is still sending, for a while.
    pub(crate) async fn linger(mut self) {
        let discard = async {
            let mut buffer = vec![0; 16 * 1024];
            let mut discarded = 0;
            while let Ok(length @ 1..) = self.read(&mut buffer).await {
                discarded += length;
                if discarded > LINGER_BYTES {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(LAST_WORDS, discard).await;
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Clear(socket) => Pin::new(socket).poll_read(task, buffer),
            Self::Encrypted(stream) => Pin::new(stream).poll_read(task, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Clear(socket) => Pin::new(socket).poll_write(task, bytes),
            Self::Encrypted(stream) => Pin::new(stream).poll_write(task, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Clear(socket) => Pin::new(socket).poll_flush(task),
            Self::Encrypted(stream) => Pin::new(stream).poll_flush(task),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Clear(socket) => Pin::new(socket).poll_shutdown(task),
            Self::Encrypted(stream) => Pin::new(stream).poll_shutdown(task),
        }
    }
}

/// A timer for deadlines that mostly move away before they come: it is set anew only for an earlier one, and when it
/// rings too early.
#[derive(Default)]
pub(crate) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    pub(crate) fn poll(&mut self, deadline: Instant, task: &mut Context<'_>) -> Poll<()> {
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
