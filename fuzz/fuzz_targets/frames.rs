//! Frames of HTTP/2, which arrive in two ways: in pieces, and all at once. The deadline must depend on the frames only.
#![no_main]

#[path = "../../crates/server/src/transport/http2/frames.rs"]
mod frames;

/// What the module needs of the server.
mod transport {
    pub(crate) mod stream {
        use std::collections::VecDeque;
        use std::io;
        use std::pin::Pin;
        use std::task::{Context, Poll};
        use std::time::Instant;

        use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

        pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

        /// The pieces that have not been read.
        pub(crate) struct Stream(pub(crate) VecDeque<Vec<u8>>);

        impl AsyncRead for Stream {
            fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
                match self.0.pop_front() {
                    Some(piece) => Poll::Ready(Ok(buffer.put_slice(&piece))),
                    None => Poll::Pending,
                }
            }
        }

        impl AsyncWrite for Stream {
            fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                Poll::Ready(Ok(bytes.len()))
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }
        }

        /// A deadline that has always passed.
        #[derive(Default)]
        pub(crate) struct Timer;

        impl Timer {
            pub(crate) fn poll(&mut self, _: Instant, _: &mut Context<'_>) -> Poll<()> {
                Poll::Ready(())
            }
        }
    }
}

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use frames::FrameStream;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::sync::Notify;
use transport::stream::{PREFACE, Stream};

/// The state of a connection on which no more arrives.
#[derive(Debug, PartialEq)]
enum End {
    /// Nothing is incomplete.
    Idle,
    /// The rest of a frame or of the head of a request is awaited, under a deadline.
    Awaited,
    Flooded,
}

fn read(pieces: impl Iterator<Item = Vec<u8>>) -> End {
    let mut stream = Stream(pieces.collect());
    let pieces = stream.0.len();
    let flood = Notify::new();
    let mut frames = FrameStream::new(&mut stream, Duration::from_secs(1), &flood);
    let mut bytes = vec![0; 64 * 1024];
    for _ in 0..=pieces {
        let mut buffer = ReadBuf::new(&mut bytes);
        match Pin::new(&mut frames).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => return End::Awaited,
            Poll::Pending => break,
        }
    }
    if Pin::new(&mut Box::pin(flood.notified())).as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
        return End::Flooded;
    }
    End::Idle
}

/// The same in other words. `None` if there are enough control frames for a flood, which depends on time.
fn expected(mut bytes: &[u8]) -> Option<End> {
    let mut continues = false;
    let mut control = 0;
    while bytes.len() >= 9 {
        let length = usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2]);
        let (kind, flags) = (bytes[3], bytes[4]);
        match kind {
            0 => {}
            1 | 9 => continues = flags & 4 == 0,
            _ => control += 1,
        }
        let is_complete = bytes.len() - 9 >= length;
        bytes = &bytes[(9 + length).min(bytes.len())..];
        if bytes.is_empty() && kind != 0 && (!is_complete || continues) {
            return Some(End::Awaited);
        }
        if control >= 1_000 {
            return None;
        }
    }
    Some(if bytes.is_empty() { End::Idle } else { End::Awaited })
}

fuzz_target!(|bytes: &[u8]| {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let all = [PREFACE.as_slice(), bytes].concat();
    let whole = read([all.clone()].into_iter());
    let pieces = read(all.chunks(usize::from(*size).max(1)).map(<[u8]>::to_vec));
    if let Some(expected) = expected(bytes) {
        assert_eq!(whole, expected);
        assert_eq!(pieces, expected);
    }
});
