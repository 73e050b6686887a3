//! Stub server in the place of an external service that plantstore calls: with or without TLS, silent or down.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use rustls::{ServerConfig, ServerConnection};

use super::{PATIENCE, wait_for};

/// Byte stream of a connection, with or without TLS.
pub(crate) trait Duplex: Read + Write {}

impl<T: Read + Write> Duplex for T {}

type Speak = dyn Fn(&mut dyn Duplex) -> io::Result<()> + Send + Sync;

/// Server with a port of its own, which can stop and restart on it.
pub(crate) struct StandIn {
    part: Arc<Part>,
    address: SocketAddr,
    serving: Option<JoinHandle<()>>,
}

struct Part {
    tls: Option<Arc<ServerConfig>>,
    speak: Box<Speak>,
    connections: AtomicUsize,
    silent: AtomicBool,
    stopping: AtomicBool,
}

impl StandIn {
    /// Starts a server. `at` gets its URL and returns the function that serves a connection.
    pub(crate) fn start<S>(tls: Option<Arc<ServerConfig>>, at: impl FnOnce(&str) -> S) -> Self
    where
        S: Fn(&mut dyn Duplex) -> io::Result<()> + Send + Sync + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("its address");
        let scheme = if tls.is_some() { "https" } else { "http" };
        let speak = Box::new(at(&format!("{scheme}://{address}")));
        let [silent, stopping] = [false; 2].map(AtomicBool::new);
        let part = Arc::new(Part { tls, speak, connections: AtomicUsize::new(0), silent, stopping });
        let mut stand_in = Self { part, address, serving: None };
        stand_in.serve(listener);
        stand_in
    }

    fn serve(&mut self, listener: TcpListener) {
        let part = Arc::clone(&self.part);
        part.stopping.store(false, Ordering::SeqCst);
        self.serving = Some(std::thread::spawn(move || {
            let mut left_alone = Vec::new();
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                if part.stopping.load(Ordering::SeqCst) {
                    break;
                }
                part.connections.fetch_add(1, Ordering::SeqCst);
                if part.silent.load(Ordering::SeqCst) {
                    left_alone.push(stream);
                } else {
                    // A client that does not trust it disconnects during the handshake.
                    let _ = part.answer(stream);
                }
            }
        }));
    }

    /// Stops listening on its port.
    pub(crate) fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            self.part.stopping.store(true, Ordering::SeqCst);
            let _ = TcpStream::connect(self.address);
            serving.join().expect("its end");
        }
    }

    pub(crate) fn restart(&mut self) {
        self.stop();
        // Meanwhile a connection of another process may have taken the port.
        let listener = wait_for("the port", || TcpListener::bind(self.address).ok());
        self.serve(listener);
    }

    /// Takes connections, and says nothing on them.
    pub(crate) fn be_silent(&self, silent: bool) {
        self.part.silent.store(silent, Ordering::SeqCst);
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.part.connections.load(Ordering::SeqCst)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Part {
    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        match &self.tls {
            None => (self.speak)(&mut stream),
            Some(config) => {
                let connection = ServerConnection::new(Arc::clone(config)).expect("a connection");
                let mut stream = rustls::StreamOwned::new(connection, stream);
                (self.speak)(&mut stream)?;
                stream.conn.send_close_notify();
                stream.flush()
            }
        }
    }
}
