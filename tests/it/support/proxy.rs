//! A TCP proxy between a node and its database with controlled faults.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Point of an exchange at which an armed cut happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The server never gets the needle whole.
    BeforeSend,
    /// The server gets the needle, and the client is cut off before the response.
    AfterSend,
    /// The server has sent a response, which the client never gets.
    AfterResponse,
}

pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<SharedState>,
}

impl Proxy {
    pub(crate) fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port for the proxy");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(SharedState::default());
        let state = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (state, cuts) = (Arc::clone(&state), state.lock().times_cut);
                if state.lock().ended {
                    return;
                }
                std::thread::spawn(move || state.forward(client, target, cuts));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and every new one at once.
    pub(crate) fn cut(&self) {
        self.shared.lock().cut();
        self.shared.changed.notify_all();
    }

    /// Connections stay, and new ones are taken, but nothing gets through any more: neither data nor an end.
    pub(crate) fn freeze(&self) {
        self.shared.lock().mode = Mode::Frozen;
    }

    /// Ends a cut or a freeze; what was held back goes on its way.
    pub(crate) fn heal(&self) {
        let mut state = self.shared.lock();
        (state.mode, state.cut_stays) = (Mode::Open, false);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// The next connection on which the client sends these bytes is cut at this stage; later ones are not. Several of
    /// these wait for one another.
    pub(crate) fn cut_at(&self, stage: Stage, needle: &'static [u8]) {
        self.shared.lock().armed.push_back((Act::Cut(stage), needle));
    }

    /// The same, and with that connection everything is cut, until it heals.
    pub(crate) fn cut_for_good_at(&self, stage: Stage, needle: &'static [u8]) {
        self.shared.lock().cut_stays = true;
        self.cut_at(stage, needle);
    }

    /// Freezes when the client is about to send these bytes, which the server does not get until it heals.
    pub(crate) fn freeze_at(&self, needle: &'static [u8]) {
        self.shared.lock().armed.push_back((Act::Freeze, needle));
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.shared.lock().mode == Mode::Frozen
    }

    /// Returns the number of connections that armed cuts have closed so far.
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

/// Action on a connection on which a needle is found.
#[derive(Clone, Copy)]
enum Act {
    Cut(Stage),
    Freeze,
}

#[derive(Default)]
struct State {
    mode: Mode,
    /// Number of cuts so far: a connection that was accepted before one is closed even after healing.
    times_cut: usize,
    pairs: Vec<Arc<ConnectionPair>>,
    armed: VecDeque<(Act, &'static [u8])>,
    armed_cuts: usize,
    /// An armed cut cuts everything.
    cut_stays: bool,
    ended: bool,
}

impl State {
    fn cut(&mut self) {
        self.mode = Mode::Cut;
        self.times_cut += 1;
        self.pairs.drain(..).for_each(|pair| pair.close());
    }
}

#[derive(Default)]
struct SharedState {
    state: Mutex<State>,
    changed: Condvar,
}

impl SharedState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, once it is not frozen.
    fn when_moving(&self) -> MutexGuard<'_, State> {
        let frozen = |state: &mut State| state.mode == Mode::Frozen;
        self.changed.wait_while(self.lock(), frozen).unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries a connection that was accepted after so many cuts, until it ends.
    fn forward(self: Arc<Self>, client: TcpStream, target: SocketAddr, times_cut: usize) {
        if self.when_moving().mode == Mode::Cut {
            return;
        }
        let Ok(server) = TcpStream::connect(target) else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let pair = Arc::new(ConnectionPair {
            client,
            server,
            closed: AtomicBool::new(false),
            cut_on_response: AtomicBool::new(false),
        });
        {
            let mut state = self.lock();
            if state.times_cut != times_cut {
                return;
            }
            state.pairs.push(Arc::clone(&pair));
        }
        let (shared, other) = (Arc::clone(&self), Arc::clone(&pair));
        let responses = std::thread::spawn(move || shared.forward_responses(&other));
        self.forward_requests(&pair);
        let _ = responses.join();
        self.lock().pairs.retain(|known| !Arc::ptr_eq(known, &pair));
    }

    fn forward_requests(&self, pair: &ConnectionPair) {
        let mut chunk = vec![0; 64 * 1024];
        // The end of what was sent so far: a needle may come in pieces.
        let mut tail = Vec::new();
        loop {
            let length = (&pair.client).read(&mut chunk).unwrap_or(0);
            let mut state = self.when_moving();
            if length == 0 || pair.closed.load(Ordering::SeqCst) {
                drop(state);
                let _ = pair.server.shutdown(Shutdown::Write);
                return;
            }
            let before = tail.len();
            tail.extend_from_slice(&chunk[..length]);
            let found = state.armed.front().and_then(|(act, needle)| {
                // Not before the piece that completes it: it may have gone by before this was armed.
                let from = before.saturating_sub(needle.len() - 1);
                let at = tail[from..].windows(needle.len()).position(|window| window == *needle)?;
                Some((*act, from + at))
            });
            if found.is_some() {
                state.armed.pop_front();
            }
            if matches!(found, Some((Act::Freeze, _))) {
                state.mode = Mode::Frozen;
            }
            drop(state);
            let mut goes = &chunk[..length];
            match found {
                Some((Act::Cut(Stage::BeforeSend), at)) => goes = &chunk[..at.saturating_sub(before)],
                // Both before the response can come.
                Some((Act::Cut(Stage::AfterSend), _)) => pair.closed.store(true, Ordering::SeqCst),
                Some((Act::Cut(Stage::AfterResponse), _)) => pair.cut_on_response.store(true, Ordering::SeqCst),
                Some((Act::Freeze, at)) => {
                    let first = &goes[..at.saturating_sub(before)];
                    goes = &goes[first.len()..];
                    let _ = (&pair.server).write_all(first);
                    drop(self.when_moving());
                }
                None => {}
            }
            let sent = (&pair.server).write_all(goes);
            if matches!(found, Some((Act::Cut(Stage::BeforeSend | Stage::AfterSend), _))) {
                self.cut_armed(pair);
            }
            if sent.is_err() {
                pair.close();
            }
            tail.drain(..tail.len().saturating_sub(LONGEST_NEEDLE));
        }
    }

    fn forward_responses(&self, pair: &ConnectionPair) {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            let length = (&pair.server).read(&mut chunk).unwrap_or(0);
            drop(self.when_moving());
            if length == 0 {
                pair.close();
                return;
            }
            if pair.cut_on_response.swap(false, Ordering::SeqCst) {
                self.cut_armed(pair);
            }
            // A closed connection is read to its end all the same, see there.
            if !pair.closed.load(Ordering::SeqCst) && (&pair.client).write_all(&chunk[..length]).is_err() {
                pair.close();
            }
        }
    }

    fn cut_armed(&self, pair: &ConnectionPair) {
        let mut state = self.lock();
        // Counted first: a client that sees the end may read the count at once.
        state.armed_cuts += 1;
        if state.cut_stays {
            state.cut();
            self.changed.notify_all();
        }
        drop(state);
        pair.close();
    }
}

/// Number of bytes of a stream that are stored to find needles that arrive in pieces.
const LONGEST_NEEDLE: usize = 256;

/// The two connections that make one.
struct ConnectionPair {
    client: TcpStream,
    server: TcpStream,
    closed: AtomicBool,
    /// The server's next bytes are thrown away, and the connection is cut.
    cut_on_response: AtomicBool,
}

impl ConnectionPair {
    /// Both sides see the end of the stream. Further bytes of the server are read and dropped: were they left unread, the
    /// kernel would reset the connection, and the server might lose what it was sent before the end.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Write);
    }
}
