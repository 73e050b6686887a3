//! Concurrent writes and lists by several users on several nodes, for a [`History`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::history::{Action, History, Operation, Outcome};
use super::stop::StopOnDrop;
use super::watcher::{TaggedLists, Watcher, Watchers};
use super::{Client, Connection, Response, Stopwatch, wait_for};

/// Timeout of a worker for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after a failure, so that workers do not retry in a busy loop.
const AFTER_FAILURE: Duration = Duration::from_millis(5);

pub(crate) struct Workload {
    pub(crate) nodes: Vec<SocketAddr>,
    /// One token for each user.
    pub(crate) tokens: Vec<String>,
    pub(crate) writers: usize,
    pub(crate) listers: usize,
    /// Number of clients that follow events.
    pub(crate) watchers: usize,
    /// Number of ids of each user: few, so that writers conflict.
    pub(crate) ids: i64,
    /// Pause of each worker after an operation: a history that is to be checked must not grow without bounds.
    pub(crate) pause: Duration,
    /// Clients also replace and read single plants, which the first releases do not offer.
    pub(crate) uses_all_operations: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    /// Number of successful writes.
    pub(crate) acknowledged: usize,
    /// The longest time without the acknowledgement of a write.
    pub(crate) longest_gap: Duration,
    /// The longest wait for a response, including waits that ended without one.
    pub(crate) slowest: Duration,
}

impl Workload {
    /// Runs the workers until `during` returns.
    pub(crate) fn run<T>(&self, history: &History, during: impl FnOnce() -> T) -> (T, Report) {
        let stop = AtomicBool::new(false);
        let start = history.now();
        let lists = TaggedLists::default();
        let watchers: Vec<Watcher> = (0..self.watchers)
            .zip(self.tokens.iter().enumerate().cycle())
            .zip(self.nodes.iter().cycle())
            .map(|((_, (user, token)), node)| Watcher::new(user, token, *node, history, &lists))
            .collect();
        let (result, workers) = std::thread::scope(|scope| {
            let _end = Watchers(&watchers);
            for watcher in &watchers {
                scope.spawn(|| watcher.follow());
            }
            let stop_at_end = StopOnDrop(&stop);
            let stop = &stop;
            let seed = history.seed();
            let workers: Vec<_> = (0..self.writers + self.listers)
                .zip(seed..)
                .map(|(number, seed)| {
                    let mut worker = LoadClient {
                        workload: self,
                        history,
                        lists_read: &lists,
                        next_node: number,
                        lists: number >= self.writers,
                        random: Random::new(seed),
                        known: BTreeMap::new(),
                        acknowledged: Vec::new(),
                        slowest: Duration::ZERO,
                    };
                    scope.spawn(move || {
                        worker.work(stop);
                        worker
                    })
                })
                .collect();
            let result = during();
            drop(stop_at_end);
            let workers: Vec<LoadClient> = workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect();
            watchers.iter().for_each(Watcher::finish);
            (result, workers)
        });
        let mut moments: Vec<Duration> =
            workers.iter().flat_map(|worker| worker.acknowledged.iter().copied()).collect();
        let acknowledged = moments.len();
        moments.extend([start, history.now()]);
        moments.sort();
        let longest_gap = moments.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or_default();
        let slowest = workers.iter().map(|worker| worker.slowest).max().unwrap_or_default();
        (result, Report { acknowledged, longest_gap, slowest })
    }

    /// Records a list of every user from every node: the final state of the store.
    pub(crate) fn record_final_lists(&self, history: &History) {
        for node in &self.nodes {
            for (user, token) in self.tokens.iter().enumerate() {
                let client = Client { address: *node, token: Some(token.clone()) };
                let (called, plants) = wait_for("a list", || {
                    let called = history.now();
                    client.get("/plants?include=id").listed().map(|plants| (called, plants))
                });
                let action = Action::List(Some(plants));
                history.record(Operation { user, called, returned: history.now(), action });
            }
        }
    }
}

struct LoadClient<'a> {
    workload: &'a Workload,
    history: &'a History,
    lists_read: &'a TaggedLists,
    /// Selects the node of the next connection. It differs between workers, so that each node has some of each kind.
    next_node: usize,
    lists: bool,
    random: Random,
    /// Last list of each user and its entity tag, for conditional requests.
    known: BTreeMap<usize, (String, BTreeMap<i64, String>)>,
    /// Times of its acknowledged writes.
    acknowledged: Vec<Duration>,
    slowest: Duration,
}

