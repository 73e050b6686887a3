//! Reasons for which the transport rejects a request.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    Malformed,
    HeadTimeout,
    HeadTooLarge,
    /// The announced length of the body is too large to be read.
    BodyTooLarge,
    TransferEncoding,
    /// Too many requests are in flight, or too many connections are open.
    Overloaded,
    /// Plain HTTP on a port that speaks TLS.
    NotEncrypted,
}
