//! Reasons for which the transport rejects a request.

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
