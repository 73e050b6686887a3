//! A TCP proxy between a node and its database with controlled faults.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Point of an exchange at which the proxy closes the connection. The needle is a byte string that the client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The server never receives the whole needle.
    BeforeSend,
    /// The server receives the needle. The client is disconnected before the response.
    AfterSend,
    /// The server has sent a response, which the client never receives.
    AfterResponse,
}

pub(crate) struct TcpProxy {
    address: SocketAddr,
    shared: Arc<SharedState>,
}

impl TcpProxy {
    pub(crate) fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port for the proxy");
        let address = listener.local_addr().expect("a local address");
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

    /// Closes all connections, and each new one immediately.
    pub(crate) fn cut(&self) {
        self.shared.lock().cut();
        self.shared.changed.notify_all();
    }

    /// Forwards neither data nor the end of a stream any more. Connections stay open, and new ones are accepted.
    pub(crate) fn freeze(&self) {
        self.shared.lock().mode = Mode::Frozen;
    }

    /// Forwards requests, and holds the responses of the server back.
    pub(crate) fn hold_responses(&self) {
        self.shared.lock().mode = Mode::HoldingResponses;
    }

    /// Returns the number of connections with responses that are held back.
    pub(crate) fn held_responses(&self) -> usize {
        self.shared.lock().held_responses
    }

    /// Ends a cut, a freeze or the holding of responses, and forwards the bytes that were held back.
    pub(crate) fn heal(&self) {
        let mut state = self.shared.lock();
        (state.mode, state.armed_cut_is_total) = (Mode::Open, false);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Cuts the next connection on which the client sends these bytes, at this stage. Each call cuts one connection;
    /// several calls take effect one after another.
    pub(crate) fn cut_at(&self, stage: Stage, needle: &'static [u8]) {
        self.shared.lock().armed.push_back((Act::Cut(stage), needle));
    }

    /// Same as `cut_at`, but cuts all connections at that moment, until [`Self::heal`].
    pub(crate) fn cut_all_at(&self, stage: Stage, needle: &'static [u8]) {
        self.shared.lock().armed_cut_is_total = true;
        self.cut_at(stage, needle);
    }

    /// Freezes before forwarding these bytes. The server receives them after [`Self::heal`].
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

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.cut();
        self.shared.lock().ended = true;
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Open,
    Cut,
    Frozen,
    HoldingResponses,
}

/// Action on the connection on which a needle is found.
#[derive(Clone, Copy)]
enum Act {
    Cut(Stage),
    Freeze,
}

#[derive(Default)]
struct State {
    mode: Mode,
    /// Number of cuts so far. A connection that was accepted before a cut is closed even if the proxy has healed since.
    times_cut: usize,
    pairs: Vec<Arc<ConnectionPair>>,
    armed: VecDeque<(Act, &'static [u8])>,
    armed_cuts: usize,
    held_responses: usize,
    /// The next armed cut closes all connections.
    armed_cut_is_total: bool,
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

    /// Waits while the proxy is frozen, and returns the state.
    fn wait_until_not_frozen(&self) -> MutexGuard<'_, State> {
        let frozen = |state: &mut State| state.mode == Mode::Frozen;
        self.changed.wait_while(self.lock(), frozen).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while responses are not forwarded.
    fn wait_to_forward_responses(&self) {
        let held = |state: &mut State| matches!(state.mode, Mode::Frozen | Mode::HoldingResponses);
        let mut state = self.lock();
        state.held_responses += 1;
        let mut state = self.changed.wait_while(state, held).unwrap_or_else(PoisonError::into_inner);
        state.held_responses -= 1;
    }

    /// Forwards a connection until it ends. `times_cut` is the number of cuts at the time it was accepted.
    fn forward(self: Arc<Self>, client: TcpStream, target: SocketAddr, times_cut: usize) {
        if self.wait_until_not_frozen().mode == Mode::Cut {
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
        // The last bytes sent so far, because a needle may arrive in several pieces.
        let mut tail = Vec::new();
        loop {
            let length = (&pair.client).read(&mut chunk).unwrap_or(0);
            let mut state = self.wait_until_not_frozen();
            if length == 0 || pair.closed.load(Ordering::SeqCst) {
                drop(state);
                let _ = pair.server.shutdown(Shutdown::Write);
                return;
            }
            let before = tail.len();
            tail.extend_from_slice(&chunk[..length]);
            let found = state.armed.front().and_then(|(act, needle)| {
                // A match must end in the new bytes: an earlier one was sent before the fault was armed.
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
            let mut forwarded = &chunk[..length];
            match found {
                Some((Act::Cut(Stage::BeforeSend), at)) => forwarded = &chunk[..at.saturating_sub(before)],
                // These flags are set before the request is forwarded, and so before the response can arrive.
                Some((Act::Cut(Stage::AfterSend), _)) => pair.closed.store(true, Ordering::SeqCst),
                Some((Act::Cut(Stage::AfterResponse), _)) => pair.cut_on_response.store(true, Ordering::SeqCst),
                Some((Act::Freeze, at)) => {
                    let first = &forwarded[..at.saturating_sub(before)];
                    forwarded = &forwarded[first.len()..];
                    let _ = (&pair.server).write_all(first);
                    drop(self.wait_until_not_frozen());
                }
                None => {}
            }
            let sent = (&pair.server).write_all(forwarded);
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
            self.wait_to_forward_responses();
            if length == 0 {
                pair.close();
                return;
            }
            if pair.cut_on_response.swap(false, Ordering::SeqCst) {
                self.cut_armed(pair);
            }
            // After `close`, the rest is read and dropped; see there.
            if !pair.closed.load(Ordering::SeqCst) && (&pair.client).write_all(&chunk[..length]).is_err() {
                pair.close();
            }
        }
    }

    fn cut_armed(&self, pair: &ConnectionPair) {
        let mut state = self.lock();
        // Counted before the close, because a test may read the count as soon as its client is disconnected.
        state.armed_cuts += 1;
        if state.armed_cut_is_total {
            state.cut();
            self.changed.notify_all();
        }
        drop(state);
        pair.close();
    }
}

/// Number of bytes of a stream that are buffered to find needles that arrive in pieces.
const LONGEST_NEEDLE: usize = 256;

/// A client's connection and the proxy's connection to the server.
struct ConnectionPair {
    client: TcpStream,
    server: TcpStream,
    closed: AtomicBool,
    /// Drop the server's next bytes and cut the connection.
    cut_on_response: AtomicBool,
}

impl ConnectionPair {
    /// Ends the stream for both sides. Further bytes of the server are read and dropped: if they stayed unread, the
    /// kernel would reset the connection, and the server might lose bytes that it has not read yet.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Write);
    }
}
