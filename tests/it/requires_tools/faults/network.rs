//! One of two nodes loses its connections to the database.

use std::time::Duration;

use super::{
    COMMIT, QUIET, RECOVERY_LIMIT, RESPONSE_LIMIT, SHORT_TIMEOUT, assert_unavailable, clients_of_pair,
    disturb_under_load, first_use, in_time, is_active, is_ready, load, plant, plants, settle, start_pair,
    wait_for_writes, wait_until_not_ready, wait_until_ready,
};
use crate::support::{
    Client, Cluster, Fault, History, Response, Stage, Stopwatch, Store, Summary, TcpProxy, retry_while_unavailable,
    wait_for, wait_until,
};

/// Cuts one of two nodes off under load.
fn cut_off(fault: &Fault, cut: fn(&TcpProxy)) {
    let cluster = Cluster::start(&[]);
    let (store, proxy, nodes) = start_pair(&cluster, [SHORT_TIMEOUT; 2]);
    let (connected, cut_off) = (&nodes[0], &nodes[1..]);
    let eve = store.token("eve", &[]);
    let summary = disturb_under_load(&store, &nodes, fault, |round, history| {
        cut(&proxy);
        wait_until_not_ready(cut_off);
        assert_unavailable(&cut_off[0].client(&eve));
        wait_until("the other node to be ready", || is_ready(connected));
        wait_for_writes(history, 200);
        proxy.heal();
        wait_until_ready(cut_off);
        let body = plant(round + 10, "it works");
        wait_until("a write", || [200, 409].contains(&cut_off[0].client(&eve).post(body.as_str()).status));
    });
    assert!(summary.failed_lists > 0, "no list failed: {summary:?}");
}

#[test]
fn node_recovers_from_a_silent_network_partition() {
    cut_off(&Fault::new("silent partition between a node and PostgreSQL", 1), TcpProxy::freeze);
}

#[test]
fn node_recovers_from_connections_that_close_at_once() {
    cut_off(&Fault::new("loss of all connections to PostgreSQL", 1), TcpProxy::cut);
}

/// Some messages are delayed by more than the timeout of the node.
#[test]
fn late_messages_do_not_harm_the_history() {
    let cluster = Cluster::start(&[]);
    let (store, proxy, nodes) = start_pair(&cluster, [QUIET, &[QUIET, &["--store-timeout", "500ms"]].concat()]);
    let workload = load(&store, &nodes);
    let history = History::new();
    let fault = Fault::new("delayed messages to PostgreSQL", 3);
    let ((), report) = workload.run(&history, || {
        for _ in 0..fault.rounds {
            proxy.delay(fault.begin_round(), Duration::from_secs(1));
            wait_for_writes(&history, 50);
        }
        wait_until("a request to fail", || {
            let Summary { rejected, unknown, failed_lists, .. } = history.summary();
            rejected + unknown + failed_lists > 0
        });
        proxy.heal();
        wait_until_ready(&nodes[1..]);
    });
    assert!(report.slowest < RESPONSE_LIMIT, "{report:?}");
    settle(&history, &store);
    workload.record_final_lists(&history);
    fault.count_history(&history.check().unwrap());
}

/// Cuts a node off while it commits, waits until the database has ended the transaction, and returns the response,
/// which says that the outcome is unknown. A node that gives up before its commit, because the machine is busy, is
/// called again.
#[track_caller]
fn cut_commit(store: &Store, proxy: &TcpProxy, stage: Stage, call: impl Fn() -> Response) -> Response {
    let cuts = proxy.cuts();
    proxy.cut_all_at(stage, COMMIT);
    let mut unknown = None;
    wait_until("a commit that is cut off", || {
        let response = in_time(&call);
        assert!(matches!(response.error(), 50300 | 50301), "{stage:?}: {}", response.wire());
        if response.error() == 50301 {
            unknown = Some(response);
        }
        proxy.cuts() > cuts
    });
    wait_until("the end of the transaction", || !is_active(store));
    unknown.unwrap_or_else(|| panic!("{stage:?}: no response with an unknown outcome"))
}

/// The node cannot reconnect to look up its commit, and reports an unknown outcome.
#[test]
fn commit_of_unknown_outcome_gets_50301() {
    let cluster = Cluster::start(&[]);
    let (store, proxy, nodes) = start_pair(&cluster, [QUIET, SHORT_TIMEOUT]);
    let [other, ada] = clients_of_pair(&store, &nodes);
    other.plant(-1, "there");
    let there = || (-1, "there".to_owned());
    for (stage, done) in [(Stage::BeforeSend, false), (Stage::AfterSend, true), (Stage::AfterResponse, true)] {
        cut_commit(&store, &proxy, stage, || ada.post(plant(1, "new")));
        let expected = if done { vec![there(), (1, "new".to_owned())] } else { vec![there()] };
        assert_eq!(plants(&other), expected, "{stage:?}");
        proxy.heal();
        wait_until_ready(&nodes[1..]);
        // docs/reference/errors.md advises to repeat the request.
        assert_eq!(other.post(plant(1, "newer")).status, if done { 409 } else { 200 }, "{stage:?}");
        cut_commit(&store, &proxy, stage, || ada.delete(1));
        assert_eq!(other.ids().contains(&1), !done, "{stage:?}");
        proxy.heal();
        wait_until_ready(&nodes[1..]);
        assert_eq!(other.delete(1).status, if done { 404 } else { 204 }, "{stage:?}");
        assert_eq!(plants(&other), [there()]);
    }
}

