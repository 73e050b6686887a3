//! Faults with several nodes on one database: the database is killed, frozen or unreachable, connections break during
//! commits, and nodes are lost. Acknowledged writes stay, no response is wrong, and the service recovers by itself.

mod balancer;
mod commits;
mod database;
mod network;
mod nodes;
mod upgrade;
#[cfg(feature = "citus")]
mod workers;

use std::time::Duration;

use crate::support::tools::succeed;
use crate::support::{
    Client, Cluster, Fault, History, Response, Server, Stopwatch, Store, Summary, TcpProxy, Workload,
    retry_while_unavailable, wait_for_writes, wait_until,
};

/// Nodes log warnings only, which are shown if the test fails.
const QUIET: &[&str] = &["--log-level", "warn"];
/// For nodes that lose their database: the default timeout of the service. On a busy machine, other requests may miss
/// it, too.
const SHORT_TIMEOUT: &[&str] = &["--log-level", "warn", "--store-timeout", "2s"];
/// Longest time for a response, in any state of the database: several times the store timeout, for a busy machine.
const RESPONSE_LIMIT: Duration = Duration::from_secs(10);
/// Longest time until a node is ready after the database is available again. `scripts/failover` measures how long it takes.
const RECOVERY_LIMIT: Duration = Duration::from_secs(20);
/// Time limit of a writer that has begun, even if no request waits for it any more.
const LAST_ATTEMPT: Duration = Duration::from_millis(2_300);

/// The statements that begin and end a transaction in the bytes of the protocol.
const BEGIN: &[u8] = b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE\0";
const COMMIT: &[u8] = b"COMMIT\0";

/// Returns a workload of three users with few ids on all nodes.
fn load(store: &Store, nodes: &[Server]) -> Workload {
    load_by(env!("CARGO_BIN_EXE_plantstore"), store, nodes)
}

/// The same, with tokens that this program creates.
fn load_by(program: &str, store: &Store, nodes: &[Server]) -> Workload {
    // Releases before 0.5.0 have no `--create`.
    let help = succeed(&mut store.command_of(&[program], &["token", "create", "--help"]));
    let create_user = if help.contains("--create") { &["--create"][..] } else { &[] };
    let create = |user| store.command_of(&[program], &[&["token", "create", "--user", user], create_user].concat());
    let tokens = ["ada", "ben", "cyd"].map(|user| succeed(&mut create(user)).trim_end().to_owned()).to_vec();
    Workload {
        nodes: nodes.iter().map(Server::address).collect(),
        tokens,
        writers: 8,
        listers: 2,
        watchers: 2,
        ids: 6,
        pause: Duration::ZERO,
        uses_all_operations: true,
    }
}

/// Disturbs the nodes under load for some rounds. Writes fail, but every response comes in time, and the history is
/// linearizable.
#[track_caller]
fn disturb_under_load(store: &Store, nodes: &[Server], fault: &Fault, disturb: impl Fn(i64, &History)) -> Summary {
    let workload = load(store, nodes);
    let history = History::new();
    for round in (0..).take(fault.rounds) {
        fault.begin_round();
        let ((), report) = workload.run(&history, || {
            wait_for_writes(&history, 200);
            disturb(round, &history);
            wait_for_writes(&history, 200);
        });
        assert!(report.slowest < RESPONSE_LIMIT, "{report:?}");
        settle(&history, store);
        workload.record_final_lists(&history);
    }
    let summary = history.check().unwrap();
    fault.count_history(&summary);
    assert!(summary.rejected > 0, "no write failed: {summary:?}");
    summary
}

/// Starts two nodes on one database, each with its arguments, the second behind a proxy that can cut it off.
#[track_caller]
fn start_pair<'a>(cluster: &'a Cluster, arguments: [&[&str]; 2]) -> (Store<'a>, TcpProxy, [Server; 2]) {
    let store = Store::on(cluster);
    let proxy = TcpProxy::start(cluster.address());
    let nodes = [store.serve(arguments[0]), store.through(&proxy).serve(arguments[1])];
    (store, proxy, nodes)
}

/// Returns a client of each node for one user, whose token has been used on the second.
#[track_caller]
fn clients_of_pair(store: &Store, nodes: &[Server; 2]) -> [Client; 2] {
    let token = store.token("ada", &[]);
    let clients = nodes.each_ref().map(|node| node.client(&token));
    first_use(&clients[1], store);
    clients
}

/// Uses a token for the first time and waits until its use is stored, so that no later commit can be mistaken for the
/// commit of a write.
fn first_use(client: &Client, store: &Store) {
    assert_eq!(retry_while_unavailable(|| client.get("/plants")).status, 200);
    let unused = "SELECT count(*) FROM tokens WHERE last_used_at IS NULL";
    wait_until("the stored last use of the token", || store.rows(unused) == [0]);
}

fn is_ready(node: &Server) -> bool {
    let response = node.anonymous().get("/readyz");
    response.status == 200 || {
        assert_eq!(response.error(), 50300);
        false
    }
}

#[track_caller]
fn wait_until_not_ready(nodes: &[Server]) {
    for node in nodes {
        wait_until("the node to be unready", || !is_ready(node));
    }
}

/// Waits until all nodes are ready. To be called when the database is available again.
#[track_caller]
fn wait_until_ready(nodes: &[Server]) {
    let start = Stopwatch::start();
    for node in nodes {
        wait_until("the node to be ready again", || is_ready(node));
    }
    assert!(start.elapsed() < RECOVERY_LIMIT, "the nodes were ready after {:?}", start.elapsed());
}

/// Waits, after the load has ended, until every write has committed or failed, and records that in the history.
#[track_caller]
fn settle(history: &History, store: &Store) {
    let end = history.now() + LAST_ATTEMPT;
    wait_until("the last attempts to end", || history.now() > end && !is_active(store));
    history.settle(history.now());
}

/// Returns true while the database executes a statement or has an open transaction of any node.
fn is_active(store: &Store) -> bool {
    const ACTIVE: &str = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'plantstore' \
                           AND datname = current_database() AND state <> 'idle'";
    !store.rows_of_servers(ACTIVE).is_empty() || store.prepared_transactions() != 0
}

/// Returns the response, which must arrive within [`RESPONSE_LIMIT`].
#[track_caller]
fn in_time(call: impl FnOnce() -> Response) -> Response {
    let start = Stopwatch::start();
    let response = call();
    assert!(start.elapsed() < RESPONSE_LIMIT, "response after {:?}: {}", start.elapsed(), response.wire());
    response
}

/// Asserts that every request fails in time, with an error code that describes its effect.
#[track_caller]
fn assert_unavailable(client: &Client) {
    let calls: [&dyn Fn() -> Response; 3] =
        [&|| client.get("/plants"), &|| client.post(plant(1, "lost")), &|| client.delete(1)];
    for call in calls {
        let response = in_time(call);
        assert!(matches!(response.error(), 50300 | 50301), "{}", response.wire());
    }
}

/// Returns the body of a create.
fn plant(id: i64, name: &str) -> String {
    serde_json::json!({ "id": id, "name": name }).to_string()
}

/// Lists the plants of a client with their ids.
#[track_caller]
fn plants(client: &Client) -> Vec<(i64, String)> {
    let listed = client.get("/plants?include=id").json();
    let listed = listed.as_array().expect("an array");
    let one =
        |plant: &serde_json::Value| (plant["id"].as_i64().expect("an id"), plant["name"].as_str().map(str::to_owned));
    listed.iter().map(one).map(|(id, name)| (id, name.expect("a name"))).collect()
}
