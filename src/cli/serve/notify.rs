//! Notifications for systemd (`Type=notify`): ready, alive, stopping.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

/// The service manager of this process, if it expects notifications.
#[derive(Clone)]
pub(super) struct Supervisor(Option<Arc<NotifySocket>>);

struct NotifySocket {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Supervisor {
    /// Opens the socket that `NOTIFY_SOCKET` names.
    pub(super) fn from_environment() -> Self {
        let socket = variable("NOTIFY_SOCKET").and_then(|name| {
            let opened = NotifySocket::open(&name);
            opened
                .inspect_err(
                    |error| tracing::warn!(%error, "cannot open the notification socket of the service manager"),
                )
                .ok()
        });
        Self(socket.map(Arc::new))
    }

    /// Reports that the service is ready and, when `stop` resolves, that it is stopping.
    pub(super) fn ready_until(self, stop: impl Future<Output = ()>) -> impl Future<Output = ()> {
        self.notify("READY=1");
        self.start_watchdog();
        async move {
            stop.await;
            self.notify("STOPPING=1");
        }
    }

    /// Sends keep-alive notifications, if the supervisor expects them. They come from a task, so that they stop if the runtime
    /// hangs.
    fn start_watchdog(&self) {
        let expected = variable("WATCHDOG_USEC").and_then(|text| text.to_str()?.parse().ok());
        let Some(pause) = expected.map(|microseconds: u64| Duration::from_micros(microseconds / 2)) else {
            return;
        };
        if self.0.is_none() || pause.is_zero() {
            return;
        }
        let supervisor = self.clone();
        tokio::spawn(async move {
            loop {
                supervisor.notify("WATCHDOG=1");
                tokio::time::sleep(pause).await;
            }
        });
    }

    fn notify(&self, state: &str) {
        if let Some(notify) = &self.0
            && let Err(error) = notify.socket.send_to_addr(state.as_bytes(), &notify.address)
        {
            tracing::warn!(%error, state, "cannot notify the service manager");
        }
    }
}

impl NotifySocket {
    /// Opens a socket. A name that starts with `@` is an abstract address instead of a file.
    fn open(name: &OsString) -> io::Result<Self> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => abstract_address(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A supervisor that does not read must not block the service.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address })
    }
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

#[expect(clippy::disallowed_methods, reason = "variables of systemd, not options of this program")]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
