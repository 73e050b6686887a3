//! The phases of a graceful shutdown.

use std::time::Instant;

use tokio::sync::watch;

/// The phase that connections act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ShutdownPhase {
    Running,
    /// No new requests are wanted, but they are served.
    Draining,
    /// No request is in flight any more.
    Closing,
}

impl ShutdownPhase {
    /// Resolves when the phase has begun.
    pub(super) async fn reached(self, phase: &mut watch::Receiver<Self>) {
        // The sender is dropped only at the very end.
        let _ = phase.wait_for(|current| *current >= self).await;
    }
}

/// The outcome of a shutdown.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    /// Connections that had not finished at the deadline.
    pub cut: usize,
    /// The end of the grace period.
    pub deadline: Instant,
}
