//! Start and end of the service: the signals that end it (SIGTERM, SIGINT, or the closing of the terminal that it was started on),
//! and notifications for systemd (`Type=notify`): ready, alive, stopping.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::environment::variable;
use crate::cli::process::is_ignored;

const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Resolves at the first signal to stop, or when the terminal that the service was started on is closed; another signal ends the
/// process at once. SIGHUP has two meanings: the terminal was closed, or the certificate is to be read again, which [`super::tls`]
/// does. Must be called before another part of the process listens for SIGHUP.
pub(super) fn shutdown_signal() -> anyhow::Result<impl Future<Output = ()>> {
    // `nohup` and similar programs make the process ignore SIGHUP.
    let ends_with_terminal = has_terminal() && !is_ignored(SignalKind::hangup());
    let mut hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
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
        loop {
            tokio::select! {
                () = next() => break,
                Some(()) = hangup.recv() => if ends_with_terminal && !has_terminal() { break },
            }
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

fn has_terminal() -> bool {
    fs::File::open("/dev/tty").is_ok()
}

/// Reports to the service manager that the service is ready and alive and, when `stop` resolves, that it is stopping.
pub(super) fn notify_until(stop: impl Future<Output = ()>) -> impl Future<Output = ()> {
    notify("READY=1");
    start_watchdog();
    async move {
        stop.await;
        notify("STOPPING=1");
    }
}

/// Sends keep-alive notifications, if they are expected. They come from a task, so that they stop if the runtime hangs.
fn start_watchdog() {
    let expected = variable("WATCHDOG_USEC").and_then(|text| text.to_str()?.parse().ok());
    let pause = Duration::from_micros(expected.unwrap_or(0) / 2);
    if pause.is_zero() || variable(NOTIFY_SOCKET).is_none() {
        return;
    }
    tokio::spawn(async move {
        loop {
            notify("WATCHDOG=1");
            tokio::time::sleep(pause).await;
        }
    });
}

fn notify(state: &str) {
    if let Some(socket) = variable(NOTIFY_SOCKET)
        && let Err(error) = send(&socket, state)
    {
        tracing::warn!(%error, state, "cannot notify the service manager");
    }
}

/// Sends a datagram to a socket. A name that starts with `@` is an abstract address instead of a file.
fn send(name: &OsStr, text: &str) -> io::Result<usize> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => abstract_address(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not block the service.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(text.as_bytes(), &address)
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt as _;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_: &[u8]) -> io::Result<SocketAddr> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "only Linux has abstract socket addresses"))
}
