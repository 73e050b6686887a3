//! When to stop: on a signal, and when the terminal it was started on is gone.

use std::fs;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::signals::is_ignored;

/// Resolves at the first signal to stop, or when the terminal is gone; another signal ends the process at once. To be called
/// before anybody else listens for SIGHUP.
pub(super) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminal = Terminal::of_this_process()?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut next = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let (told, stop) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        tokio::select! {
            () = next() => {}
            () = terminal.gone() => {}
        }
        tracing::info!("stopping: finishing what is in flight; a second signal stops at once");
        let _ = told.send(());
        next().await;
        // An error, because the process waits for those to be written.
        tracing::error!("stopped at once");
        std::process::exit(1);
    });
    Ok(async move {
        let _ = stop.await;
    })
}

/// The terminal that the service was started on, if it was, and is to end with. SIGHUP means two things: that the certificate is
/// to be read again, which [`super::tls`] sees to, and that somebody has closed the window.
struct Terminal {
    hangup: Signal,
    there: bool,
}

impl Terminal {
    fn of_this_process() -> anyhow::Result<Self> {
        // `nohup` and the like have SIGHUP ignored.
        let there = has_terminal() && !is_ignored(SignalKind::hangup());
        let hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        Ok(Self { hangup, there })
    }

    /// Resolves when there was one and it is no more.
    async fn gone(&mut self) {
        while self.hangup.recv().await.is_some() {
            if self.there && !has_terminal() {
                return;
            }
        }
        std::future::pending::<()>().await;
    }
}

/// Whether the process has a terminal, wherever its output goes.
fn has_terminal() -> bool {
    fs::File::open("/dev/tty").is_ok()
}
