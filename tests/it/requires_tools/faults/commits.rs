//! A connection breaks during a commit. The node reconnects and looks up the outcome, so its response is correct.

use super::{
    BEGIN, COMMIT, QUIET, clients_of_pair, first_use, load, plant, plants, settle, start_pair, wait_for_writes,
};
use crate::support::{Client, Cluster, Fault, History, Response, Stage, Store, TcpProxy, wait_until};

const STAGES: [Stage; 3] = [Stage::BeforeSend, Stage::AfterSend, Stage::AfterResponse];

#[test]
fn outcome_of_a_commit_on_a_lost_connection_is_looked_up() {
    let cluster = Cluster::start(&[]);
    let store = Store::on(&cluster);
    let proxy = TcpProxy::start(cluster.address());
    let node = store.through(&proxy).serve(QUIET);
    let ada = node.client(&store.token("ada", &[]));
    first_use(&ada, &store);
    // With several cuts, all but the last prevent the commit; otherwise the server would not send it again.
    let mut series: Vec<(&'static [u8], Vec<Stage>)> = Vec::new();
    for stage in STAGES {
        series.push((BEGIN, vec![stage]));
        series.push((COMMIT, vec![stage]));
        series.push((BEGIN, vec![stage, stage]));
        series.push((COMMIT, vec![Stage::BeforeSend, stage]));
        series.push((COMMIT, vec![Stage::BeforeSend, Stage::BeforeSend, stage]));
    }
    for (needle, stages) in series {
        let about = format!("{} cut {stages:?}", String::from_utf8_lossy(&needle[..6]));
        let cut = |call: &dyn Fn() -> Response| {
            let before = proxy.cuts();
            for stage in &stages {
                proxy.cut_at(*stage, needle);
            }
            let response = call();
            assert_eq!(proxy.cuts(), before + stages.len(), "{about}: all cuts have happened");
            response
        };
        assert_eq!(cut(&|| ada.post(plant(1, "first"))).status, 200, "{about}");
        assert_eq!(plants(&ada), [(1, "first".to_owned())], "{about}");
        assert_eq!(cut(&|| ada.post(plant(1, "second"))).error(), 40900, "{about}");
        assert_eq!(ada.post(plant(1, "third")).error(), 40900, "{about}");
        assert_eq!(plants(&ada), [(1, "first".to_owned())], "{about}");
        assert_eq!(cut(&|| ada.delete(1)).status, 204, "{about}");
        assert_eq!(plants(&ada), [], "{about}");
        assert_eq!(cut(&|| ada.delete(1)).error(), 40400, "{about}");
        assert_eq!(ada.delete(1).error(), 40400, "{about}");
    }
}

#[test]
fn outcome_of_a_lost_group_commit_is_looked_up_for_each_request() {
    // While a commit waits for the disk, more requests join the next group.
    let cluster = Cluster::start(&["fsync=on"]);
    let (store, proxy, nodes) = start_pair(&cluster, [QUIET, QUIET]);
    let workload = load(&store, &nodes);
    let history = History::new();
    let fault = Fault::new("cut of a group commit to PostgreSQL", 40);
    workload.run(&history, || {
        for cut in 1..=fault.rounds {
            let mut random = fault.begin_round();
            wait_for_writes(&history, 10);
            let needle = if cut % 4 == 0 { BEGIN } else { COMMIT };
            proxy.cut_at(STAGES[random.below(STAGES.len())], needle);
            wait_until("the proxy to cut the connection", || proxy.cuts() == cut);
        }
        wait_for_writes(&history, 100);
    });
    settle(&history, &store);
    workload.record_final_lists(&history);
    let summary = history.check().unwrap();
    fault.count_history(&summary);
    assert_eq!((summary.rejected, summary.unknown, summary.failed_lists), (0, 0, 0), "no request failed");
}

/// Another node changes the plant between a commit and the lookup of its outcome. The response is still correct, and
/// the change of the other node stays.
#[test]
fn changes_of_others_during_the_lookup_are_preserved() {
    let cluster = Cluster::start(&[]);
    let (store, proxy, nodes) = start_pair(&cluster, [QUIET, QUIET]);
    let [other, ada] = clients_of_pair(&store, &nodes);
    let delete = |client: &Client| assert_eq!(client.delete(1).status, 204);
    // Cuts this node off while it commits a write, runs `work` on the other node, and then returns the response.
    let meanwhile = |stage: Stage, write: &(dyn Fn() -> Response + Sync), work: &dyn Fn()| {
        let cuts = proxy.cuts();
        proxy.cut_all_at(stage, COMMIT);
        std::thread::scope(|scope| {
            let response = scope.spawn(write);
            wait_until("the proxy to cut the connection", || proxy.cuts() > cuts);
            work();
            proxy.heal();
            response.join().expect("a response")
        })
    };
    for stage in [Stage::AfterSend, Stage::AfterResponse] {
        // The other node's delete waits for the lock of the commit, so it runs after the create.
        let response = meanwhile(stage, &|| ada.post(plant(1, "short-lived")), &|| delete(&other));
        assert_eq!(response.status, 200, "{stage:?}: the plant was created: {}", response.text());
        assert_eq!((plants(&other), plants(&ada)), (vec![], vec![]), "{stage:?}: the delete of the other node stays");

        ada.plant(1, "old");
        let response = meanwhile(stage, &|| ada.delete(1), &|| other.plant(1, "new"));
        assert_eq!(response.status, 204, "{stage:?}: the plant was deleted: {}", response.text());
        assert_eq!(plants(&ada), [(1, "new".to_owned())], "{stage:?}: the create of the other node stays");

        let response = meanwhile(stage, &|| ada.post(plant(1, "in vain")), &|| delete(&other));
        assert_eq!(response.error(), 40900, "{stage:?}: the plant existed at the time of the commit");
        assert_eq!(plants(&ada), [], "{stage:?}");
    }
    // A commit that did not reach the server is repeated after the change of the other node.
    let response = meanwhile(Stage::BeforeSend, &|| ada.post(plant(1, "late")), &|| other.plant(1, "early"));
    assert_eq!(response.error(), 40900, "{}", response.text());
    assert_eq!(plants(&ada), [(1, "early".to_owned())]);
    let response = meanwhile(Stage::BeforeSend, &|| ada.delete(1), &|| delete(&other));
    assert_eq!(response.error(), 40400, "{}", response.text());
}
