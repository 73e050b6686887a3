//! The accept loop of a listener, with connection limits and graceful shutdown.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use super::client_address::ClientAddress;
use super::connection::serve_connection;
use super::connection_limit::Exceeded;
use super::handler::{ConnectionEvent, Handler};
use super::rejection::Rejection;
use super::shutdown::{ShutdownOutcome, ShutdownPhase};
use super::socket::Socket;
use super::state::Transport;
use super::stream::Stream;
use super::tls::Tls;

/// Pause after `accept` has failed, mostly for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of connections beyond the limit that are sent a response concurrently; further ones are closed without one.
const REJECTIONS_MAX: usize = 64;

/// Serves the connections of `listener`, with TLS if it is given, until `shutdown` resolves; then accepts no more, finishes
/// the requests in flight and closes all connections, within the grace period of the limits.
pub(crate) async fn serve<H: Handler>(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    transport: &'static Transport,
    handler: Arc<H>,
    shutdown: impl Future<Output = ()>,
) -> ShutdownOutcome {
    let rejections = Arc::new(Semaphore::new(REJECTIONS_MAX));
    let (phase, phases) = watch::channel(ShutdownPhase::Running);
    let mut shutdown = pin!(shutdown);
    let mut held = HeldConnections::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, client)) => {
                let open = || transport.connections.open(client.ip(), transport.connections_from(client.ip()));
                let mut opened = open();
                if let (Err(exceeded), true) = (&opened, transport.single_requests) {
                    held.close_oldest(client.ip(), *exceeded).await;
                    opened = open();
                }
                match opened {
                    Ok(open) => {
                        let handler = handler.for_connection();
                        let connection =
                            serve_connection(stream, client.ip(), tls.clone(), transport, handler, phases.clone());
                        let task = tokio::spawn(async move {
                            connection.await;
                            drop(open);
                        });
                        if transport.single_requests {
                            held.add(client.ip(), task);
                        }
                    }
                    // Over TLS the connection is closed without a response, because there is no capacity for a handshake.
                    Err(exceeded) if tls.is_some() => handler.observe(ConnectionEvent::LimitReached(exceeded)),
                    Err(exceeded) => reject(stream, client.ip(), exceeded, transport, &handler, &rejections),
                }
            }
            Err(error) => pause_after(&error).await,
        }
    }
    let deadline = Instant::now() + transport.limits.shutdown_grace;
    drop(listener);
    transport.requests.start_draining();
    phase.send_replace(ShutdownPhase::Draining);
    let finish = async {
        transport.requests.idle().await;
        // Idle connections stay open until now, so that a client that is about to send a request gets a response.
        phase.send_replace(ShutdownPhase::Closing);
        transport.connections.all_closed().await;
    };
    let finished = tokio::time::timeout_at(deadline.into(), finish).await.is_ok();
    ShutdownOutcome { unfinished: if finished { 0 } else { transport.connections.count() }, deadline }
}

/// The open connections of a listener for single requests, from the oldest to the newest.
#[derive(Default)]
struct HeldConnections(VecDeque<(ClientAddress, JoinHandle<()>)>);

impl HeldConnections {
    fn add(&mut self, client: IpAddr, task: JoinHandle<()>) {
        self.0.retain(|(_, task)| !task.is_finished());
        self.0.push_back((client.into(), task));
    }

    /// Closes the oldest connection that counts towards the limit that one more of this client would exceed.
    async fn close_oldest(&mut self, client: IpAddr, exceeded: Exceeded) {
        let counts = |address| exceeded == Exceeded::Total || address == ClientAddress::from(client);
        let oldest = self.0.iter().position(|(address, task)| counts(*address) && !task.is_finished());
        if let Some((_, task)) = oldest.and_then(|oldest| self.0.remove(oldest)) {
            task.abort();
            let _ = task.await;
        }
    }
}

/// Pauses after an error that is not caused by a single client.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::warn!(%error, "cannot accept a connection");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// Responds to a connection beyond the limit, in a task of its own.
fn reject<H: Handler>(
    stream: TcpStream,
    client: IpAddr,
    exceeded: Exceeded,
    transport: &'static Transport,
    handler: &Arc<H>,
    permits: &Arc<Semaphore>,
) {
    handler.observe(ConnectionEvent::LimitReached(exceeded));
    let Ok(permit) = Arc::clone(permits).try_acquire_owned() else {
        return;
    };
    let handler = Arc::clone(handler);
    tokio::spawn(async move {
        let _permit = permit;
        let stream = Stream::Plain(Socket::new(stream, transport.limits.write_timeout));
        stream.send_last(&handler.reject(Rejection::Overloaded, client, Instant::now())).await;
    });
}
