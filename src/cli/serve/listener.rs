//! Listening sockets.

use std::io;

use tokio::net::TcpListener;

use crate::cli::environment::origin;

/// Binds an address. `option` is the option that it was given with, for messages.
pub(super) async fn bind(listen: &str, option: &str) -> anyhow::Result<TcpListener> {
    let option = origin(option);
    TcpListener::bind(listen).await.map_err(|error| match error.kind() {
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
