//! What systemd is told of the service, if it asks (`Type=notify`): that it is ready, that it lives, that it is stopping.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

/// Whoever supervises this process, or nobody.
#[derive(Clone)]
pub(super) struct Supervisor(Option<Arc<Line>>);

struct Line {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Supervisor {
    /// The supervisor that has started this process, if it wants to be told.
    pub(super) fn of_this_process() -> Self {
        let line = variable("NOTIFY_SOCKET").and_then(|name| {
            let opened = Line::open(&name);
            opened.inspect_err(|error| tracing::warn!(%error, "cannot tell the supervisor anything")).ok()
        });
        Self(line.map(Arc::new))
    }

    /// Tells that requests are taken from now on, and when the signal to stop comes, that it has come.
    pub(super) fn ready_until(self, stop: impl Future<Output = ()>) -> impl Future<Output = ()> {
        self.tell("READY=1");
        self.keep_alive();
        async move {
            stop.await;
            self.tell("STOPPING=1");
        }
    }

    /// Where the supervisor expects it, it hears of us in time as long as the tasks of this process get their turn.
    fn keep_alive(&self) {
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
                supervisor.tell("WATCHDOG=1");
                tokio::time::sleep(pause).await;
            }
        });
    }

    fn tell(&self, state: &str) {
        if let Some(line) = &self.0
            && let Err(error) = line.socket.send_to_addr(state.as_bytes(), &line.address)
        {
            tracing::warn!(%error, state, "cannot tell the supervisor");
        }
    }
}

impl Line {
    /// A name that starts with `@` is one of the abstract kind, which is no file.
    fn open(name: &OsString) -> io::Result<Self> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A supervisor that does not listen must not hold anything up.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address })
    }
}

#[expect(clippy::disallowed_methods, reason = "names that systemd has given; they are no options of ours")]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
