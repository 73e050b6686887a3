//! A listener and its connections: the accept loop, with connection limits and graceful shutdown, and one connection from its
//! first byte to its last, plain or TLS.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::connection_state::{Phase, Protocol, Rejection};
use super::handler::{ConnectionEvent, Handler, Peer};
use super::http1::serve_http1;
use super::http2::serve_http2;
use super::state::{ClientAddress, Exceeded, ShutdownOutcome, ShutdownPhase, Transport};
use super::stream::{Socket, Stream, send_last};
use super::tls::Tls;

/// Pause after `accept` has failed, mostly for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// First byte of a TLS handshake record.
const HANDSHAKE: u8 = 22;
/// Maximum number of connections beyond the limit that are sent a response concurrently; further ones are closed without one.
const REJECTIONS_MAX: usize = 64;
/// Size of the kernel's send buffer in bytes; the kernel doubles it for its own bookkeeping. By default Linux lets it grow to
/// 4 MB for a client that does not read.
const KERNEL_SEND_BUFFER: usize = 64 * 1024;

/// Serves the connections of `listener`, with TLS if it is given, until `shutdown` resolves; then accepts no more, finishes
/// the requests in flight and closes all connections, within the grace period of the limits.
pub(crate) async fn serve<H: Handler>(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    transport: &'static Transport,
    handler: &'static H,
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
                let mut opened = transport.open(client.ip());
                if let (Err(exceeded), true) = (&opened, transport.single_requests) {
                    held.close_oldest(client.ip(), *exceeded).await;
                    opened = transport.open(client.ip());
                }
                let peer = Peer { client: client.ip(), transport, handler, phase: phases.clone() };
                match opened {
                    Ok(open) => {
                        let connection = serve_connection(stream, tls.clone(), peer);
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
                    Err(exceeded) => reject(stream, exceeded, &peer, &rejections),
                }
            }
            Err(error) => pause_after(&error).await,
        }
    }
    let deadline = Instant::now() + transport.limits.shutdown_grace;
    drop(listener);
    // First, so that the service is not ready any more when a client learns of the shutdown.
    let requests_finished = transport.requests.idle();
    phase.send_replace(ShutdownPhase::Draining);
    let finish = async {
        requests_finished.await;
        // Idle connections stay open until now, so that a client that is about to send a request gets a response.
        phase.send_replace(ShutdownPhase::Closing);
        transport.connections.idle().await;
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
        sleep(ACCEPT_PAUSE).await;
    }
}

/// Responds to a connection beyond the limit, in a task of its own.
fn reject<H: Handler>(stream: TcpStream, exceeded: Exceeded, peer: &Peer<H>, permits: &Arc<Semaphore>) {
    let Peer { client, transport, handler, .. } = *peer;
    handler.observe(ConnectionEvent::LimitReached(exceeded));
    let Ok(permit) = Arc::clone(permits).try_acquire_owned() else {
        return;
    };
    tokio::spawn(async move {
        let _permit = permit;
        let stream = Stream::Left(Socket::new(stream, transport.limits.write_timeout));
        send_last(stream, &handler.reject(Rejection::Overloaded, client, Instant::now())).await;
    });
}

/// Serves a connection to its end.
async fn serve_connection<H: Handler>(stream: TcpStream, tls: Option<Arc<Tls>>, peer: Peer<H>) {
    // Without it, Nagle's algorithm would delay small responses.
    let _ = stream.set_nodelay(true);
    let _ = set_socket_send_buffer_size(&stream, KERNEL_SEND_BUFFER);
    let transport = peer.transport;
    let mut socket = Socket::new(stream, transport.limits.write_timeout);
    let negotiated = match tls {
        None => {
            let protocol = detect_protocol(&mut socket, &peer).await;
            Some((Stream::Left(socket), protocol))
        }
        // Boxed, because a plain connection does not need the memory.
        Some(tls) => Box::pin(handshake(&tls, socket, &peer)).await,
    };
    match negotiated {
        Some((stream, Protocol::Http1(phase))) => serve_http1(stream, phase, &peer).await,
        Some((stream, Protocol::Http2)) => Box::pin(serve_http2(stream, peer)).await,
        None => {}
    }
}

/// Detects the protocol from the first bytes. HTTP/1.1, with its deadlines, if there are not enough in time.
async fn detect_protocol<H: Handler>(socket: &mut Socket, peer: &Peer<H>) -> Protocol {
    let mut phase = Phase::New(Instant::now());
    let read_preface = async {
        while !peer.transport.single_requests && socket.may_speak_http2() && socket.read_ahead().await {
            if let Phase::New(_) = phase {
                phase = Phase::Head(Instant::now());
            }
        }
    };
    tokio::select! {
        biased;
        () = read_preface => {}
        () = sleep(peer.transport.limits.header_timeout) => {}
        () = ShutdownPhase::Closing.reached(peer.phase.clone()) => {}
    }
    if socket.speaks_http2() { Protocol::Http2 } else { Protocol::Http1(phase) }
}

/// Performs the TLS handshake, within the time limit for the head of a request.
async fn handshake<H: Handler>(tls: &Tls, socket: Socket, peer: &Peer<H>) -> Option<(Stream, Protocol)> {
    let Peer { client, transport, handler, ref phase } = *peer;
    let arrived = Instant::now();
    let fail = || handler.observe(ConnectionEvent::HandshakeFailed);
    let negotiate = async {
        // A client that closes the connection without sending a byte, as TCP health checks do, has not failed.
        let first = socket.first_byte().await?;
        if first != HANDSHAKE {
            fail();
            send_last(Stream::Left(socket), &handler.reject(Rejection::NotEncrypted, client, arrived)).await;
            return None;
        }
        let accepted = tls.accept(socket).await.inspect_err(|error| {
            fail();
            tracing::debug!(%error, %client, "TLS handshake failed");
        });
        accepted.ok()
    };
    tokio::select! {
        negotiated = timeout(transport.limits.header_timeout, negotiate) => negotiated.inspect_err(|_| fail()).ok()?,
        () = ShutdownPhase::Closing.reached(phase.clone()) => None,
    }
}
