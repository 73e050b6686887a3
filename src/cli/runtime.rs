//! The runtime and the log of commands other than `serve`.

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};
use tracing::Level;

use plantstore_telemetry::logging;

pub(super) fn current_thread_runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("cannot start")
}

/// Runs a command to its end on this thread.
pub(super) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    current_thread_runtime()?.block_on(work)
}

/// Logs warnings and errors in the human-readable format until the guard is dropped.
pub(super) fn start_log() -> logging::Guard {
    logging::start(logging::Format::Human, Level::WARN)
}
