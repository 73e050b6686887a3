//! The state of an HTTP/1.1 connection, shared by its stream, its requests and its driver; and the reasons for which the server
//! ends a connection of any protocol.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::limits::TransportLimits;
use super::rejection::Rejection;

pub(super) struct ConnectionState(Mutex<Inner>);

struct Inner {
    phase: Phase,
    close_reason: Option<CloseReason>,
    /// The client may still be sending a body that is not read.
    lingers: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Phase {
    /// Nothing has been received yet.
    New(Instant),
    /// Between two requests.
    Idle(Instant),
    /// The head of a request is arriving.
    Head(Instant),
    /// A request is in flight: its body and its response have deadlines of their own.
    Busy,
}

/// The reason why the server ends a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CloseReason {
    /// No request arrived in time. The client expects no response.
    Idle,
    HeadTimeout,
    HeadTooLarge,
    /// The announced body has more bytes than hyper can count.
    BodyTooLarge,
    Malformed,
    /// The client did not read its response for too long.
    Stalled,
    /// The client violated HTTP/2, or sent too many control frames.
    ProtocolViolation,
    /// The client speaks HTTP/2. Only the HTTP/1.1 part ends; the connection continues.
    SwitchToHttp2,
}

impl CloseReason {
    /// Returns the rejection to send, if the client expects a response.
    pub(super) fn rejection(self) -> Option<Rejection> {
        match self {
            Self::Idle | Self::Stalled | Self::ProtocolViolation | Self::SwitchToHttp2 => None,
            Self::HeadTimeout => Some(Rejection::HeadTimeout),
            Self::HeadTooLarge => Some(Rejection::HeadTooLarge),
            Self::BodyTooLarge => Some(Rejection::BodyTooLarge),
            Self::Malformed => Some(Rejection::Malformed),
        }
    }

    /// Distinguishes the two causes of hyper's status 431 by the bytes left in its buffer. A head that is too large is
    /// still there; a head that announces a body of more bytes than hyper can count was consumed.
    pub(super) fn with_unparsed(self, unparsed: &[u8], limits: &TransportLimits) -> Self {
        let is_method = unparsed.first().is_some_and(u8::is_ascii_alphabetic);
        let lines = unparsed.split(|byte| *byte == b'\n').count();
        let is_large_head = is_method && (unparsed.len() >= limits.max_header_bytes || lines > limits.max_headers);
        match self {
            Self::HeadTooLarge if !is_large_head => Self::BodyTooLarge,
            reason => reason,
        }
    }
}

impl ConnectionState {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Inner { phase: Phase::New(Instant::now()), close_reason: None, lingers: false }))
    }

    fn state(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn phase(&self) -> Phase {
        self.state().phase
    }

    /// Records that bytes of a request have arrived.
    pub(super) fn receive(&self) {
        let mut state = self.state();
        if let Phase::New(_) | Phase::Idle(_) = state.phase {
            state.phase = Phase::Head(Instant::now());
        }
    }

    /// Records that the head of a request is complete; returns the arrival time of its first byte.
    pub(super) fn begin_request(&self) -> Instant {
        let mut state = self.state();
        state.lingers = false;
        match std::mem::replace(&mut state.phase, Phase::Busy) {
            Phase::Head(since) => since,
            // Pipelined: it arrived together with the previous request.
            Phase::New(_) | Phase::Idle(_) | Phase::Busy => Instant::now(),
        }
    }

    /// Records that a request's response has ended.
    pub(super) fn end_request(&self) {
        self.state().phase = Phase::Idle(Instant::now());
    }

    /// Records that the client may still be sending a body that is not read.
    pub(super) fn linger_on_close(&self) {
        self.state().lingers = true;
    }

    pub(super) fn close(&self, reason: CloseReason) {
        self.state().close_reason = Some(reason);
    }

    pub(super) fn close_reason(&self) -> Option<CloseReason> {
        self.state().close_reason
    }

    /// Returns the start of the current phase.
    pub(super) fn since(&self) -> Instant {
        match self.phase() {
            Phase::New(since) | Phase::Idle(since) | Phase::Head(since) => since,
            Phase::Busy => Instant::now(),
        }
    }

    pub(super) fn lingers(&self) -> bool {
        self.state().lingers
    }
}
