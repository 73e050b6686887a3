//! Failures of the workers of Citus. `scripts/distributed` compiles and runs these tests; plain PostgreSQL has no workers.

use std::net::SocketAddr;
use std::time::Duration;

use super::{COMMIT, QUIET, SHORT_TIMEOUT, disturb_under_load, load, plant, settle, wait_for_writes, wait_until_ready};
use crate::support::{
    Client, Cluster, CommandOutput, Fault, History, JSON, Response, Server, Stage, Store, TcpProxy, wait_until,
};

/// The statements of the two phases that the coordinator sends to a worker.
const PREPARE: &[u8] = b"PREPARE TRANSACTION";
const COMMIT_PREPARED: &[u8] = b"COMMIT PREPARED";
/// Before, during and after each phase.
const STEPS: [(&[u8], Stage); 6] = [
    (PREPARE, Stage::BeforeSend),
    (PREPARE, Stage::AfterSend),
    (PREPARE, Stage::AfterResponse),
    (COMMIT_PREPARED, Stage::BeforeSend),
    (COMMIT_PREPARED, Stage::AfterSend),
    (COMMIT_PREPARED, Stage::AfterResponse),
];

/// Before, during and after the commit of a lane to a worker.
const COMMIT_STEPS: [Stage; 3] = [Stage::BeforeSend, Stage::AfterSend, Stage::AfterResponse];

/// Creates a database whose workers are reached through proxies by the coordinator and by nodes.
fn behind_proxies(cluster: &Cluster) -> (Store<'_>, Vec<TcpProxy>) {
    let proxies: Vec<TcpProxy> = cluster.workers().iter().map(|worker| TcpProxy::start(worker.address())).collect();
    let addresses: Vec<SocketAddr> = proxies.iter().map(TcpProxy::address).collect();
    (Store::with_workers(cluster, &addresses), proxies)
}

/// Returns a client of a user on each worker.
fn users_of_workers(store: &Store, node: &Server, workers: usize) -> Vec<Client> {
    let mut clients: Vec<Option<Client>> = (0..workers).map(|_| None).collect();
    for number in 0.. {
        let name = format!("user{number}");
        let client = node.client(&store.token(&name, &[]));
        let place = store.rows(&format!(
            "SELECT groupid - 1 FROM users JOIN pg_dist_placement
               ON shardid = get_shard_id_for_distribution_column('plantstore.plants', user_id) WHERE name = '{name}'"
        ));
        let place = usize::try_from(place[0]).expect("a worker");
        clients[place].get_or_insert(client);
        if clients.iter().all(Option::is_some) {
            break;
        }
    }
    clients.into_iter().flatten().collect()
}

