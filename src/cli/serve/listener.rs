//! Listening sockets, and the addresses that options give them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket, lookup_host};

use crate::cli::environment::origin;

/// Connections that may wait to be accepted. The system drops the first packet of those beyond it, and their clients try
/// again only after a second. The system may have a lower maximum (`net.core.somaxconn` on Linux: 4,096 by default).
const BACKLOG: u32 = 4_096;

/// Parses an address to listen on; a port alone means the loopback address.
pub(super) fn listen_address(text: &str) -> Result<String, &'static str> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string());
    }
    let complete = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    let advice = "write HOST:PORT, for example 127.0.0.1:8080, or a port of this machine alone, for example 8080; ports go \
                  up to 65535";
    if complete { Ok(text.to_owned()) } else { Err(advice) }
}

/// Binds an address. `option` is the option that it was given with, for messages.
pub(super) async fn bind(listen: &str, option: &str) -> anyhow::Result<TcpListener> {
    let option = origin(option);
    listen_on_first(listen).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            anyhow::anyhow!("{listen} is in use: stop what listens there, or choose another address with {option}")
        }
        io::ErrorKind::PermissionDenied => {
            anyhow::anyhow!("this user may not listen on {listen}: choose a port above 1023 with {option}")
        }
        io::ErrorKind::AddrNotAvailable => {
            anyhow::anyhow!("this machine has no address {listen}: choose one it has with {option}")
        }
        _ => anyhow::anyhow!("cannot listen on {listen}: {error}; choose another address with {option}"),
    })
}

/// Returns true for an address with port 0, for which the system chooses a free port.
pub(super) fn is_free_port(listen: &str) -> bool {
    listen.ends_with(":0")
}

/// Listens on the first address of `host:port` that can be bound.
async fn listen_on_first(listen: &str) -> io::Result<TcpListener> {
    let mut failed = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in lookup_host(listen).await? {
        match listen_on(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted server can listen at once, although connections of the previous process are still closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
