//! Databases that are distributed over workers of Citus. `scripts/distributed` compiles and runs these tests.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::{
    CLOSED_ADDRESS, Cluster, CommandOutput, History, JSON, Server, Service, Store, Workload, postgres_test, wait_for,
    wait_until,
};

/// Returns a workload of ten users on these nodes.
fn load(store: &Store, nodes: &[Server]) -> Workload {
    Workload {
        nodes: nodes.iter().map(Server::address).collect(),
        tokens: (0..10).map(|number| store.token(&format!("user{number}"), &[])).collect(),
        writers: 8,
        listers: 2,
        watchers: 0,
        ids: 6,
        pause: Duration::ZERO,
        uses_all_operations: true,
    }
}

postgres_test!(list_of_one_owner_reads_the_tables_of_one_shard, |Service { store, server }: &Service| {
    let database = &store.texts("SELECT current_database()")[0];
    for user in ["ada", "bob", "cyd"] {
        let client = server.client(&store.token(user, &[]));
        client.plant(1, "Rose");
        assert_eq!(client.ids(), [1]);
        // The statement of the list, as the server has sent it.
        let (worker, statement) = wait_for("the statement of the list", || {
            Cluster::shared().workers().iter().find_map(|worker| {
                let statement = worker.psql(
                    database,
                    r"SELECT replace(query, chr(10), ' ') FROM pg_stat_activity
                      WHERE datname = current_database() AND application_name = 'plantstore'
                        AND query LIKE 'SELECT %FROM plantstore.plants\_% AS plants WHERE %' LIMIT 1",
                );
                (!statement.is_empty()).then_some((worker, statement))
            })
        });
        let id = store.rows(&format!("SELECT user_id FROM users WHERE name = '{user}'"))[0];
        let plan = worker.psql(
            database,
            &format!("PREPARE list (bigint, bigint, bigint) AS {statement}; EXPLAIN EXECUTE list ({id}, 0, 100)"),
        );
        // The worker reads the plants in the order of the index, whatever its statistics.
        assert_eq!(plan.matches("Index Scan using plants_pkey_").count(), 1, "{plan}");
        assert!(!plan.contains("Sort") && !plan.contains("Citus"), "{plan}");
    }
});

postgres_test!(token_is_looked_up_in_the_copies_of_one_server, |Service { store, server }: &Service| {
    let database = &store.texts("SELECT current_database()")[0];
    let (worker, statement) = wait_for("the statement of the look-up", || {
        server.client(&store.token("ada", &[])).ids();
        Cluster::shared().workers().iter().find_map(|worker| {
            let statement = worker.psql(
                database,
                r"SELECT replace(query, chr(10), ' ') FROM pg_stat_activity
                  WHERE datname = current_database() AND application_name = 'plantstore'
                    AND query LIKE 'SELECT token\_id,%FROM plantstore.tokens\_%' LIMIT 1",
            );
            (!statement.is_empty()).then_some((worker, statement))
        })
    });
    let plan = worker.psql(database, &format!("PREPARE look_up (bytea) AS {statement}; EXPLAIN EXECUTE look_up ('')"));
    assert!(plan.contains("Index Scan using tokens_hash_key_") && plan.contains("Limit"), "{plan}");
    assert!(!plan.contains("Citus"), "{plan}");
});

/// Workers have a copy of the tokens, but it is not in their catalogs.
#[test]
fn copy_that_is_not_in_the_catalog_is_not_read() {
    let cluster = Cluster::start(&[]);
    let store = Store::distributed(&cluster);
    let database = &store.texts("SELECT current_database()")[0];
    let node = store.serve(&["--log-level", "warn"]);
    let tokens = [0, 1, 2, 3].map(|_| store.token("ada", &[]));
    let id = store.rows("SELECT shardid FROM pg_dist_shard WHERE logicalrelid = 'plantstore.tokens'::regclass")[0];
    for worker in cluster.workers() {
        worker.psql(
            database,
            &format!(
                "SET citus.enable_manual_changes_to_shards = on; DELETE FROM pg_dist_placement
                 WHERE shardid = {id} AND groupid <> 0; UPDATE plantstore.tokens_{id} SET revoked_at = 1"
            ),
        );
    }
    // Look-ups take the workers in turn.
    for token in &tokens {
        assert_eq!(node.client(token).ids(), [0_i64; 0]);
    }
    // This copy gets another number, which the node does not know yet.
    store.execute("SELECT undistribute_table('plantstore.departed_users')");
    store.run(&["migrate", "--distribute", "citus"]).success();
    node.client(&store.token("bob", &[])).plant(1, "Rose");
    assert_eq!(node.log(), "");
}

