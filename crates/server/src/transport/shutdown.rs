//! The phases of a graceful shutdown.

use std::time::Instant;

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ShutdownPhase {
    Running,
    /// Clients are asked to send no more requests; those that they send are served.
    Draining,
    /// No request is in flight, and connections are closed.
    Closing,
}

impl ShutdownPhase {
    /// Resolves when the phase has begun.
    pub(super) async fn reached(self, phase: &mut watch::Receiver<Self>) {
        // Fails only if the sender is dropped, at the end of the shutdown.
        let _ = phase.wait_for(|current| *current >= self).await;
    }
}

/// The outcome of a shutdown.
#[derive(Clone, Copy, Debug)]
pub struct ShutdownOutcome {
    /// Number of connections that were still open at the deadline.
    pub unfinished: usize,
    /// The end of the grace period.
    pub deadline: Instant,
}
