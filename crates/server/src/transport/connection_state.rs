//! The state of an HTTP/1.1 connection, shared by its stream, its requests and its driver; and the reasons for which the server
//! ends a connection of any protocol or rejects a request.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub(super) struct ConnectionState(Mutex<Inner>);

pub(super) struct Inner {
    pub(super) phase: Phase,
    pub(super) close_reason: Option<CloseReason>,
    /// The client may still be sending a body that is not read.
    pub(super) lingers: bool,
    /// The response in flight ends when the client disconnects.
    pub(super) is_open_ended: bool,
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

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Records that bytes of a request have arrived.
    pub(super) fn receive(&mut self) {
        if let Phase::New(_) | Phase::Idle(_) = self.phase {
            self.phase = Phase::Head(Instant::now());
        }
    }

    /// Records that the head of a request is complete; returns the arrival time of its first byte.
    pub(super) fn begin_request(&mut self) -> Instant {
        self.lingers = false;
        match std::mem::replace(&mut self.phase, Phase::Busy) {
            Phase::Head(since) => since,
            // Pipelined: it arrived together with the previous request.
            Phase::New(_) | Phase::Idle(_) | Phase::Busy => Instant::now(),
        }
    }

    /// Records that a request's response has ended.
    pub(super) fn end_request(&mut self) {
        self.phase = Phase::Idle(Instant::now());
        self.is_open_ended = false;
    }

    /// Returns the start of the current phase.
    pub(super) fn since(&self) -> Instant {
        match self.phase {
            Phase::New(since) | Phase::Idle(since) | Phase::Head(since) => since,
            Phase::Busy => Instant::now(),
        }
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