#[test]
fn only_users_of_a_lost_worker_get_503() {
    let cluster = Cluster::start(&[]);
    let [_, lost] = cluster.workers() else { panic!("two workers") };
    let store = Store::distributed(&cluster);
    let node = store.serve(&[SHORT_TIMEOUT, &["--metrics-listen", "0"]].concat());
    let clients = users_of_workers(&store, &node, 2);
    for client in &clients {
        client.plant(1, "before");
    }
    let metrics = node.metrics();
    let addresses = cluster.workers().iter().map(|worker| worker.address().to_string()).collect::<Vec<_>>();
    let up = || {
        [&*addresses[0], &*addresses[1], "main"]
            .map(|server| metrics.value("plantstore_lane_up", &[("server", server)]))
    };
    assert_eq!(up(), [1, 1, 1]);
    lost.kill();
    for id in 2..5 {
        wait_until("the other worker", || clients[0].post(plant(id, "during")).status != 503);
        assert_eq!(clients[0].get("/plants").status, 200);
        assert_eq!(clients[1].post(plant(id, "lost")).error(), 50300);
        assert_eq!(clients[1].get("/plants").error(), 50300);
    }
    assert_eq!(clients[0].ids(), (1..5).collect::<Vec<i64>>());
    let ready = node.anonymous().get("/readyz");
    assert_eq!(ready.status, 200);
    assert_eq!(ready.text(), format!(r#"{{"lost":["{}"],"status":"ready"}}"#, lost.address()));
    assert_eq!(up(), [1, 0, 1]);
    lost.restart();
    wait_until("the worker", || clients[1].post(plant(2, "after")).status == 200);
    assert_eq!(clients[1].ids(), [1, 2]);
    wait_until("all connections", || up() == [1, 1, 1]);
}

/// Both workers wait for a lock at the same time.
#[test]
fn list_of_several_owners_asks_their_workers_concurrently() {
    let cluster = Cluster::start(&[]);
    let store = Store::distributed(&cluster);
    let node = store.serve(QUIET);
    let [ada, bob] = &users_of_workers(&store, &node, 2)[..] else { panic!("two users") };
    let names = [ada, bob].map(|client| client.get("/me").json()["user"].as_str().expect("a name").to_owned());
    store.run(&["share", "grant", "--owner", &names[0], "--to", &names[1], "--role", "reader"]).success();
    ada.plant(1, "Rose");
    bob.plant(2, "Fern");
    wait_until("the share", || bob.ids() == [1, 2]);
    let database = &store.texts("SELECT current_database()")[0];
    let waits = |worker: &Cluster| worker.psql(database, "SELECT count(*) FROM pg_locks WHERE NOT granted") != "0";
    let held = store.hold_versions("ACCESS EXCLUSIVE MODE");
    std::thread::scope(|scope| {
        let list = scope.spawn(|| bob.get("/plants").status);
        wait_until("both workers", || cluster.workers().iter().all(waits));
        drop(held);
        assert_eq!(list.join().expect("a response"), 200);
    });
}

#[test]
fn loss_of_a_worker_under_load_is_linearizable() {
    let cluster = Cluster::start(&[]);
    let store = Store::distributed(&cluster);
    let nodes = [store.serve(SHORT_TIMEOUT), store.serve(SHORT_TIMEOUT)];
    disturb_under_load(&store, &nodes, &Fault::new("kill of a worker", 2), |round, history| {
        let worker = &cluster.workers()[usize::try_from(round).expect("small") % 2];
        worker.kill();
        wait_until("a failure", || history.summary().rejected > 0);
        worker.restart();
        wait_until_ready(&nodes);
        wait_for_writes(history, 50);
    });
}

/// The addresses of workers are those of proxies, one for the coordinator and one for nodes. After a failover both lead to another
/// server.
#[test]
fn worker_behind_a_failover_proxy_is_found_again() {
    let cluster = Cluster::start(&[]);
    let (store, known) = behind_proxies(&cluster);
    let used: Vec<TcpProxy> = cluster.workers().iter().map(|worker| TcpProxy::start(worker.address())).collect();
    let mapped = known.iter().zip(&used).map(|(known, used)| format!("{}={}", known.address(), used.address()));
    let mapped = mapped.collect::<Vec<_>>().join(",");
    let arguments = [SHORT_TIMEOUT, &["--worker-address", &mapped]].concat();
    let nodes = [store.serve(&arguments), store.serve(&arguments)];
    let fault = Fault::new("failover of a worker behind a proxy", 2);
    disturb_under_load(&store, &nodes, &fault, |round, history| {
        let number = usize::try_from(round).expect("small") % cluster.workers().len();
        let worker = &cluster.workers()[number];
        worker.kill();
        wait_until("a failure", || history.summary().rejected > 0);
        worker.restart_elsewhere();
        known[number].redirect(worker.address());
        used[number].redirect(worker.address());
        wait_until("all workers", || nodes.iter().all(|node| !node.anonymous().get("/readyz").text().contains("lost")));
    });
    let ways_around = nodes.each_ref().map(|node| node.log().matches("cannot connect to a worker").count());
    assert_eq!(ways_around, [0, 0], "the nodes reached all workers through their proxies");
}

/// Kills a worker at a step of the commit of a request, and returns the response.
fn interrupt(
    worker: &Cluster,
    proxy: &TcpProxy,
    stage: Stage,
    needle: &'static [u8],
    call: impl Fn() -> Response + Send + Sync,
) -> Response {
    let cuts = proxy.cuts();
    proxy.cut_all_at(stage, needle);
    std::thread::scope(|scope| {
        let response = scope.spawn(&call);
        wait_until("the proxy to cut the connection", || proxy.cuts() > cuts);
        worker.kill();
        worker.restart();
        proxy.heal();
        response.join().expect("a response")
    })
}

/// The worker is killed at each step of a commit, which is local to it. The response is what the database contains afterwards.
#[test]
fn commit_interrupted_by_the_loss_of_a_worker_has_one_outcome() {
    let cluster = Cluster::start(&[]);
    let (store, proxies) = behind_proxies(&cluster);
    let node = store.serve(QUIET);
    let ada = &users_of_workers(&store, &node, 2)[0];
    ada.plant(0, "before");
    let used = "SELECT count(*) FROM tokens WHERE last_used_at IS NOT NULL";
    wait_until("the stored last use of the token", || store.rows(used) == [1]);
    for (id, stage) in (1..).zip(COMMIT_STEPS) {
        let created = interrupt(&cluster.workers()[0], &proxies[0], stage, COMMIT, || ada.post(plant(id, "first")));
        assert_eq!(created.status, 200, "{stage:?}: {}", created.text());
        assert_eq!(ada.post(plant(id, "second")).status, 409, "{stage:?}");
    }
    assert_eq!(ada.ids(), [0, 1, 2, 3]);
}

/// A write of a user to the plants of an owner on another worker is committed in two phases. The owner's worker is killed at each
/// step.
#[test]
fn commit_on_two_workers_has_one_outcome() {
    let cluster = Cluster::start(&[]);
    let (store, proxies) = behind_proxies(&cluster);
    let node = store.serve(QUIET);
    let [ada, bob] = &users_of_workers(&store, &node, 2)[..] else { panic!("two users") };
    let names = [ada, bob].map(|client| client.get("/me").json()["user"].as_str().expect("a name").to_owned());
    let shared = store.run(&["share", "grant", "--owner", &names[0], "--to", &names[1], "--role", "editor"]);
    assert!(shared.status.success(), "{}", String::from_utf8_lossy(&shared.stderr));
    ada.plant(0, "before");
    bob.plant(0, "before");
    let used = "SELECT count(*) FROM tokens WHERE last_used_at IS NOT NULL";
    wait_until("the stored last use of the tokens", || store.rows(used) == [2]);
    let path = format!("/plants?owner={}", names[0]);
    wait_until("the share", || bob.get(&path).status == 200);
    let create = |id: i64| bob.call("POST", &path, &[JSON], Some(plant(id, "first").as_bytes()));
    for (id, (needle, stage)) in (1..).zip(STEPS) {
        let about = format!("{} {stage:?}", String::from_utf8_lossy(needle));
        let created = interrupt(&cluster.workers()[0], &proxies[0], stage, needle, || create(id));
        let is_created = created.status == 200;
        assert!(is_created || (created.error() == 50300 && needle == PREPARE), "{about}: {}", created.text());
        wait_until("no prepared transactions", || store.prepared_transactions() == 0);
        assert_eq!(ada.ids().contains(&id), is_created, "{about}");
        assert_eq!(create(id).status, if is_created { 409 } else { 200 }, "{about}");
    }
    assert_eq!(ada.ids(), [0, 1, 2, 3, 4, 5, 6]);
}

/// Cuts the connections of nodes and of the coordinator to the workers at any message, and delays messages.
#[test]
fn cuts_of_connections_to_workers_are_linearizable() {
    let cluster = Cluster::start(&[]);
    let (store, proxies) = behind_proxies(&cluster);
    let nodes = [store.serve(SHORT_TIMEOUT), store.serve(SHORT_TIMEOUT)];
    let workload = load(&store, &nodes);
    let history = History::new();
    let fault = Fault::new("cut at any message to a worker", 40).with_more_in_campaign(10);
    workload.run(&history, || {
        for _ in 0..fault.rounds {
            let mut random = fault.begin_round();
            let proxy = &proxies[random.below(proxies.len())];
            let cuts = proxy.cuts();
            proxy.cut_after(random.below(50), COMMIT_STEPS[random.below(COMMIT_STEPS.len())]);
            proxy.delay(random, Duration::from_millis(100));
            wait_until("the proxy to cut the connection", || proxy.cuts() > cuts);
        }
        proxies.iter().for_each(TcpProxy::heal);
        wait_until_ready(&nodes);
        wait_for_writes(&history, 50);
    });
    settle(&history, &store);
    workload.record_final_lists(&history);
    fault.count_history(&history.check().unwrap());
}

#[test]
fn loss_of_a_worker_during_commits_under_load_is_linearizable() {
    let cluster = Cluster::start(&[]);
    let (store, proxies) = behind_proxies(&cluster);
    let nodes = [store.serve(SHORT_TIMEOUT), store.serve(SHORT_TIMEOUT)];
    disturb_under_load(&store, &nodes, &Fault::new("kill of a worker during a commit", 6), |round, history| {
        let round = usize::try_from(round).expect("small");
        let (stage, number) = (COMMIT_STEPS[round / 2 % COMMIT_STEPS.len()], round % 2);
        let (worker, proxy) = (&cluster.workers()[number], &proxies[number]);
        let (cuts, rejected) = (proxy.cuts(), history.summary().rejected);
        proxy.cut_all_at(stage, COMMIT);
        wait_until("the proxy to cut the connection", || proxy.cuts() > cuts);
        worker.kill();
        wait_until("a failure", || history.summary().rejected > rejected);
        worker.restart();
        proxy.heal();
        wait_until_ready(&nodes);
        wait_for_writes(history, 50);
    });
}
