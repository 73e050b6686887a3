//! The schema and the program change while the database restarts or clients write.

use std::process::{Command, Stdio};

use super::{QUIET, load_by, plant, plants, settle, wait_for_writes};
use crate::support::tools::succeed;
use crate::support::{
    Cluster, CommandOutput, Fault, History, STAGES, Server, Store, TcpProxy, previous_releases, wait_until,
};

const THIS: &str = env!("CARGO_BIN_EXE_plantstore");
const MIGRATIONS: [&str; 4] = [
    include_str!("../../../../migrations/postgres/0001_plants.sql"),
    include_str!("../../../../migrations/postgres/0002_keys_and_shares.sql"),
    include_str!("../../../../migrations/postgres/0003_self_service.sql"),
    include_str!("../../../../migrations/postgres/0004_one_table_of_shares.sql"),
];

/// Creates the schema of an earlier release, with a user who has a plant.
fn create_old_schema(store: &Store, version: usize) {
    let versions: Vec<String> = (1..=version).map(|number| format!("({number}, 1)")).collect();
    store.execute(&format!(
        "SET ROLE plantstore; CREATE SCHEMA plantstore; {}; INSERT INTO schema_versions VALUES {};
         INSERT INTO users (name, created_at) VALUES ('ada', 0); INSERT INTO collections VALUES (1, 1);
         INSERT INTO plants (user_id, plant_id, name, version) VALUES (1, 1, 'Rose', 1)",
        MIGRATIONS[..version].concat(),
        versions.join(", ")
    ));
}

/// The database is killed at any message of a migration from each released schema, or from none.
#[test]
fn migration_is_completed_after_a_restart_of_the_database() {
    let cluster = Cluster::start(&[]);
    let fault = Fault::new("restart of PostgreSQL during a migration", MIGRATIONS.len());
    let mut cuts = 0;
    for round in 0..fault.rounds {
        let mut random = fault.begin_round();
        let version = round % MIGRATIONS.len();
        let store = Store::undistributed(&cluster);
        let mut expected = Vec::new();
        if version > 0 {
            create_old_schema(&store, version);
            expected.push((1, "Rose".to_owned()));
        }
        let proxy = TcpProxy::start(cluster.address());
        proxy.cut_after(random.below(60 / (version + 1)), STAGES[random.below(STAGES.len())]);
        let through = store.through(&proxy);
        let mut command = through.command(&["migrate"]);
        let mut migration = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a process");
        wait_until("a cut, or the end", || {
            proxy.cuts() > 0 || migration.try_wait().expect("the state of the process").is_some()
        });
        cluster.kill();
        cuts += proxy.cuts();
        cluster.restart();
        let output = migration.wait_with_output().expect("the end of the migration");
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}", output.stderr_text());
        store.run(&["migrate"]).success();
        assert_eq!(store.rows("SELECT version FROM schema_versions ORDER BY version"), [1, 2, 3, 4]);
        let node = store.serve(QUIET);
        let ada = node.client(&store.token("ada", &[]));
        fault.assert_stored(plants(&ada) == expected, &format!("after a migration from {version}"));
        assert_eq!(ada.post(plant(2, "Fern")).status, 200);
        fault.count(2, 1);
    }
    assert!(cuts >= fault.rounds / 2, "only {cuts} migrations were cut off");
}

/// `scripts/faults --old` names programs of earlier releases. Without it, nodes of this release are replaced.
#[test]
fn nodes_are_replaced_one_after_the_other_under_load() {
    let cluster = Cluster::start(&[]);
    let previous = previous_releases();
    for program in &previous {
        let version = succeed(Command::new(program).arg("--version"));
        replace_nodes(&cluster, program, &format!("rolling upgrade from {} and back", version.trim_end()));
    }
    if previous.is_empty() {
        replace_nodes(&cluster, THIS, "replacement of nodes");
    }
}

/// Replaces the nodes of one release by nodes of this one and back. The schema is updated before the nodes are replaced, or by the
/// first of the new ones.
fn replace_nodes(cluster: &Cluster, old: &str, name: &str) {
    let fault = Fault::new(name, 2);
    for migrates_first in [true, false] {
        replace_nodes_of_a_store(&Store::undistributed(cluster), old, migrates_first, &fault);
    }
}

#[track_caller]
fn replace_nodes_of_a_store(store: &Store, old: &str, migrates_first: bool, fault: &Fault) {
    succeed(&mut store.command_of(&[old], &["migrate"]));
    let start = |program: &str, listen: &str| {
        let arguments = [&["serve", "--no-first-token", "--listen", listen], QUIET].concat();
        Server::start(store.command_of(&[program], &arguments))
    };
    let mut nodes = [(); 2].map(|()| start(old, "127.0.0.1:0"));
    let mut workload = load_by(old, store, &nodes);
    if old != THIS {
        // Earlier releases have neither.
        workload.watchers = 0;
        workload.uses_all_operations = false;
    }
    let history = History::new();
    for program in [THIS, old].into_iter().cycle().take(fault.rounds) {
        fault.begin_round();
        workload.run(&history, || {
            wait_for_writes(&history, 100);
            if migrates_first {
                store.run(&["migrate"]).success();
            }
            for node in &mut nodes {
                assert_eq!(node.stop().code(), Some(0));
                *node = start(program, &node.address().to_string());
                wait_for_writes(&history, 100);
            }
        });
        settle(&history, store);
        workload.record_final_lists(&history);
    }
    let summary = history.check().unwrap();
    fault.count_history(&summary);
    assert_eq!(summary.rejected, 0, "{summary:?}");
    // Only requests in flight may have failed: at most one of each client when its node stops.
    let in_flight = 2 * fault.rounds * (workload.writers + workload.listers);
    assert!(summary.unknown + summary.failed_lists <= in_flight, "{summary:?}");
}
