//! The state of an HTTP/1.1 connection, shared by its stream, its requests and its driver; and the reasons for which the server
//! ends a connection of any protocol or rejects a request.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub(super) struct ConnectionState(Mutex<Inner>);

struct Inner {
    phase: Phase,
    close_reason: Option<CloseReason>,
    /// The client may still be sending a body that is not read.
    lingers: bool,
    /// The response in flight ends when the client disconnects.
    is_open_ended: bool,
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

/// The protocol of a connection, from ALPN or from its first bytes.
pub(super) enum Protocol {
    Http1(Phase),
    Http2,
}

/// The reason why the server ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// No request arrived in time. The client expects no response.
    Idle,
    HeadTimeout,
    /// Hyper cannot parse a head that is too large, or has too many lines.
    HeadTooLarge,
    /// Hyper cannot parse the bytes as a request.
    Malformed,
    /// The client did not read its response for too long.
    Stalled,
    /// The client violated HTTP/2, or sent too many control frames.
    ProtocolViolation,
}

impl ConnectionState {
    pub(super) fn new(phase: Phase) -> Self {
        Self(Mutex::new(Inner { phase, close_reason: None, lingers: false, is_open_ended: false }))
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
        let mut state = self.state();
        state.phase = Phase::Idle(Instant::now());
        state.is_open_ended = false;
    }

    /// Records that the client may still be sending a body that is not read.
    pub(super) fn linger_on_close(&self) {
        self.state().lingers = true;
    }

    /// Records that the response in flight ends when the client disconnects.
    pub(super) fn end_with_client(&self) {
        self.state().is_open_ended = true;
    }

    pub(super) fn is_open_ended(&self) -> bool {
        self.state().is_open_ended
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

/// The reason why the transport rejects a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    HeadTimeout,
    HeadTooLarge,
    TransferEncoding,
    /// Too many requests are in flight, or too many connections are open.
    Overloaded,
    /// Plain HTTP on a port that speaks TLS.
    NotEncrypted,
}
