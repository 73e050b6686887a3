//! Clients retry every write, with its key, until it gets a response, while the service, its database and the network
//! fail at random moments: every write takes effect once, and every client gets a correct response in the end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rstest::rstest;
use sha2::{Digest, Sha256};

use crate::support::{
    Cluster, CompletedWrite, Engine, Fault, History, RetryingClients, STAGES, Server, Stage, Store, TcpProxy, Workload,
    engine_test, runs_on_citus, wait_for, wait_for_writes, wait_until,
};

const QUIET: &[&str] = &["--log-level", "error"];
const COMMIT: &[u8] = b"COMMIT\0";

/// Starts two nodes on PostgreSQL, one on SQLite.
fn nodes(store: &Store) -> Vec<Server> {
    let count = if matches!(store.engine, Engine::Sqlite) { 1 } else { 2 };
    (0..count).map(|_| store.serve(QUIET)).collect()
}

/// Starts a node again on the same address.
fn restart(store: &Store, address: SocketAddr) -> Server {
    let listen = address.to_string();
    Server::start(store.command(&[&["serve", "--no-first-token", "--listen", &listen], QUIET].concat()))
}

struct RetryTest {
    clients: RetryingClients,
    /// Users that read and follow events.
    listers: Workload,
    history: History,
    completed: Vec<CompletedWrite>,
}

impl RetryTest {
    fn on(store: &Store, nodes: &[Server], keys: bool) -> Self {
        // On Citus, these users are on both workers.
        let tokens = ["ada", "ben", "cyd", "dan"].map(|user| store.token(user, &[])).to_vec();
        let nodes: Vec<SocketAddr> = nodes.iter().map(Server::address).collect();
        let clients = RetryingClients { nodes: nodes.clone(), tokens: tokens.clone(), clients: 8, ids: 3, keys };
        let listers = Workload {
            nodes,
            tokens,
            writers: 0,
            listers: 1,
            watchers: 2,
            ids: 3,
            pause: Duration::from_millis(2),
            uses_all_operations: true,
        };
        Self { clients, listers, history: History::new(), completed: Vec::new() }
    }

    /// Runs the writing and the listing clients while `breaking` injects faults, then lists all plants once more.
    fn run(&mut self, breaking: impl FnOnce(&History)) {
        let Self { clients, listers, history, completed } = self;
        let (mut more, _) = listers.run(history, || clients.run(history, || breaking(history)));
        listers.record_final_lists(history);
        completed.append(&mut more);
    }

    /// Checks that each write happened once, and that the stored responses are those that clients got.
    fn check(&self, store: &Store, fault: &Fault) {
        fault.count_history(&self.history.check().unwrap());
        let mut reported: Vec<([u8; 32], i64)> =
            self.completed.iter().map(|completed| (Sha256::digest(&completed.key).into(), completed.number)).collect();
        reported.sort_unstable();
        let reported: Vec<i64> = reported.into_iter().map(|(_, number)| number).collect();
        assert_eq!(store.rows("SELECT outcome FROM idempotency_keys ORDER BY key"), reported);
        let replayed = self.completed.iter().filter(|completed| completed.replayed).count();
        assert!(replayed > 0, "no client had to retry, of {}", self.completed.len());
    }
}

engine_test!(every_write_happens_once_though_the_service_is_killed, |store: &Store| {
    let mut nodes = nodes(store);
    let mut test = RetryTest::on(store, &nodes, true);
    let fault = Fault::on(store.engine, "kill of the service, clients retry", 8);
    test.run(|history| {
        for _ in 0..fault.rounds {
            let mut random = fault.begin_round();
            wait_for_writes(history, 10 + random.below(60));
            let node = random.below(nodes.len());
            nodes[node].kill();
            nodes[node] = restart(store, nodes[node].address());
        }
        wait_for_writes(history, 50);
    });
    test.check(store, &fault);
});

// Control experiment: without keys, the same clients get wrong responses.
engine_test!(without_keys_some_writes_happen_twice, |store: &Store| {
    let nodes = nodes(store);
    let mut test = RetryTest::on(store, &nodes, false);
    let control = Fault::on(store.engine, "retries without keys", 1).into_control();
    wait_for("a violation", || {
        control.begin_round();
        test.run(|history| wait_for_writes(history, 100));
        test.history.check().err()
    });
    control.found_wrong();
});

#[rstest]
#[case::requires_postgres()]
fn every_write_happens_once_though_the_database_is_killed() {
    let cluster = Cluster::start(&[]);
    let store = Store::on(&cluster);
    let nodes = nodes(&store);
    let mut test = RetryTest::on(&store, &nodes, true);
    let fault = Fault::new("kill of PostgreSQL, clients retry", 3);
    test.run(|history| {
        for _ in 0..fault.rounds {
            let mut random = fault.begin_round();
            wait_for_writes(history, 10 + random.below(60));
            cluster.kill();
            cluster.restart();
        }
        wait_for_writes(history, 50);
    });
    test.check(&store, &fault);
}

