//! A TCP proxy between a node and its database that fails when told to.

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
    links: Vec<Arc<Link>>,
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
        self.links.drain(..).for_each(|link| link.close());
    }
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
                // Both before the answer can come.
                Some((Act::Cut(Stage::AfterSend), _)) => link.closed.store(true, Ordering::SeqCst),
                Some((Act::Cut(Stage::AfterAnswer), _)) => link.answer_cuts.store(true, Ordering::SeqCst),
                Some((Act::Freeze, at)) => {
                    let first = &goes[..at.saturating_sub(before)];
                    goes = &goes[first.len()..];
                    let _ = (&link.server).write_all(first);
                    drop(self.when_moving());
                }
                None => {}
            }
            let sent = (&link.server).write_all(goes);
            if matches!(found, Some((Act::Cut(Stage::BeforeSend | Stage::AfterSend), _))) {
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
        let mut state = self.lock();
        // Counted first: a client that sees the end may read the count at once.
        state.armed_cuts += 1;
        if state.cut_stays {
            state.cut();
            self.changed.notify_all();
        }
        drop(state);
        link.close();
    }
}

/// Number of bytes of a stream that are stored to find needles that arrive in pieces.
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
