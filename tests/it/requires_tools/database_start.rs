//! Starts on a database that is slow, busy or unreachable: waiting, retries and immediate errors.

use std::process::{Child, Stdio};

use crate::support::transfer::{import, lines};
use crate::support::{
    CLOSED_ADDRESS, Cluster, CommandOutput, Engine, Store, TcpProxy, assert_contains, postgres_test, wait_until,
};

/// The advisory lock under which the schema is changed.
const SCHEMA_LOCK: &str = "BEGIN; SELECT pg_advisory_xact_lock(1347178068)";
/// Store timeout that is much shorter than the waits of these tests.
const SHORT: &[&str] = &["--store-timeout", "50ms"];

/// Counts the sessions of plantstore on the database that meet a condition.
fn sessions(store: &Store, condition: &str) -> Vec<i64> {
    store.rows(&format!(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'plantstore' AND {condition}"
    ))
}

fn migrate(store: &Store) -> Child {
    let mut command = store.command(&["migrate"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn migration_may_be_idle_for_longer_than_a_request_waits() {
    let store = Store::empty(Engine::Postgres);
    let proxy = TcpProxy::start(Cluster::shared().address());
    proxy.freeze_at(b"INSERT INTO plantstore.schema_versions");
    let slow = store.through(&proxy);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| slow.serve(SHORT));
        let idle = "state = 'idle in transaction' AND clock_timestamp() - state_change > interval '1 s'";
        wait_until("a migration that has been idle for 1 s", || sessions(&store, idle) == [1]);
        proxy.heal();
        let server = server.join().unwrap();
        let ada = server.client(&store.token("ada", &[]));
        wait_until("the store to be available", || ada.get("/plants").status == 200);
    });
}

#[test]
fn migration_waits_for_another_and_says_so() {
    let store = Store::empty(Engine::Postgres);
    let held = store.hold(SCHEMA_LOCK);
    let migrating = migrate(&store);
    wait_until("the migration to wait for the lock", || sessions(&store, "wait_event_type = 'Lock'") == [1]);
    drop(held);
    let reported = migrating.wait_with_output().unwrap().notes();
    assert_contains(reported, "another process is migrating the schema: waiting for it");
}

#[test]
fn migration_whose_connection_is_lost_is_retried() {
    let store = Store::empty(Engine::Postgres);
    let held = store.hold(SCHEMA_LOCK);
    let migrating = migrate(&store);
    wait_until("the migration to wait for the lock", || sessions(&store, "wait_event_type = 'Lock'") == [1]);
    let waiting =
        store.rows("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'");
    store.execute(&format!("SELECT pg_terminate_backend({})", waiting[0]));
    wait_until("another connection to wait for the lock", || sessions(&store, "wait_event_type = 'Lock'") == [1]);
    drop(held);
    let reported = migrating.wait_with_output().unwrap().notes();
    assert_contains(&reported, "cannot prepare the schema: retrying");
    assert_contains(&reported, "57P01");
}

#[test]
fn command_on_an_unreachable_database_fails_at_once() {
    let source = Store::new(Engine::Sqlite);
    import(&source, &[], &lines(&["ada"], 3));
    let address = CLOSED_ADDRESS;
    let dead = Cluster::shared().url_at(address, "plants");
    let expected = format!(
        "error: cannot connect to postgres://plantstore@{address}/plants: error connecting to server: Connection refused\n"
    );
    for arguments in [
        ["copy", "--from", &source.url(), "--to", &dead].as_slice(),
        &["copy", "--from", &dead, "--to", "sqlite:new.db"],
        &["user", "list", "--store", &dead],
        &["migrate", "--store", &dead],
        &["import", "--store", &dead, "-"],
        &["backup", "new.db", "--store", &dead],
    ] {
        let reported = source.run(arguments).failure(1);
        let lines: Vec<_> = reported.lines().map(str::to_owned).collect();
        // The password is an argument here, so the command prints a warning.
        let reported: Vec<_> =
            lines.iter().filter(|line| !line.contains("is visible to all users of this machine")).collect();
        assert_eq!(reported, [expected.trim_end()], "{arguments:?}");
    }
}

postgres_test!(server_retries_an_unreachable_database_and_names_it, |store: &Store| {
    let address = CLOSED_ADDRESS;
    let mut command = store.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("PLANTSTORE_STORE", Cluster::shared().url_at(address, "plants"));
    let reported = command.stdin(Stdio::null()).output().unwrap().failure(1);
    let lines: Vec<_> = reported.lines().collect();
    assert_eq!(lines.len(), 2, "{reported}");
    assert!(lines[0].contains("cannot connect to the database: retrying"), "{reported}");
    assert!(lines[0].contains(&format!("postgres://plantstore@{address}/plants")), "{reported}");
    assert!(lines[1].starts_with("error: cannot connect to postgres://"), "{reported}");
});
