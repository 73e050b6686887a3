//! The process of a command: runtime and log, the signals that end it (SIGINT, SIGTERM, and SIGHUP if its terminal was closed), and
//! its exit code: 0 for success, 1 for failure, 2 for a usage error, and 128 plus the number of a signal that ended it.

use std::fs;
use std::future::poll_fn;
use std::io::{self, Write};
use std::process::ExitCode;
use std::task::Poll;
use std::thread;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tracing::Level;

use super::environment::UsageError;
use super::terminal::{clear_line, print_error};
use plantstore_store::new_file;
use plantstore_telemetry::logging;

pub(super) const USAGE_ERROR_CODE: u8 = 2;

pub(crate) fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    print_error(&format!("{error:#}"));
    ExitCode::from(match error.downcast_ref::<Interrupted>() {
        Some(interrupted) => interrupted.exit_code(),
        None if error.is::<UsageError>() => USAGE_ERROR_CODE,
        None => 1,
    })
}

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

#[derive(Clone, Copy, Debug)]
pub(super) struct EndSignal {
    kind: SignalKind,
    name: &'static str,
}

const END_SIGNALS: [EndSignal; 3] = [
    EndSignal { kind: SignalKind::interrupt(), name: "SIGINT" },
    EndSignal { kind: SignalKind::terminate(), name: "SIGTERM" },
    EndSignal { kind: SignalKind::hangup(), name: "SIGHUP" },
];

#[derive(Debug, thiserror::Error)]
#[error("interrupted by {}{details}", .signal.name)]
pub(super) struct Interrupted {
    pub(super) signal: EndSignal,
    /// The progress of the command, starting with a colon, or empty.
    pub(super) details: String,
}

impl Interrupted {
    /// Returns the exit code that a shell reports for a process that the signal has killed.
    pub(super) fn exit_code(&self) -> u8 {
        u8::try_from(128 + self.signal.kind.as_raw_value()).unwrap_or(1)
    }

    fn end_process(&self) -> ! {
        clear_line();
        let _ = writeln!(io::stderr(), "error: {self}");
        std::process::exit(self.exit_code().into())
    }
}

/// On a signal, removes the partial files of the process and ends it. A file that is already complete stays.
pub(super) fn discard_partial_files_on_end_signal() -> anyhow::Result<()> {
    on_end_signal(|signal| {
        let _discarded = new_file::discard_all();
        Interrupted { signal, details: String::new() }.end_process()
    })
}

/// Resolves at the first signal; another one ends the process at once, with `advice` for the user.
pub(super) fn first_end_signal(advice: &'static str) -> anyhow::Result<impl Future<Output = EndSignal>> {
    let (sender, first) = tokio::sync::oneshot::channel();
    let mut sender = Some(sender);
    on_end_signal(move |signal| match sender.take() {
        Some(sender) => drop(sender.send(signal)),
        None => Interrupted { signal, details: format!(" a second time: {advice}") }.end_process(),
    })?;
    Ok(async move {
        match first.await {
            Ok(signal) => signal,
            // The signal thread has ended, so there will be no signal.
            Err(_) => std::future::pending().await,
        }
    })
}

/// Calls `handle` for every signal, on a thread of its own, because commands block theirs. A signal that was ignored when the
/// process started (by `nohup`, or in the background of a script) stays ignored.
pub(super) fn on_end_signal(mut handle: impl FnMut(EndSignal) + Send + 'static) -> anyhow::Result<()> {
    let runtime = current_thread_runtime()?;
    let mut streams = {
        let _entered = runtime.enter();
        let handled = END_SIGNALS.into_iter().filter(|signal| !is_ignored(signal.kind));
        let listen = |end: EndSignal| {
            let stream = signal(end.kind).with_context(|| format!("cannot listen for {}", end.name))?;
            Ok((end, stream))
        };
        handled.map(listen).collect::<anyhow::Result<Vec<_>>>()?
    };
    let wait = move || {
        runtime.block_on(async {
            loop {
                let next = poll_fn(|context| {
                    let next = streams
                        .iter_mut()
                        .find_map(|(signal, stream)| stream.poll_recv(context).is_ready().then_some(*signal));
                    next.map_or(Poll::Pending, Poll::Ready)
                });
                handle(next.await);
            }
        });
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).context("cannot start")?;
    Ok(())
}

/// Returns true if the process ignores this signal and does not listen for it yet; false without Linux's `/proc`.
pub(super) fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    // The lowest bit is signal 1.
    ignored >> (kind.as_raw_value() - 1) & 1 == 1
}
