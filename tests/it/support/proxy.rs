//! A TCP proxy between a node and its database that fails when told to.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Where in an exchange an armed cut happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The server never gets the needle whole.
    BeforeSend,
    /// The server gets it, and nobody waits for what it says.
    AfterSend,
    /// The server has said something to it, which the client never gets.
    AfterAnswer,
}

pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    pub(crate) fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port for the proxy");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared::default());
        let state = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (state, cuts) = (Arc::clone(&state), state.lock().times_cut);
                if state.lock().ended {
                    return;
                }
                std::thread::spawn(move || state.carry(client, target, cuts));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and every new one at once.
    pub(crate) fn cut(&self) {
        let mut state = self.shared.lock();
        state.mode = Mode::Cut;
        state.times_cut += 1;
        state.links.drain(..).for_each(|link| link.close());
        self.shared.changed.notify_all();
    }

    /// Connections stay, and new ones are taken, but nothing gets through any more: neither data nor an end.
    pub(crate) fn freeze(&self) {
        self.shared.lock().mode = Mode::Frozen;
    }

    /// Ends a cut or a freeze; what was held back goes on its way.
    pub(crate) fn heal(&self) {
        self.shared.lock().mode = Mode::Open;
        self.shared.changed.notify_all();
    }

    /// The next connection on which the client sends these bytes is cut at this stage; later ones are not.
    pub(crate) fn cut_at(&self, stage: Stage, needle: &'static [u8]) {
        self.shared.lock().armed = Some((stage, needle));
    }

    /// How many connections [`Self::cut_at`] has cut so far.
    pub(crate) fn cuts(&self) -> usize {
        self.shared.lock().armed_cuts
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.shared.lock().ended = true;
        // Wakes the thread that waits for a connection.
        let _ = TcpStream::connect(self.address);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Open,
    Cut,
    Frozen,
}

#[derive(Default)]
struct State {
    mode: Mode,
    /// How often all was cut: tells a connection that it was, even if all is well again.
    times_cut: usize,
    links: Vec<Arc<Link>>,
    armed: Option<(Stage, &'static [u8])>,
    armed_cuts: usize,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, once it is not frozen.
    fn when_moving(&self) -> MutexGuard<'_, State> {
        let frozen = |state: &mut State| state.mode == Mode::Frozen;
        self.changed.wait_while(self.lock(), frozen).unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries a connection that was accepted after so many cuts, until it ends.
    fn carry(self: Arc<Self>, client: TcpStream, target: SocketAddr, times_cut: usize) {
        if self.when_moving().mode == Mode::Cut {
            return;
        }
        let Ok(server) = TcpStream::connect(target) else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let link =
            Arc::new(Link { client, server, closed: AtomicBool::new(false), answer_cuts: AtomicBool::new(false) });
        {
            let mut state = self.lock();
            if state.times_cut != times_cut {
                return;
            }
            state.links.push(Arc::clone(&link));
        }
        let (shared, other) = (Arc::clone(&self), Arc::clone(&link));
        let answers = std::thread::spawn(move || shared.carry_answers(&other));
        self.carry_requests(&link);
        let _ = answers.join();
        self.lock().links.retain(|known| !Arc::ptr_eq(known, &link));
    }

    fn carry_requests(&self, link: &Link) {
        let mut chunk = vec![0; 64 * 1024];
        // The end of what was sent so far: a needle may come in pieces.
        let mut tail = Vec::new();
        loop {
            let length = (&link.client).read(&mut chunk).unwrap_or(0);
            let mut state = self.when_moving();
            if length == 0 || link.closed.load(Ordering::SeqCst) {
                drop(state);
                let _ = link.server.shutdown(Shutdown::Write);
                return;
            }
            let before = tail.len();
            tail.extend_from_slice(&chunk[..length]);
            let found = state.armed.and_then(|(stage, needle)| {
                // Not before the piece that completes it: it may have gone by before this was armed.
                let from = before.saturating_sub(needle.len() - 1);
                let at = tail[from..].windows(needle.len()).position(|window| window == needle)?;
                Some((stage, from + at))
            });
            if found.is_some() {
                state.armed = None;
            }
            drop(state);
            let mut goes = &chunk[..length];
            match found {
                Some((Stage::BeforeSend, at)) => goes = &chunk[..at.saturating_sub(before)],
                // Both before the answer can come.
                Some((Stage::AfterSend, _)) => link.closed.store(true, Ordering::SeqCst),
                Some((Stage::AfterAnswer, _)) => link.answer_cuts.store(true, Ordering::SeqCst),
                None => {}
            }
            let sent = (&link.server).write_all(goes);
            if matches!(found, Some((Stage::BeforeSend | Stage::AfterSend, _))) {
                self.cut_armed(link);
            }
            if sent.is_err() {
                link.close();
            }
            tail.drain(..tail.len().saturating_sub(LONGEST_NEEDLE));
        }
    }

    fn carry_answers(&self, link: &Link) {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            let length = (&link.server).read(&mut chunk).unwrap_or(0);
            drop(self.when_moving());
            if length == 0 {
                link.close();
                return;
            }
            if link.answer_cuts.swap(false, Ordering::SeqCst) {
                self.cut_armed(link);
            }
            // A closed connection is read to its end all the same, see there.
            if !link.closed.load(Ordering::SeqCst) && (&link.client).write_all(&chunk[..length]).is_err() {
                link.close();
            }
        }
    }

    fn cut_armed(&self, link: &Link) {
        // First, so that whoever meets the end finds it counted.
        self.lock().armed_cuts += 1;
        link.close();
    }
}

/// How much of a stream is kept to find needles that come in pieces.
const LONGEST_NEEDLE: usize = 256;

/// The two connections that make one.
struct Link {
    client: TcpStream,
    server: TcpStream,
    closed: AtomicBool,
    /// The server's next bytes are thrown away, and the connection is cut.
    answer_cuts: AtomicBool,
}

impl Link {
    /// Both sides meet the end of the stream. What the server still says is read and dropped: were it left unread, the
    /// kernel would reset the connection, and the server might lose what it was sent before the end.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Write);
    }
}
