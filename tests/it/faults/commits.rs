//! A connection breaks while a commit is on its way. The node makes another and finds out: its answer is the true one.

use super::{BEGIN, COMMIT, clients_of_pair, first_use, load, plant, plants, settle, start_pair, wait_for_writes};
use crate::support::{Answer, Client, Cluster, History, Proxy, Random, Site, Stage, wait_for};

const STAGES: [Stage; 3] = [Stage::BeforeSend, Stage::AfterSend, Stage::AfterAnswer];
/// For what is not about time, on a machine that is busy with other tests.
const PATIENT: &[&str] = &["--log-level", "warn", "--store-timeout", "20s"];

#[test]
fn whoever_waits_gets_the_true_answer() {
    let cluster = Cluster::start(&[]);
    let site = Site::on(&cluster);
    let proxy = Proxy::start(cluster.address());
    let node = site.through(&proxy).serve(PATIENT);
    let ada = node.client(&site.token("ada", &[]));
    first_use(&ada, &site);
    // Several in a row: those before the last keep the commit from happening, or there would be no next.
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
        let cut = |call: &dyn Fn() -> Answer| {
            let before = proxy.cuts();
            for stage in &stages {
                proxy.cut_at(*stage, needle);
            }
            let answer = call();
            assert_eq!(proxy.cuts(), before + stages.len(), "{about}: they happened");
            answer
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
fn so_do_all_who_share_a_commit() {
    let cluster = Cluster::start(&[]);
    let (site, proxy, nodes) = start_pair(&cluster, PATIENT);
    let workload = load(&site, &nodes);
    let history = History::new();
    workload.run(&history, || {
        let mut random = Random::new(0);
        for cut in 1..=40 {
            wait_for_writes(&history, 10);
            let needle = if cut % 4 == 0 { BEGIN } else { COMMIT };
            proxy.cut_at(STAGES[random.below(STAGES.len())], needle);
            wait_for("the cut", || (proxy.cuts() == cut).then_some(()));
        }
        wait_for_writes(&history, 100);
    });
    settle(&history, &site);
    workload.look(&history);
    let summary = history.check().unwrap();
    assert_eq!((summary.refused, summary.unknown, summary.failed_lists), (0, 0, 0), "no request failed");
}

/// Changes of other nodes between a commit and its verification are neither repeated nor denied.
#[test]
fn what_others_have_changed_meanwhile_stays_as_it_is() {
    let cluster = Cluster::start(&[]);
    let (site, proxy, nodes) = start_pair(&cluster, PATIENT);
    let [other, ada] = clients_of_pair(&site, &nodes);
    let uproot = |client: &Client| assert_eq!(client.delete(1).status, 204);
    // Cuts this node off while it commits a write, lets the other node work, and gives the answer after that.
    let meanwhile = |stage: Stage, write: &(dyn Fn() -> Answer + Sync), work: &dyn Fn()| {
        let cuts = proxy.cuts();
        proxy.cut_for_good_at(stage, COMMIT);
        std::thread::scope(|scope| {
            let answer = scope.spawn(write);
            wait_for("the cut", || (proxy.cuts() > cuts).then_some(()));
            work();
            proxy.heal();
            answer.join().expect("an answer")
        })
    };
    for stage in [Stage::AfterSend, Stage::AfterAnswer] {
        // The next statement waits until the server has finished it.
        let answer = meanwhile(stage, &|| ada.post(plant(1, "short-lived")), &|| uproot(&other));
        assert_eq!(answer.status, 200, "{stage:?}: it was created: {}", answer.text());
        assert_eq!((plants(&other), plants(&ada)), (vec![], vec![]), "{stage:?}: and stays deleted");

        ada.plant(1, "old");
        let answer = meanwhile(stage, &|| ada.delete(1), &|| other.plant(1, "new"));
        assert_eq!(answer.status, 204, "{stage:?}: it was deleted: {}", answer.text());
        assert_eq!(plants(&ada), [(1, "new".to_owned())], "{stage:?}: and the next one stays");

        let answer = meanwhile(stage, &|| ada.post(plant(1, "in vain")), &|| uproot(&other));
        assert_eq!(answer.error(), 40900, "{stage:?}: it was in the way then");
        assert_eq!(plants(&ada), [], "{stage:?}");
    }
    // A commit that never was comes after what others did.
    let answer = meanwhile(Stage::BeforeSend, &|| ada.post(plant(1, "late")), &|| other.plant(1, "early"));
    assert_eq!(answer.error(), 40900, "{}", answer.text());
    assert_eq!(plants(&ada), [(1, "early".to_owned())]);
    let answer = meanwhile(Stage::BeforeSend, &|| ada.delete(1), &|| uproot(&other));
    assert_eq!(answer.error(), 40400, "{}", answer.text());
}
