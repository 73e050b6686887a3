//! Limits the control frames of one HTTP/2 connection.
//!
//! A control frame is cheap for the client, but the server must process it and often reply. Normal clients send a few frames per
//! request and per amount of data they read. The connection of a client that sends many more is closed.

use std::time::{Duration, Instant};

/// Capacity of the bucket.
const BURST: u32 = 1_000;
/// Time in which one token is added.
const REFILL_INTERVAL: Duration = Duration::from_millis(50);
/// Tokens added for a request, which may come with priorities, window updates and a cancellation.
const PER_REQUEST: u32 = 4;
/// Bytes written to the client for which one token is added, because the client sends window updates.
const BYTES_PER_FRAME: usize = 1_024;

/// Token bucket of control frames.
pub(super) struct ControlFrameLimit {
    left: u32,
    refilled: Instant,
    /// Bytes written for which no token was added yet.
    bytes: usize,
}

impl ControlFrameLimit {
    pub(super) fn new() -> Self {
        Self { left: BURST, refilled: Instant::now(), bytes: 0 }
    }

    /// Takes a token; `false` if the client has sent too many frames.
    pub(super) fn take(&mut self) -> bool {
        if self.left == 0 {
            self.refill();
        }
        let taken = self.left.checked_sub(1);
        self.left = taken.unwrap_or(0);
        taken.is_some()
    }

    pub(super) fn add_request(&mut self) {
        self.add(PER_REQUEST);
    }

    pub(super) fn add_written(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.add(u32::try_from(self.bytes / BYTES_PER_FRAME).unwrap_or(BURST));
        self.bytes %= BYTES_PER_FRAME;
    }

    /// Adds the tokens for the time since the last refill. Called only when the bucket is empty, to save reading the clock.
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
