//! Many nodes on one database act as one service.

use std::collections::BTreeSet;
use std::sync::Barrier;

use super::{QUIET, RECOVERY_LIMIT, plant, plants};
use crate::support::{Cluster, Engine, Server, Stopwatch, Store, postgres_test, wait_until};

#[test]
fn ten_nodes_start_concurrently_on_an_empty_database() {
    let cluster = Cluster::start(&[]);
    let store = Store::on(&cluster);
    let nodes: Vec<Server> = std::thread::scope(|scope| {
        let starting: Vec<_> = (0..10).map(|_| scope.spawn(|| store.serve(QUIET))).collect();
        starting.into_iter().map(|node| node.join().expect("the node starts")).collect()
    });
    assert_eq!(store.rows("SELECT version FROM schema_versions ORDER BY version"), [1, 2, 3, 4]);
    let token = store.token("ada", &[]);
    for (node, id) in nodes.iter().zip(0..) {
        node.client(&token).plant(id, "one of ten");
    }
    for node in &nodes {
        assert_eq!(node.client(&token).ids(), (0..10).collect::<Vec<i64>>());
    }
}

#[test]
fn reads_use_several_connections() {
    const USED_BY_READS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND \
                               query LIKE 'SELECT (SELECT version%'";
    let store = Store::new(Engine::Postgres);
    let node = store.serve(QUIET);
    let ada = node.client(&store.token("ada", &[]));
    ada.plant(1, "Rose");
    wait_until("two connections that were used by reads", || {
        // A single plant is not cached.
        assert_eq!(ada.get("/plants/1").status, 200);
        store.rows_of_servers(USED_BY_READS).iter().sum::<i64>() >= 2
    });
}

/// Waits until all nodes reject this token, which takes at most 5 seconds.
#[track_caller]
fn wait_until_rejected(nodes: &[Server], token: &str) {
    let start = Stopwatch::start();
    for node in nodes {
        let ada = node.client(token);
        wait_until("the token to be rejected", || ada.get("/plants").status == 401);
        assert_eq!(ada.post(plant(9, "too late")).error(), 40101);
    }
    assert!(start.elapsed() < RECOVERY_LIMIT, "the token was rejected after {:?}", start.elapsed());
}

postgres_test!(tokens_and_users_are_shared_by_all_nodes, |store: &Store| {
    let nodes = [store.serve(QUIET), store.serve(QUIET)];
    let [first, second] = [store.token("ada", &[]), store.token("ada", &[])];
    for (node, id) in nodes.iter().zip(1..) {
        node.client(&first).plant(id, "at once");
        node.client(&second).plant(id + 2, "at once");
    }
    assert!(store.run(&["token", "revoke", "1"]).status.success());
    wait_until_rejected(&nodes, &first);
    assert!(nodes.iter().all(|node| node.client(&second).ids() == [1, 2, 3, 4]), "the other token stays valid");
    assert!(store.run(&["user", "delete", "--yes", "ada"]).status.success());
    wait_until_rejected(&nodes, &second);
    // A new user of the same name has no plants.
    let third = store.token("ada", &[]);
    assert!(nodes.iter().all(|node| plants(&node.client(&third)).is_empty()));
});

/// In each round, half of the clients create the same id and the others an id of their own, concurrently.
#[test]
fn exactly_one_of_many_creates_on_several_nodes_succeeds() {
    const CLIENTS: i64 = 16;
    const ROUNDS: i64 = 100;
    let store = Store::new(Engine::Postgres);
    let nodes = [store.serve(QUIET), store.serve(QUIET)];
    let token = store.token("ada", &[]);
    let barrier = Barrier::new(usize::try_from(2 * CLIENTS).unwrap());
    // For each request: the id, the name, and true if the plant was created.
    let results: Vec<(i64, String, bool)> = std::thread::scope(|scope| {
        let each = |client: i64, own: bool| {
            let (nodes, token, barrier) = (&nodes, &token, &barrier);
            scope.spawn(move || {
                let ada = nodes[usize::try_from(client % 2).unwrap()].client(token);
                let mut connection = ada.connect();
                let mut results = Vec::new();
                for round in 0..ROUNDS {
                    let id = if own { -1 - (round * CLIENTS + client) } else { round };
                    let name = format!("{round} of {client}");
                    let headers = [("Content-Type", "application/json")];
                    let bytes = ada.bytes("POST", "/plants", &headers, Some(plant(id, &name).as_bytes()));
                    barrier.wait();
                    let response = connection.ask(bytes);
                    assert!(response.status == 200 || response.error() == 40900, "{}", response.wire());
                    results.push((id, name, response.status == 200));
                }
                results
            })
        };
        let clients: Vec<_> = (0..CLIENTS).flat_map(|client| [each(client, false), each(client, true)]).collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client thread")).collect()
    });
    let created: Vec<(i64, String)> =
        results.iter().filter(|(_, _, created)| *created).map(|(id, name, _)| (*id, name.clone())).collect();
    let ids: BTreeSet<i64> = created.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, (-ROUNDS * CLIENTS..ROUNDS).collect(), "every id was created");
    assert_eq!(created.len(), ids.len(), "no id was created twice");
    let mut created = created;
    created.sort();
    assert!(
        nodes.iter().all(|node| plants(&node.client(&token)) == created),
        "the stored plants are those of the successful requests"
    );
}
