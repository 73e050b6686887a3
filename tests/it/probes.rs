//! `/livez` and `/readyz` under many callers: they query the store rarely and still report its state.

use std::thread;
use std::time::Instant;

use rstest::rstest;

use crate::support::{Client, Engine, Service, Store, engine_test, wait_for};

/// Milliseconds for which the result of one store query is reused.
const SHARED_FOR: u128 = 100;

/// Requests readiness this many times in a row on one connection.
fn ask_repeatedly(client: &Client, times: usize) {
    let mut connection = client.connect();
    for _ in 0..times {
        assert_eq!(connection.ask(client.bytes("GET", "/readyz", &[], None)).text(), r#"{"status":"ready"}"#);
    }
}

/// Asserts that these probes share one query of the store per [`SHARED_FOR`].
#[track_caller]
fn assert_queries_are_shared(probe: impl FnOnce(&Client)) {
    let store = Store::new(Engine::Postgres);
    let server = store.serve(&["--metrics-listen", "0"]);
    let metrics = server.metrics();
    let queries = || metrics.value("plantstore_database_query_duration_seconds_count", &[]);
    let before = queries();
    let start = Instant::now();
    probe(&server.anonymous());
    let elapsed = start.elapsed().as_millis();
    let asked = u128::try_from(queries() - before).unwrap();
    // The metrics page runs one query itself; another may have begun just before the start.
    let most = elapsed / SHARED_FOR + 3;
    assert!(asked <= most, "the probes ran {asked} queries in {elapsed} ms, more than {most}");
}

#[rstest]
#[case::requires_postgres()]
fn readiness_probes_share_one_store_query_per_100_ms() {
    assert_queries_are_shared(|client| {
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| ask_repeatedly(client, 250));
            }
        });
    });
}

/// Clients that disconnect before the response must not cause more queries.
#[rstest]
#[case::requires_postgres()]
fn abandoned_readiness_probes_share_one_store_query() {
    assert_queries_are_shared(|client| {
        for _ in 0..300 {
            client.connect().send(client.bytes("GET", "/readyz", &[], None));
        }
        ask_repeatedly(client, 1);
    });
}

engine_test!(readiness_follows_the_state_of_the_store, |Service { store, server }: &Service| {
    let ready = |expected: bool| {
        wait_for("readiness to follow the store", || {
            let response = server.anonymous().get("/readyz");
            if expected {
                (response.status == 200).then_some(())
            } else {
                (response.status >= 500).then_some(()).inspect(|()| assert!(response.error() >= 50000))
            }
        });
    };
    for _ in 0..3 {
        ready(true);
        store.execute("ALTER TABLE users RENAME TO gone");
        ready(false);
        store.execute("ALTER TABLE gone RENAME TO users");
    }
    ready(true);
});

engine_test!(concurrent_probes_get_the_same_response, |store: &Store| {
    let server = store.serve(&["--max-in-flight", "1", "--max-waiting", "0"]);
    let held = store.hold_writes();
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| ask_repeatedly(&server.anonymous(), 20));
        }
    });
    drop(held);
});
