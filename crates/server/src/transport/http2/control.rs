//! A bound on the control frames of one HTTP/2 connection.
//!
//! A control frame costs its sender a few bytes and the server a look at it, mostly with a frame in return. Clients send a few
//! with each request and with what they read; a client that sends more than that is ended.

use std::time::{Duration, Instant};

/// Control frames that a connection may send at once, beyond those that its requests and responses account for.
const BURST: u32 = 1_000;
/// Time after which one more may be sent.
const REFILL_INTERVAL: Duration = Duration::from_millis(50);
/// Control frames that come with a request: priorities, window updates, a cancellation.
const PER_REQUEST: u32 = 4;
/// Bytes written to the client that account for one: window updates.
const BYTES_PER_FRAME: usize = 1_024;

/// Token bucket of control frames.
pub(super) struct ControlFrames {
    left: u32,
    refilled: Instant,
    /// Bytes written that are not turned into frames yet.
    bytes: usize,
}

impl ControlFrames {
    pub(super) fn new() -> Self {
        Self { left: BURST, refilled: Instant::now(), bytes: 0 }
    }

    /// Takes one frame; `false` if the connection has sent too many.
    pub(super) fn take(&mut self) -> bool {
        if self.left == 0 {
            self.refill();
        }
        let taken = self.left.checked_sub(1);
        self.left = taken.unwrap_or(0);
        taken.is_some()
    }

    /// Accounts for a request.
    pub(super) fn add_request(&mut self) {
        self.add(PER_REQUEST);
    }

    /// Accounts for bytes that the client has been sent.
    pub(super) fn add_written(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.add(u32::try_from(self.bytes / BYTES_PER_FRAME).unwrap_or(BURST));
        self.bytes %= BYTES_PER_FRAME;
    }

    /// Adds what the time since the last refill is worth. Done only when nothing is left, so that frames cost no clock.
    fn refill(&mut self) {
        let earned = self.refilled.elapsed().as_nanos() / REFILL_INTERVAL.as_nanos();
        if earned > 0 {
            self.refilled = Instant::now();
            self.add(u32::try_from(earned).unwrap_or(BURST));
        }
    }

    fn add(&mut self, frames: u32) {
        self.left = self.left.saturating_add(frames).min(BURST);
    }
}
