//! Stub server in the place of an external service that plantstore calls: with or without TLS, silent or down.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use rustls::{ServerConfig, ServerConnection};

use super::{TIMEOUT, wait_for};

/// Byte stream of a connection, with or without TLS.
pub(crate) trait Duplex: Read + Write {}

impl<T: Read + Write> Duplex for T {}

type Serve = dyn Fn(&mut dyn Duplex) -> io::Result<()> + Send + Sync;

/// Server with its own port, which can stop and restart on it.
pub(crate) struct StubServer {
    state: Arc<StubState>,
    address: SocketAddr,
    serving: Option<JoinHandle<()>>,
}

struct StubState {
    tls: Option<Arc<ServerConfig>>,
    serve_connection: Box<Serve>,
    connections: AtomicUsize,
    silent: AtomicBool,
    stopping: AtomicBool,
}

impl StubServer {
    /// Starts a server. `at` gets its URL and returns the function that serves a connection.
    pub(crate) fn start<S>(tls: Option<Arc<ServerConfig>>, at: impl FnOnce(&str) -> S) -> Self
    where
        S: Fn(&mut dyn Duplex) -> io::Result<()> + Send + Sync + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("a local address");
        let scheme = if tls.is_some() { "https" } else { "http" };
        let serve_connection = Box::new(at(&format!("{scheme}://{address}")));
        let [silent, stopping] = [false; 2].map(AtomicBool::new);
        let state = Arc::new(StubState { tls, serve_connection, connections: AtomicUsize::new(0), silent, stopping });
        let mut stub = Self { state, address, serving: None };
        stub.serve(listener);
        stub
    }

    fn serve(&mut self, listener: TcpListener) {
        let state = Arc::clone(&self.state);
        state.stopping.store(false, Ordering::SeqCst);
        self.serving = Some(std::thread::spawn(move || {
            let mut silent_connections = Vec::new();
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                if state.stopping.load(Ordering::SeqCst) {
                    break;
                }
                state.connections.fetch_add(1, Ordering::SeqCst);
                if state.silent.load(Ordering::SeqCst) {
                    silent_connections.push(stream);
                } else {
                    // A client that does not trust the certificate disconnects during the handshake.
                    let _ = state.serve(stream);
                }
            }
        }));
    }

    /// Stops listening on its port.
    pub(crate) fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            self.state.stopping.store(true, Ordering::SeqCst);
            let _ = TcpStream::connect(self.address);
            serving.join().expect("the accepting thread ends");
        }
    }

    pub(crate) fn restart(&mut self) {
        self.stop();
        // A connection of another process may use the port meanwhile.
        let listener = wait_for("the port to be free", || TcpListener::bind(self.address).ok());
        self.serve(listener);
    }

    /// Accepts connections and sends nothing on them.
    pub(crate) fn be_silent(&self, silent: bool) {
        self.state.silent.store(silent, Ordering::SeqCst);
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

impl Drop for StubServer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl StubState {
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        match &self.tls {
            None => (self.serve_connection)(&mut stream),
            Some(config) => {
                let connection = ServerConnection::new(Arc::clone(config)).expect("a connection");
                let mut stream = rustls::StreamOwned::new(connection, stream);
                (self.serve_connection)(&mut stream)?;
                stream.conn.send_close_notify();
                stream.flush()
            }
        }
    }
}
