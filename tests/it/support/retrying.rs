//! Clients that retry every write until it gets a response, and sometimes disconnect before it does.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::history::{History, Operation};
use super::stop::StopOnDrop;
use super::workload::Write;
use super::{Client, Connection, Random, Response, TIMEOUT};

/// Timeout of a client for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(5);
/// A proxy between client and service sends one of this many requests with a key twice.
const DUPLICATE_ONE_IN: usize = 8;
/// The client disconnects right after sending in one of this many attempts.
const DISCONNECT_ONE_IN: usize = 8;

pub(crate) struct RetryingClients {
    pub(crate) nodes: Vec<SocketAddr>,
    /// One token for each user.
    pub(crate) tokens: Vec<String>,
    pub(crate) clients: usize,
    /// Number of ids of each user: few, so that a duplicate write is noticed.
    pub(crate) ids: i64,
    /// Sends an idempotency key with each write, the same in all of its attempts.
    pub(crate) keys: bool,
}

/// A write and the response that it ended with.
pub(crate) struct CompletedWrite {
    pub(crate) key: String,
    /// Status of a success, or error code.
    pub(crate) number: i64,
    pub(crate) replayed: bool,
}

impl RetryingClients {
    /// Runs the clients until `during` returns and every write has a response.
    pub(crate) fn run(&self, history: &History, during: impl FnOnce()) -> Vec<CompletedWrite> {
        let stop = AtomicBool::new(false);
        let tries = AtomicUsize::new(0);
        let seed = history.seed();
        std::thread::scope(|scope| {
            let stop_at_end = StopOnDrop(&stop);
            let clients: Vec<_> = (0..self.clients)
                .zip(seed..)
                .map(|(number, seed)| {
                    let mut work = RetryingClient {
                        all: self,
                        history,
                        tries: &tries,
                        random: Random::new(seed),
                        connection: None,
                    };
                    let stop = &stop;
                    scope.spawn(move || {
                        let mut completed = Vec::new();
                        while !stop.load(Ordering::Relaxed) {
                            let key = format!("{seed:x}-{number}-{}", completed.len());
                            completed.push(work.write(key));
                        }
                        completed
                    })
                })
                .collect();
            during();
            drop(stop_at_end);
            let join = |client: std::thread::ScopedJoinHandle<'_, Vec<CompletedWrite>>| {
                client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            clients.into_iter().flat_map(join).collect()
        })
    }
}

struct RetryingClient<'a> {
    all: &'a RetryingClients,
    history: &'a History,
    /// Number of attempts of all clients. It selects the node of the next connection.
    tries: &'a AtomicUsize,
    random: Random,
    connection: Option<(SocketAddr, Connection)>,
}

impl RetryingClient<'_> {
    /// Sends one write until it gets a response.
    fn write(&mut self, key: String) -> CompletedWrite {
        let user = self.random.below(self.all.tokens.len());
        let id = i64::try_from(self.random.below(usize::try_from(self.all.ids).expect("not negative")))
            .expect("a small number");
        let write = Write::random(&mut self.random, 3, self.history, user, id);
        let called = self.history.now();
        let response = loop {
            assert!(self.history.now() < called + 4 * TIMEOUT, "no response to {key}");
            if let Some(response) = self.try_once(user, id, &write, &key) {
                break response;
            }
            std::thread::park_timeout(PAUSE);
        };
        let number = if response.status < 300 { response.status.into() } else { response.error() };
        let outcome = write.outcome(&response);
        let action = write.into_action(id, outcome);
        self.history.record(Operation { user, called, returned: self.history.now(), action });
        CompletedWrite { key, number, replayed: response.header("idempotency-replayed").is_some() }
    }

    /// Sends a write once. Returns `None` if its outcome is unknown.
    fn try_once(&mut self, user: usize, id: i64, write: &Write, key: &str) -> Option<Response> {
        let (node, mut connection) = self.connection.take().or_else(|| self.connect())?;
        let client = Client { address: node, token: Some(self.all.tokens[user].clone()) };
        let key = self.all.keys.then_some(("Idempotency-Key", key));
        let bytes = write.bytes(&client, id, key.as_slice());
        let is_duplicated = key.is_some() && self.random.below(DUPLICATE_ONE_IN) == 0;
        let mut duplicate = is_duplicated.then(|| self.connect()).flatten();
        if let Some((_, connection)) = &mut duplicate {
            let _ = connection.try_send(&bytes);
        }
        connection.try_send(bytes).ok()?;
        if self.random.below(DISCONNECT_ONE_IN) == 0 {
            return None;
        }
        let response = connection.try_read_response(false).ok()?;
        if response.status >= 500 || (response.status == 409 && response.error() == 40901) {
            return None;
        }
        if response.header("connection") != Some("close") {
            self.connection = Some((node, connection));
        }
        Some(response)
    }

    fn connect(&self) -> Option<(SocketAddr, Connection)> {
        let nodes = &self.all.nodes;
        let node = nodes[self.tries.fetch_add(1, Ordering::Relaxed) % nodes.len()];
        Connection::try_open_with(node, RESPONSE_TIMEOUT).ok().map(|connection| (node, connection))
    }
}
