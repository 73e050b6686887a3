//! The shutdown signal of the service: SIGTERM, SIGINT, or the closing of the terminal that it was started on.

use std::fs;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::signals::is_ignored;

/// Resolves at the first signal to stop, or when the terminal is closed; another signal ends the process at once. Must be called
/// before another part of the process listens for SIGHUP.
pub(super) fn shutdown_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminal = ControllingTerminal::of_this_process()?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut next = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let (sender, stop) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        tokio::select! {
            () = next() => {}
            () = terminal.closed() => {}
        }
        tracing::info!("shutting down: finishing requests in flight; a second signal stops immediately");
        let _ = sender.send(());
        next().await;
        // Logged as an error, because the process waits until errors are written.
        tracing::error!("stopped immediately");
        std::process::exit(1);
    });
    Ok(async move {
        let _ = stop.await;
    })
}

/// The terminal that the service was started on, if any. SIGHUP has two meanings: the certificate is to be read again, which
/// [`super::tls`] does, or the terminal was closed.
struct ControllingTerminal {
    hangup: Signal,
    /// True if the service ends with its terminal.
    attached: bool,
}

impl ControllingTerminal {
    fn of_this_process() -> anyhow::Result<Self> {
        // `nohup` and similar programs make the process ignore SIGHUP.
        let attached = has_terminal() && !is_ignored(SignalKind::hangup());
        let hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        Ok(Self { hangup, attached })
    }

    /// Resolves when the terminal was closed.
    async fn closed(&mut self) {
        while self.hangup.recv().await.is_some() {
            if self.attached && !has_terminal() {
                return;
            }
        }
        std::future::pending::<()>().await;
    }
}

/// Checks that the process has a controlling terminal.
fn has_terminal() -> bool {
    fs::File::open("/dev/tty").is_ok()
}