impl LoadClient<'_> {
    fn work(&mut self, stop: &AtomicBool) {
        let nodes = &self.workload.nodes;
        while !stop.load(Ordering::Relaxed) {
            let node = nodes[self.next_node % nodes.len()];
            self.next_node += 1;
            let Ok(mut connection) = Connection::try_open_with(node, RESPONSE_TIMEOUT) else {
                std::thread::park_timeout(AFTER_FAILURE);
                continue;
            };
            while !stop.load(Ordering::Relaxed) && self.operate(node, &mut connection) {}
        }
    }

    /// Executes one operation. Returns false if the connection cannot be used again.
    fn operate(&mut self, node: SocketAddr, connection: &mut Connection) -> bool {
        let user = self.random.below(self.workload.tokens.len());
        let id = i64::try_from(self.random.below(usize::try_from(self.workload.ids).expect("not negative")))
            .expect("a small number");
        let client = Client { address: node, token: Some(self.workload.tokens[user].clone()) };
        let write = (!self.lists).then(|| {
            let kinds = if self.workload.uses_all_operations { 3 } else { 2 };
            Write::random(&mut self.random, kinds, self.history, user, id)
        });
        let reads_one = self.workload.uses_all_operations && self.random.below(4) == 0;
        let bytes = if let Some(write) = &write {
            write.bytes(&client, id, &[])
        } else if reads_one {
            client.bytes("GET", &format!("/plants/{id}"), &[], None)
        } else {
            let known = self.known.get(&user).map(|(tag, _)| ("If-None-Match", tag.as_str()));
            client.bytes("GET", "/plants?include=id", known.as_slice(), None)
        };
        let called = self.history.now();
        let stopwatch = Stopwatch::start();
        let response = connection.try_send(bytes).and_then(|()| connection.try_read_response(false)).ok();
        let returned = self.history.now();
        self.slowest = self.slowest.max(stopwatch.elapsed());
        let action = match write {
            Some(write) => {
                let outcome = response.as_ref().map_or(Outcome::Unknown, |response| write.outcome(response));
                write.into_action(id, outcome)
            }
            None if reads_one => response.as_ref().map_or(Action::List(None), |response| read_of(id, response)),
            None => Action::List(response.as_ref().and_then(|response| self.list_of(user, response))),
        };
        if action.outcome() == Some(Outcome::Done) {
            self.acknowledged.push(returned);
        }
        self.history.record(Operation { user, called, returned, action });
        let Some(response) = response else { return false };
        let after_failure = if response.status >= 500 { AFTER_FAILURE } else { Duration::ZERO };
        std::thread::park_timeout(self.workload.pause.max(after_failure));
        response.header("connection") != Some("close")
    }
}

impl LoadClient<'_> {
    /// Returns the list of a response: its body, or the last known list for a 304.
    fn list_of(&mut self, user: usize, response: &Response) -> Option<BTreeMap<i64, String>> {
        if response.status == 304 {
            return Some(self.known[&user].1.clone());
        }
        let list = response.listed()?;
        // Lists of 0.2.0 have none.
        if let Some(tag) = response.header("etag") {
            self.lists_read.add(user, tag, &list);
            self.known.insert(user, (tag.to_owned(), list.clone()));
        }
        Some(list)
    }
}

/// Returns the read of one plant that this is the response to.
fn read_of(id: i64, response: &Response) -> Action {
    match response.status {
        200 => Action::Read(id, Some(response.json()["name"].as_str().expect("a name").to_owned())),
        404 => Action::Read(id, None),
        _ => {
            assert_eq!(response.error(), 50300, "{}", response.wire());
            Action::List(None)
        }
    }
}

/// A write of one plant, with its new name.
pub(super) enum Write {
    Create(String),
    Replace(String),
    Delete,
}

impl Write {
    /// Returns one of the first `kinds` kinds of writes.
    pub(super) fn random(random: &mut Random, kinds: usize, history: &History, user: usize, id: i64) -> Self {
        match random.below(kinds) {
            0 => Self::Create(history.name(user, id)),
            1 => Self::Delete,
            _ => Self::Replace(history.name(user, id)),
        }
    }

    /// Returns the bytes of the request.
    pub(super) fn bytes(&self, client: &Client, id: i64, headers: &[(&str, &str)]) -> Vec<u8> {
        let (method, path) = match self {
            Self::Create(_) => ("POST", "/plants".to_owned()),
            Self::Replace(_) => ("PUT", format!("/plants/{id}")),
            Self::Delete => ("DELETE", format!("/plants/{id}")),
        };
        let body = match self {
            Self::Create(name) | Self::Replace(name) => {
                Some(serde_json::json!({ "id": id, "name": name }).to_string().into_bytes())
            }
            Self::Delete => None,
        };
        let headers = [headers, &[("Content-Type", "application/json")]].concat();
        client.bytes(method, &path, &headers, body.as_deref())
    }

    pub(super) fn outcome(&self, response: &Response) -> Outcome {
        let (success, denied) = match self {
            Self::Create(_) => (200, 40900),
            Self::Replace(_) => (200, 40400),
            Self::Delete => (204, 40400),
        };
        if response.status == success {
            return Outcome::Done;
        }
        match response.error() {
            50300 | 50700 => Outcome::Rejected,
            50301 => Outcome::Unknown,
            error if error == denied => Outcome::Denied,
            _ => panic!("unexpected response to a write: {}", response.wire()),
        }
    }

    pub(super) fn into_action(self, id: i64, outcome: Outcome) -> Action {
        match self {
            Self::Create(name) => Action::Create(id, name, outcome),
            Self::Replace(name) => Action::Replace(id, name, outcome),
            Self::Delete => Action::Delete(id, outcome),
        }
    }
}

/// Pseudorandom number generator (`SplitMix64`).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) >> 33).expect("31 bits") % limit
    }
}