/// The workers know all tables, so that each of them can execute all requests.
#[test]
fn nodes_may_connect_to_any_worker() {
    let cluster = Cluster::start(&[]);
    let store = Store::distributed(&cluster);
    let [first, second] = cluster.workers() else { panic!("two workers") };
    let entries = [&store, &store.at(first.address()), &store.at(second.address())];
    // The second node has a lane to the wrong worker for every user, and the third one a lane through the server of its URL. The
    // placement of users is a hint, so both return the same as the first.
    let [one, other] = [first.address(), second.address()];
    let swapped = format!("{one}={other},{other}={one}");
    let unreachable = format!("{one}={CLOSED_ADDRESS},{other}={CLOSED_ADDRESS}");
    let mapped = ["127.0.0.1:1=127.0.0.1:1", &swapped, &unreachable];
    let nodes = [0, 1, 2].map(|node| entries[node].serve(&["--log-level", "warn", "--worker-address", mapped[node]]));

    // What is written through one server is read through all of them.
    for (entry, user) in entries.iter().zip(["ada", "bob", "cyd"]) {
        let token = entry.token(user, &[]);
        let key = [JSON, ("Idempotency-Key", user)];
        for (id, node) in (1..).zip(&nodes) {
            let client = node.client(&token);
            client.plant(id, "Rose");
            assert_eq!(client.ids(), (1..=id).collect::<Vec<i64>>());
            let created = client.call("POST", "/plants", &key, Some(br#"{"id":77,"name":"Fern"}"#));
            assert_eq!(created.status, 200, "{}", created.text());
            assert_eq!(created.header("idempotency-replayed").is_some(), id > 1);
            assert_eq!(client.delete(77).status, if id == 1 { 204 } else { 404 });
        }
    }
    let shared = entries[1].run(&["share", "grant", "--owner", "ada", "--to", "bob", "--role", "reader"]);
    assert!(shared.status.success(), "{}", String::from_utf8_lossy(&shared.stderr));
    assert!(entries[2].run(&["user", "delete", "--yes", "cyd"]).status.success());

    let workload = load(&store, &nodes);
    let history = History::new();
    workload.run(&history, || {
        wait_until("writes", || history.acknowledged() > 300);
    });
    history.settle(history.now());
    workload.record_final_lists(&history);
    let summary = history.check().expect("a linearizable history");
    assert_eq!((summary.rejected, summary.unknown, summary.failed_lists), (0, 0, 0), "no request failed");
    let warnings = nodes.each_ref().map(|node| node.log().matches("cannot connect to a worker").count());
    assert_eq!(warnings, [0, 0, 2], "one for each worker");
}

#[test]
fn users_of_workers_are_served_without_the_coordinator() {
    let cluster = Cluster::start(&[]);
    let store = Store::distributed(&cluster);
    let node = store.serve(&["--log-level", "error"]);
    let clients = [0, 1, 2, 3, 4, 5].map(|number| node.client(&store.token(&format!("user{number}"), &[])));
    for client in &clients {
        client.plant(1, "before");
    }
    store.wait_for_stored_token_use();
    cluster.kill();
    for client in &clients {
        client.plant(2, "during");
        let key = [JSON, ("Idempotency-Key", "during")];
        assert_eq!(client.call("POST", "/plants", &key, Some(br#"{"id":3,"name":"Fern"}"#)).status, 200);
        assert_eq!(client.delete(1).status, 204);
        assert_eq!(client.ids(), [2, 3]);
    }
    assert_eq!(node.anonymous().get("/readyz").status, 200);
    cluster.restart();
    store.token("new", &[]);
}

#[test]
fn loss_of_the_coordinator_under_load_loses_nothing() {
    let cluster = Cluster::start(&[]);
    let store = Store::distributed(&cluster);
    let nodes = [store.serve(&["--log-level", "error"]), store.serve(&["--log-level", "error"])];
    let workload = load(&store, &nodes);
    let history = History::new();
    workload.run(&history, || {
        for _ in 0..2 {
            let enough = history.acknowledged() + 200;
            wait_until("writes", || history.acknowledged() > enough);
            cluster.kill();
            let enough = history.acknowledged() + 200;
            wait_until("writes without the coordinator", || history.acknowledged() > enough);
            cluster.restart();
        }
    });
    history.settle(history.now());
    workload.record_final_lists(&history);
    let summary = history.check().expect("a linearizable history");
    assert_eq!((summary.rejected, summary.unknown, summary.failed_lists), (0, 0, 0), "no request failed");
}

/// The certificate of each server is from another authority.
#[test]
fn workers_are_reached_with_the_tls_settings_of_the_url() {
    const SESSIONS: &str = "
        SELECT ssl::integer FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE application_name = 'plantstore' AND datname = current_database()";
    let cluster = Cluster::start(&["ssl=on"]);
    let store = Store::distributed(&cluster);
    let authority =
        |server: &Cluster| std::fs::read_to_string(server.data_directory().join("root.crt")).expect("a file");
    let file = store.directory().join("authorities.pem");
    let url = format!("{}?sslmode=verify-full&sslrootcert={}", store.url(), file.display());
    let database = &store.texts("SELECT current_database()")[0];
    for (id, authorities, unreachable) in
        [(1, cluster.servers().map(authority).collect::<String>(), 0), (2, authority(&cluster), 2)]
    {
        std::fs::write(&file, authorities).expect("a file");
        let node = store.serve(&["--log-level", "warn", "--store", &url]);
        for user in ["ada", "bob", "cyd", "dan", "eve", "fay"] {
            let client = node.client(&store.token(user, &[]));
            client.plant(id, "Rose");
            assert_eq!(client.ids(), (1..=id).collect::<Vec<i64>>());
        }
        // A worker whose certificate is not trusted gets no password: its users are served through the coordinator.
        assert_eq!(node.log().matches("cannot connect to a worker").count(), unreachable, "{}", node.log());
        for worker in cluster.workers() {
            let sessions = worker.psql(database, SESSIONS);
            assert_eq!(sessions.is_empty(), unreachable > 0, "{sessions}");
            assert!(sessions.lines().all(|is_encrypted| is_encrypted == "1"), "{sessions}");
        }
        assert_eq!(node.stop().code(), Some(0));
    }
}

/// 0.6.0 distributed a database over 32 shards, and its nodes have a row of `writers` on the coordinator. Here sessions execute their
/// statements.
#[test]
fn database_of_the_previous_release_is_migrated_while_its_nodes_write() {
    let cluster = Cluster::start(&[]);
    let store = Store::distributed(&cluster);
    let token = store.token("ada", &[]);
    store.execute("SELECT alter_distributed_table('plants', shard_count := 32, cascade_to_colocated := true)");
    store.execute(
        "ALTER TABLE shares_by_name DROP COLUMN grantee_id, DROP COLUMN declined_at;
         DELETE FROM schema_versions WHERE version > 3",
    );
    // As far as the commit.
    let create_by_previous_release = |id: i64| {
        store.hold(&format!(
            "BEGIN;
             INSERT INTO writers (writer_id, commit_id, seen_at) VALUES (1, {id}, 0)
             ON CONFLICT (writer_id) DO UPDATE SET commit_id = excluded.commit_id;
             UPDATE collections SET version = version + 1 WHERE user_id = ANY('{{1}}'::bigint[]);
             INSERT INTO plants (user_id, plant_id, name, version)
             SELECT collections.user_id, batch.plant_id, 'Rose', collections.version
             FROM unnest('{{1}}'::bigint[], '{{{id}}}'::bigint[]) AS batch (user_id, plant_id)
             JOIN collections ON collections.user_id = batch.user_id WHERE collections.user_id = ANY('{{1}}'::bigint[])"
        ))
    };
    let mut before = create_by_previous_release(1);
    store.run(&["migrate"]).success();
    let node = store.serve(&["--log-level", "warn"]);
    let ada = node.client(&token);
    assert_eq!(ada.ids(), [0_i64; 0]);
    std::thread::scope(|scope| {
        // Waits for the other transaction of the same user.
        let created = scope.spawn(|| ada.plant(2, "Fern"));
        wait_until("a lock", || !store.rows_of_servers("SELECT 1 FROM pg_locks WHERE NOT granted").is_empty());
        before.send("COMMIT");
        before.finish();
        created.join().expect("a response");
    });
    assert_eq!(ada.ids(), [1, 2]);
    let mut after = create_by_previous_release(3);
    after.send("COMMIT");
    after.finish();
    assert_eq!(ada.ids(), [1, 2, 3]);
    assert_eq!(node.log(), "");
}

/// Only the owner may lock the shards, so the node writes to the distributed tables.
#[test]
fn role_that_does_not_own_the_tables_can_write() {
    let cluster = Cluster::start(&[]);
    let store = Store::distributed(&cluster);
    for table in ["collections", "plants", "idempotency_keys"] {
        store.execute(&format!("ALTER TABLE {table} OWNER TO postgres"));
        store.execute(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO plantstore"));
    }
    let node = store.serve(&["--log-level", "info"]);
    let client = node.client(&store.token("ada", &[]));
    client.plant(1, "Rose");
    client.plant(2, "Fern");
    assert_eq!(client.delete(1).status, 204);
    assert_eq!(client.ids(), [2]);
    node.wait_for_log("writes use distributed tables");
}

/// Adds a worker while two nodes serve a workload, and then calls `change` with a function that waits for further writes. The
/// history must be linearizable, and every outcome known.
#[track_caller]
fn under_load_with_a_new_worker(store: &Store, worker: SocketAddr, change: impl FnOnce(&dyn Fn())) {
    let nodes = [store.serve(&["--log-level", "warn"]), store.serve(&["--log-level", "warn"])];
    let workload = load(store, &nodes);
    let history = History::new();
    let wait_for_writes = || {
        let enough = history.acknowledged() + 200;
        wait_until("writes", || history.acknowledged() > enough);
    };
    workload.run(&history, || {
        wait_for_writes();
        store.execute(&format!("SELECT citus_add_node('{}', {})", worker.ip(), worker.port()));
        change(&wait_for_writes);
    });
    wait_until("no prepared transactions", || store.prepared_transactions() == 0);
    history.settle(history.now());
    workload.record_final_lists(&history);
    let summary = history.check().expect("a linearizable history");
    assert_eq!(summary.unknown, 0, "{summary:?}");
}

/// Starts with one shard, which is split so that a new worker gets a half of it.
#[test]
fn splitting_a_shard_under_load_loses_nothing() {
    let cluster = Cluster::start(&[]);
    let [first, second] = cluster.workers() else { panic!("two workers") };
    let store = Store::with_workers(&cluster, &[first.address()]);
    store
        .execute("SELECT alter_distributed_table('plantstore.plants', shard_count := 1, cascade_to_colocated := true)");
    under_load_with_a_new_worker(&store, second.address(), |wait_for_writes| {
        store.execute("SELECT replicate_reference_tables()");
        store.execute(
            "SELECT citus_split_shard_by_split_points(shardid, ARRAY['0'], (
               SELECT array_agg(nodeid::integer ORDER BY nodeid) FROM pg_dist_node WHERE shouldhaveshards), 'block_writes')
             FROM pg_dist_shard WHERE logicalrelid = 'plantstore.plants'::regclass",
        );
        wait_for_writes();
        // The nodes have found the new worker.
        wait_for("statements on the new worker", || {
            let served = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'plantstore'";
            let counts = store.rows(&format!(
                "SELECT sum(result::integer) FROM run_command_on_workers($${served}$$)
               WHERE nodeport = {}",
                second.address().port()
            ));
            (counts[0] > 1).then_some(())
        });
        wait_for_writes();
    });
}

#[test]
fn rebalancing_to_a_new_worker_under_load_loses_nothing() {
    let cluster = Cluster::start(&[]);
    let [first, second] = cluster.workers() else { panic!("two workers") };
    let store = Store::with_workers(&cluster, &[first.address()]);
    under_load_with_a_new_worker(&store, second.address(), |wait_for_writes| {
        store.execute("SELECT citus_rebalance_start()");
        store.execute("SELECT citus_rebalance_wait()");
        wait_for_writes();
    });
    let shards = store.rows(
        "SELECT count(*) FROM pg_dist_placement JOIN pg_dist_shard USING (shardid)
         WHERE logicalrelid = 'plantstore.plants'::regclass GROUP BY groupid ORDER BY groupid",
    );
    assert_eq!(shards, [4, 4]);
}
