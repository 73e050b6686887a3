//! A proxy between a node and its PostgreSQL server with controlled faults. It reads the messages of the protocol, so
//! that a fault happens at a certain message or at the response to it, in whatever pieces the bytes arrive.

use std::collections::VecDeque;
use std::io::{BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::Random;

pub(crate) const STAGES: [Stage; 5] =
    [Stage::BeforeSend, Stage::AfterSend, Stage::AfterSendingTwice, Stage::DuringResponse, Stage::AfterResponse];

/// Point of an exchange at which the proxy closes the connection. The needle is a byte string in a message of the
/// client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The server never receives the message.
    BeforeSend,
    /// The server receives the message. The client is disconnected before the response.
    AfterSend,
    /// The same, but the server receives the message twice.
    AfterSendingTwice,
    /// The client receives a part of the first message of the response.
    DuringResponse,
    /// The server has sent its whole response, which the client never receives.
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
        shared.lock().target = Some(target);
        let state = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (state, cuts) = (Arc::clone(&state), state.lock().times_cut);
                if state.lock().ended {
                    return;
                }
                std::thread::spawn(move || state.forward(client, cuts));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and leads new ones to another server.
    #[cfg(feature = "citus")]
    pub(crate) fn redirect(&self, target: SocketAddr) {
        self.cut();
        self.shared.lock().target = Some(target);
        self.heal();
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

    /// Ends a cut, a freeze, delays or the holding of responses, and forwards the bytes that were held back.
    pub(crate) fn heal(&self) {
        let mut state = self.shared.lock();
        (state.mode, state.armed_cut_is_total, state.delays) = (Mode::Open, false, None);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Cuts the next connection on which the client sends a message with these bytes, at this stage. Each call cuts
    /// one connection; several calls take effect one after another.
    pub(crate) fn cut_at(&self, stage: Stage, needle: &'static [u8]) {
        self.shared.lock().armed.push_back(Armed { act: Act::Cut(stage), needle, skipped: 0 });
    }

    /// Cuts the connection on which the client sends the next message, whatever it contains, after a number of others.
    pub(crate) fn cut_after(&self, messages: usize, stage: Stage) {
        self.shared.lock().armed.push_back(Armed { act: Act::Cut(stage), needle: b"", skipped: messages });
    }

    /// Same as `cut_at`, but cuts all connections at that moment, until [`Self::heal`].
    pub(crate) fn cut_all_at(&self, stage: Stage, needle: &'static [u8]) {
        self.shared.lock().armed_cut_is_total = true;
        self.cut_at(stage, needle);
    }

    /// Cuts all connections immediately instead of one at a later message, and accepts new ones.
    pub(crate) fn cut_now(&self) {
        let mut state = self.shared.lock();
        state.cut();
        state.mode = Mode::Open;
        state.armed.clear();
        state.armed_cuts += 1;
    }

    /// Freezes before forwarding a message with these bytes. The server receives it after [`Self::heal`].
    pub(crate) fn freeze_at(&self, needle: &'static [u8]) {
        self.shared.lock().armed.push_back(Armed { act: Act::Freeze, needle, skipped: 0 });
    }

    /// Delays messages of both directions by random times: a tenth of them by milliseconds, and one of 500 by up to `longest`.
    pub(crate) fn delay(&self, random: Random, longest: Duration) {
        self.shared.lock().delays = Some((random, longest));
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.shared.lock().mode == Mode::Frozen
    }

    /// Returns the number of connections that armed cuts have closed so far.
    pub(crate) fn cuts(&self) -> usize {
        self.shared.lock().armed_cuts
    }

    /// Returns the stages of the cuts so far at messages with these bytes.
    pub(crate) fn stages_of_cuts(&self, needle: &[u8]) -> Vec<Stage> {
        let state = self.shared.lock();
        state.cut_messages.iter().filter(|(_, message)| message.contains(needle)).map(|(stage, _)| *stage).collect()
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

struct Armed {
    act: Act,
    needle: &'static [u8],
    /// Number of messages with the needle before the one that is meant.
    skipped: usize,
}

impl Armed {
    fn is_meant(&mut self, message: &Message) -> bool {
        if message.ends_session() || !message.contains(self.needle) {
            return false;
        }
        let is_meant = self.skipped == 0;
        self.skipped = self.skipped.saturating_sub(1);
        is_meant
    }
}

#[derive(Default)]
struct State {
    mode: Mode,
    /// Server that new connections lead to.
    target: Option<SocketAddr>,
    /// Number of cuts so far. A connection that was accepted before a cut is closed even if the proxy has healed
    /// since.
    times_cut: usize,
    pairs: Vec<Arc<ConnectionPair>>,
    armed: VecDeque<Armed>,
    armed_cuts: usize,
    /// Messages at which connections were cut.
    cut_messages: Vec<(Stage, Message)>,
    held_responses: usize,
    /// Random numbers for delays, and the longest delay.
    delays: Option<(Random, Duration)>,
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

    /// Waits for the delay of the next message.
    fn delay(&self) {
        let mut state = self.lock();
        let Some((random, longest)) = &mut state.delays else { return };
        let delay = match random.below(500) {
            0 => longest.mul_f64(f64::from(u16::try_from(random.below(1_000)).expect("small")) / 1_000.0),
            1..50 => Duration::from_micros(random.below(5_000) as u64),
            _ => return,
        };
        drop(state);
        std::thread::park_timeout(delay);
    }

    /// Forwards a connection until it ends. `times_cut` is the number of cuts at the time it was accepted.
    fn forward(self: Arc<Self>, client: TcpStream, times_cut: usize) {
        let state = self.wait_until_not_frozen();
        let Some(target) = state.target.filter(|_| state.mode != Mode::Cut) else { return };
        drop(state);
        let Ok(server) = TcpStream::connect(target) else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let pair =
            Arc::new(ConnectionPair { client, server, closed: AtomicBool::new(false), lost_response: OnceLock::new() });
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
        let mut client = BufReader::new(&pair.client);
        // Number of the response to the next message.
        let mut response = 0;
        loop {
            let message = Message::read(&mut client, response == 0);
            let state = self.wait_until_not_frozen();
            let Some(message) = message.filter(|_| !pair.closed.load(Ordering::SeqCst)) else {
                drop(state);
                let _ = pair.server.shutdown(Shutdown::Write);
                return;
            };
            if message.requests_encryption() {
                let _ = (&pair.client).write_all(b"N");
                continue;
            }
            drop(state);
            self.delay();
            let mut state = self.wait_until_not_frozen();
            // The connection may have been cut during the delay, and the next cut is meant for another one.
            let is_next = !pair.closed.load(Ordering::SeqCst)
                && state.armed.front_mut().is_some_and(|armed| armed.is_meant(&message));
            let act = if is_next { state.armed.pop_front().map(|armed| armed.act) } else { None };
            match act {
                Some(Act::Freeze) => state.mode = Mode::Frozen,
                Some(Act::Cut(point)) => state.cut_messages.push((point, message.clone())),
                None => {}
            }
            drop(state);
            match act {
                Some(Act::Cut(Stage::BeforeSend)) => {
                    self.cut_armed(pair);
                    continue;
                }
                // These marks are set before the message is forwarded, and so before the response can arrive.
                Some(Act::Cut(Stage::AfterSend | Stage::AfterSendingTwice)) => {
                    pair.closed.store(true, Ordering::SeqCst);
                }
                Some(Act::Cut(point)) => pair.lost_response.set((response, point)).expect("one cut"),
                Some(Act::Freeze) => drop(self.wait_until_not_frozen()),
                None => {}
            }
            let is_sent_twice = matches!(act, Some(Act::Cut(Stage::AfterSendingTwice)));
            let bytes = message.bytes.repeat(1 + usize::from(is_sent_twice));
            if (&pair.server).write_all(&bytes).is_err() {
                pair.close();
            }
            if is_sent_twice || matches!(act, Some(Act::Cut(Stage::AfterSend))) {
                self.cut_armed(pair);
            }
            response += usize::from(message.completes_request());
        }
    }

    fn forward_responses(&self, pair: &ConnectionPair) {
        let mut server = BufReader::new(&pair.server);
        let mut response = 0;
        loop {
            let message = Message::read(&mut server, false);
            self.delay();
            self.wait_to_forward_responses();
            let Some(message) = message else {
                if pair.lost_response.get().is_some_and(|(lost, _)| *lost >= response) {
                    self.cut_armed(pair);
                }
                pair.close();
                return;
            };
            let lost = pair.lost_response.get().filter(|(lost, _)| *lost == response);
            let is_lost = lost.is_some();
            if let Some((_, Stage::DuringResponse)) = lost
                && !pair.closed.load(Ordering::SeqCst)
            {
                let _ = (&pair.client).write_all(&message.bytes[..message.bytes.len() / 2]);
                let _ = pair.client.shutdown(Shutdown::Both);
            }
            // After `close`, the rest is read and dropped; see there.
            let is_forwarded = !is_lost && !pair.closed.load(Ordering::SeqCst);
            if is_forwarded && (&pair.client).write_all(&message.bytes).is_err() {
                pair.close();
            }
            if message.completes_response() {
                response += 1;
                if is_lost {
                    self.cut_armed(pair);
                }
            }
        }
    }

    fn cut_armed(&self, pair: &ConnectionPair) {
        let mut state = self.lock();
        // Counted and closed under the lock: a test reads the count as soon as its client is disconnected, and arms the
        // next cut as soon as this one is counted.
        state.armed_cuts += 1;
        pair.close();
        if state.armed_cut_is_total {
            state.cut();
            self.changed.notify_all();
        }
    }
}

/// A message of PostgreSQL's protocol.
#[derive(Clone)]
struct Message {
    /// Type, except of the messages before the start of a session.
    kind: Option<u8>,
    bytes: Vec<u8>,
}

impl Message {
    /// Reads a message; `None` at the end of the stream.
    fn read(stream: &mut impl Read, is_first: bool) -> Option<Self> {
        let head = if is_first { 4 } else { 5 };
        let mut bytes = vec![0; head];
        stream.read_exact(&mut bytes).ok()?;
        let length = bytes.last_chunk().map(|length| u32::from_be_bytes(*length)).expect("a length");
        bytes.resize(head - 4 + usize::try_from(length).expect("a length"), 0);
        stream.read_exact(&mut bytes[head..]).ok()?;
        Some(Self { kind: (!is_first).then_some(bytes[0]), bytes })
    }

    fn contains(&self, needle: &[u8]) -> bool {
        needle.is_empty() || self.bytes.windows(needle.len()).any(|window| window == needle)
    }

    /// Returns true for `Terminate`, to which there is no response.
    fn ends_session(&self) -> bool {
        self.kind == Some(b'X')
    }

    /// Returns true for a request to encrypt the connection, which the proxy declines in place of the server.
    fn requests_encryption(&self) -> bool {
        const TLS: u32 = 80_877_103;
        const GSSAPI: u32 = 80_877_104;
        self.kind.is_none()
            && self.bytes[4..].first_chunk().is_some_and(|code| [TLS, GSSAPI].contains(&u32::from_be_bytes(*code)))
    }

    /// Returns true for the last message of a request, to which the server responds with one `ReadyForQuery`: a
    /// startup, a query or a synchronization. A `COPY FROM` has one synchronization more than responses.
    fn completes_request(&self) -> bool {
        matches!(self.kind, None | Some(b'Q' | b'S'))
    }

    /// Returns true for `ReadyForQuery`, the end of a response.
    fn completes_response(&self) -> bool {
        self.kind == Some(b'Z')
    }
}

/// A client's connection and the proxy's connection to the server.
struct ConnectionPair {
    client: TcpStream,
    server: TcpStream,
    closed: AtomicBool,
    /// Number of the response that the client does not receive, or receives in part. After it, the connection is cut.
    lost_response: OnceLock<(usize, Stage)>,
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
