//! The database is killed or frozen.

use super::{
    QUIET, RECOVERY_LIMIT, SHORT_TIMEOUT, assert_unavailable, disturb_under_load, in_time, load, plant,
    wait_for_writes, wait_until_not_ready, wait_until_ready,
};
use crate::support::{
    Cluster, Fault, History, Stopwatch, Store, retry_while_unavailable, signal, wait_for, wait_until,
};

#[test]
fn acknowledged_writes_survive_kills_of_the_database() {
    let cluster = Cluster::start(&[]);
    let store = Store::on(&cluster);
    let nodes = [store.serve(SHORT_TIMEOUT), store.serve(SHORT_TIMEOUT)];
    let fault = Fault::new("kill of PostgreSQL", 2);
    let summary = disturb_under_load(&store, &nodes, &fault, |_, _| {
        cluster.kill();
        wait_until_not_ready(&nodes);
        cluster.restart();
        wait_until_ready(&nodes);
    });
    assert!(summary.failed_lists > 0, "no list failed: {summary:?}");
}

/// The file system of the database server is full. Nothing is lost, reads continue, and writes succeed again without a restart.
#[test]
fn writes_get_507_while_the_disk_of_the_database_is_full() {
    let cluster = Cluster::start_on_small_disk();
    let store = Store::on(&cluster);
    let nodes = [store.serve(QUIET), store.serve(QUIET)];
    let workload = load(&store, &nodes);
    let history = History::new();
    let eve = nodes[0].client(&store.token("eve", &[]));
    let name = "x".repeat(1_000);
    let fault = Fault::new("full disk of PostgreSQL", 1);
    workload.run(&history, || {
        for _ in 0..fault.rounds {
            fault.begin_round();
            let mut stored = eve.ids();
            let mut create = || {
                let id = i64::try_from(stored.len()).expect("small");
                let response = in_time(|| eve.post(plant(id, &name)));
                let is_stored = response.status == 200;
                fault.count(1, usize::from(is_stored));
                if is_stored {
                    stored.push(id);
                }
                (!is_stored).then_some(response)
            };
            cluster.fill_disk();
            assert_eq!(wait_for("the disk to be full", &mut create).error(), 50700);
            cluster.free_disk();
            wait_until("a write", || create().is_none());
            fault.assert_stored(eve.ids() == stored, "a plant of eve");
        }
    });
    workload.record_final_lists(&history);
    let summary = history.check().unwrap();
    assert_eq!((summary.unknown, summary.failed_lists), (0, 0), "{summary:?}");
    fault.count_history(&summary);
}

#[test]
fn open_connections_serve_while_new_ones_are_not_accepted() {
    let cluster = Cluster::start(&[]);
    let store = Store::on(&cluster);
    let nodes = [store.serve(QUIET), store.serve(QUIET)];
    let workload = load(&store, &nodes);
    let history = History::new();
    // The log of the third node goes to a file, which the test can read before the node has started.
    let wrapper = ["sh", "-c", "exec \"$@\" 2> late.log", "sh"];
    let log = || std::fs::read_to_string(store.directory().join("late.log")).unwrap_or_default();
    workload.run(&history, || {
        wait_for_writes(&history, 100);
        cluster.freeze_postmaster();
        wait_for_writes(&history, 300);
        // The start of a node fails if it cannot connect for ten seconds, so nothing else is waited for.
        std::thread::scope(|scope| {
            let late = scope.spawn(|| store.serve_through(&wrapper, SHORT_TIMEOUT));
            wait_until("the node to retry", || log().contains("cannot connect to the database: retrying"));
            let still_waits = !late.is_finished();
            cluster.thaw_postmaster();
            assert!(still_waits, "{}", log());
            let late = late.join().unwrap_or_else(|_| panic!("the node ended: {}", log()));
            assert_eq!(late.anonymous().get("/readyz").status, 200);
            assert_eq!(late.client(&workload.tokens[0]).get("/plants").status, 200);
        });
    });
    workload.record_final_lists(&history);
    let summary = history.check().unwrap();
    assert_eq!((summary.rejected, summary.unknown, summary.failed_lists), (0, 0, 0), "no request failed");
}

/// A process of the database freezes without closing its connection while the server stores the use of a token in the
/// background. Later requests must not wait for this connection.
#[test]
fn connection_that_hangs_while_storing_token_use_is_closed() {
    const WAITING: &str = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND \
                           wait_event_type = 'Lock' AND query LIKE 'UPDATE plantstore.tokens%'";
    let cluster = Cluster::start(&[]);
    let store = Store::on(&cluster);
    let node = store.serve(SHORT_TIMEOUT);
    let token = store.token("ada", &[]);
    let held = store.hold("BEGIN; LOCK TABLE plantstore.tokens IN SHARE ROW EXCLUSIVE MODE");
    assert_eq!(retry_while_unavailable(|| node.client(&token).get("/plants")).status, 200);
    let process = wait_for("the update of the token to wait for its lock", || store.rows(WAITING).first().copied());
    signal(u32::try_from(process).unwrap(), "STOP");
    drop(held);
    let cyd = node.client(&store.token("cyd", &[]));
    let start = Stopwatch::start();
    // A write that began too late has an unknown outcome, and may be stored.
    wait_until("a write", || [200, 409].contains(&in_time(|| cyd.post(plant(1, "written"))).status));
    assert!(start.elapsed() < RECOVERY_LIMIT, "the write succeeded after {:?}", start.elapsed());
}

#[test]
fn requests_fail_in_time_while_the_database_is_frozen() {
    let cluster = Cluster::start(&[]);
    let store = Store::on(&cluster);
    let nodes = [store.serve(SHORT_TIMEOUT), store.serve(SHORT_TIMEOUT)];
    let eve = store.token("eve", &[]);
    let fault = Fault::new("freeze of PostgreSQL", 1);
    let summary = disturb_under_load(&store, &nodes, &fault, |_, _| {
        cluster.freeze();
        wait_until_not_ready(&nodes);
        for node in &nodes {
            assert_unavailable(&node.client(&eve));
        }
        cluster.thaw();
        wait_until_ready(&nodes);
    });
    assert!(summary.failed_lists > 0, "no list failed: {summary:?}");
}