/// The change is stored, but its client gets 50301. The log line is the only record of it.
#[test]
fn change_of_tokens_or_shares_with_unknown_outcome_is_logged() {
    let cluster = Cluster::start(&[]);
    let (store, proxy, nodes) = start_pair(&cluster, [QUIET, SHORT_TIMEOUT]);
    let token = store.token("ada", &["--scope", "plants:read,tokens:manage,shares:manage"]);
    let [other, ada] = nodes.each_ref().map(|node| node.client(&token));
    first_use(&ada, &store);
    let json = [("Content-Type", "application/json")];
    for (method, path, body, attempt, target) in [
        ("POST", "/tokens", Some(r#"{"label":"balcony"}"#), "create token", "balcony"),
        ("DELETE", "/tokens/2", None, "revoke token", "2"),
        ("PUT", "/shares/ben", Some(r#"{"role":"reader"}"#), "grant share", "ben"),
        ("DELETE", "/shares/ben", None, "revoke share", "ben"),
    ] {
        let call = || ada.call(method, path, &json, body.map(str::as_bytes));
        let response = cut_commit(&store, &proxy, Stage::AfterSend, call);
        assert_eq!(response.header("retry-after"), None, "{attempt}: {}", response.text());
        let expected = format!(r#""actor":"ada","token_id":1,"attempt":"{attempt}","target":"{target}""#);
        wait_until("the log line", || {
            let log = nodes[1].log();
            log.lines().any(|line| line.contains("change with unknown outcome") && line.contains(&expected))
        });
        proxy.heal();
        wait_until_ready(&nodes[1..]);
    }
    let response = other.get("/tokens");
    let tokens = response.text();
    assert!(tokens.contains(r#""label":"balcony""#) && tokens.contains(r#""state":"revoked""#), "{tokens}");
    assert_eq!(other.get("/shares").text(), r#"{"granted":[],"received":[]}"#);
}

/// A retry with the same idempotency key gets the outcome on any node.
#[test]
fn idempotency_key_resolves_unknown_commit() {
    let cluster = Cluster::start(&[]);
    let (store, proxy, nodes) = start_pair(&cluster, [QUIET, SHORT_TIMEOUT]);
    let [other, ada] = clients_of_pair(&store, &nodes);
    let stages = [(Stage::BeforeSend, false), (Stage::AfterSend, true), (Stage::AfterResponse, true)];
    for ((stage, done), id) in stages.into_iter().zip(1..) {
        let (path, body) = (format!("/plants/{id}"), plant(id, "new"));
        for (method, path, body, success) in [("POST", "/plants", Some(&*body), 200), ("DELETE", &path, None, 204)] {
            let key = format!("{method} {id}");
            let headers = [("Content-Type", "application/json"), ("Idempotency-Key", &key)];
            let call = |client: &Client| client.call(method, path, &headers, body.map(str::as_bytes));
            let about = format!("{key} {stage:?}");
            let unknown = cut_commit(&store, &proxy, stage, || call(&ada));
            assert!(unknown.message().contains("send the same again with the same `Idempotency-Key`"));
            assert_eq!(in_time(|| call(&ada)).error(), 50300, "{about}: the outcome cannot be looked up");
            let found = call(&other);
            assert_eq!(found.status, success, "{about}: {}", found.text());
            assert_eq!(found.header("idempotency-replayed").is_some(), done, "{about}");
            proxy.heal();
            let again = wait_for("the node", || Some(call(&ada)).filter(|response| response.status != 503));
            assert_eq!((again.status, again.header("idempotency-replayed")), (success, Some("true")), "{about}");
        }
    }
}

/// A node freezes in a transaction without closing its connection. The database soon ends the transaction and releases
/// its locks.
#[test]
fn frozen_node_in_a_transaction_does_not_block_others_for_long() {
    let cluster = Cluster::start(&[]);
    let store = Store::on(&cluster);
    let proxy = TcpProxy::start(cluster.address());
    let (node, frozen) = (store.serve(QUIET), store.through(&proxy).serve(SHORT_TIMEOUT));
    let token = store.token("ada", &[]);
    let ada = node.client(&token);
    let lost = frozen.client(&token);
    first_use(&lost, &store);
    ada.plant(1, "there");
    proxy.freeze_at(COMMIT);
    let response = std::thread::scope(|scope| {
        let response = scope.spawn(|| retry_while_unavailable(|| lost.delete(1)));
        wait_until("the transaction to be open", || proxy.is_frozen());
        frozen.signal("STOP");
        let since = Stopwatch::start();
        assert_eq!(ada.delete(1).status, 204, "the transaction of the frozen node was rolled back");
        assert!(since.elapsed() < RECOVERY_LIMIT, "the write succeeded after {:?}", since.elapsed());
        // The late commit of the frozen node has no effect on the new plant.
        ada.plant(1, "anew");
        proxy.heal();
        frozen.signal("CONT");
        response.join().expect("a response")
    });
    assert!(response.status == 204 || response.error() == 50301, "{}", response.wire());
    wait_until_ready(std::slice::from_ref(&frozen));
}