/// Number of nodes whose connections are cut.
const CUT_NODES: usize = 8;
/// Time after which an idle connection is cut.
const IDLE: Duration = Duration::from_secs(5);

/// Starts a node that reaches each database server, which may be several on Citus, through a proxy of its own.
fn serve_behind_proxies(store: &Store, cluster: &Cluster) -> (Server, Vec<TcpProxy>) {
    let proxies: Vec<TcpProxy> = cluster.servers().map(|server| TcpProxy::start(server.address())).collect();
    let workers = cluster.workers().iter().zip(&proxies[1..]);
    let workers: Vec<String> =
        workers.map(|(worker, proxy)| format!("--worker-address={}={}", worker.address(), proxy.address())).collect();
    let workers: Vec<&str> = workers.iter().map(String::as_str).collect();
    (store.through(&proxies[0]).serve(&[QUIET, &workers].concat()), proxies)
}

/// Cuts connections at any message of the protocol, and delays messages. One of three cuts comes soon, at a message that opens a
/// session, and one at a commit; the others let requests succeed before. On Citus, connections to all servers are cut.
#[rstest]
#[case::requires_postgres()]
fn every_write_happens_once_though_any_message_is_cut_off() {
    let cluster = Cluster::start(&[]);
    let store = Store::distributed(&cluster);
    let (mut nodes, proxies): (Vec<Server>, Vec<Vec<TcpProxy>>) =
        (0..CUT_NODES).map(|_| serve_behind_proxies(&store, &cluster)).unzip();
    nodes.push(store.serve(QUIET));
    let mut test = RetryTest::on(&store, &nodes, true);
    // So many that each node gets requests, although most of the clients wait for a node that has lost its connections.
    (test.clients.clients, test.clients.ids) = (64, 12);
    // On Citus, a round takes longer, and a request needs several connections.
    let (rounds, messages) = if runs_on_citus() { (20, 400) } else { (80, 200) };
    let fault = Fault::new("cut at any message to PostgreSQL, clients retry", rounds).with_more_in_campaign(250);
    let begun = AtomicUsize::new(0);
    let cut_repeatedly = |proxy: &TcpProxy| {
        loop {
            let round = begun.fetch_add(1, Ordering::Relaxed);
            if round >= fault.rounds {
                break;
            }
            let mut random = fault.begin_round();
            let (cuts, start) = (proxy.cuts(), Instant::now());
            let stage = STAGES[round / 3 % STAGES.len()];
            match round % 3 {
                0 => proxy.cut_at(stage, COMMIT),
                1 => proxy.cut_after(random.below(50), stage),
                _ => proxy.cut_after(random.below(messages), stage),
            }
            proxy.delay(random, Duration::from_millis(100));
            wait_until("the proxy to cut the connection", || proxy.cuts() > cuts || start.elapsed() > IDLE);
            if proxy.cuts() == cuts {
                proxy.cut_now();
            }
        }
        proxy.heal();
    };
    test.run(|history| {
        std::thread::scope(|scope| {
            for proxy in proxies.iter().flatten() {
                scope.spawn(|| cut_repeatedly(proxy));
            }
        });
        wait_for_writes(history, 50);
    });
    test.check(&store, &fault);
    let commits: Vec<Stage> = proxies.iter().flatten().flat_map(|proxy| proxy.stages_of_cuts(COMMIT)).collect();
    // On Citus, the connections to the coordinator have few commits.
    let is_cut = STAGES.iter().all(|stage| commits.contains(stage));
    assert!(is_cut || runs_on_citus(), "cuts at commits: {commits:?}");
}

/// After two of three cuts the node can reconnect and look up the outcome of the commit. Every third cut lasts until
/// requests have failed, so that some outcomes stay unknown to the node.
#[rstest]
#[case::requires_postgres()]
fn every_write_happens_once_though_commits_are_cut_off() {
    let cluster = Cluster::start(&[]);
    let store = Store::on(&cluster);
    let proxy = TcpProxy::start(cluster.address());
    let short_timeout = store.through(&proxy).serve(&[QUIET, &["--store-timeout", "500ms"]].concat());
    let nodes = [store.serve(QUIET), short_timeout];
    let failures = |number: &str| nodes[1].log().matches(&format!("\"error\":{number}")).count();
    let mut test = RetryTest::on(&store, &nodes, true);
    let fault = Fault::new("cut of a commit to PostgreSQL, clients retry", 12);
    test.run(|history| {
        for cut in 1..=fault.rounds {
            let mut random = fault.begin_round();
            wait_for_writes(history, 5 + random.below(20));
            let stage = STAGES[random.below(STAGES.len())];
            let before = failures("5030");
            if cut % 3 > 0 {
                proxy.cut_at(stage, COMMIT);
                wait_until("the proxy to cut the connection", || proxy.cuts() == cut);
            } else {
                proxy.cut_all_at(stage, COMMIT);
                wait_until("requests to fail", || failures("5030") > before);
                proxy.heal();
            }
        }
        wait_for_writes(history, 50);
    });
    test.check(&store, &fault);
    assert!(failures("50301") > 0, "no commit had an unknown outcome");
}
