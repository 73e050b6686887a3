//! Litestream, which replicates the file of a running server continuously.

use std::fs::{self, File};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::support::tools::{python_tool, succeed};
use crate::support::{Client, StopOnDrop, Store, sqlite_test, wait_for, wait_until};

/// Number of concurrent writers.
const WRITERS: i64 = 4;
/// Number of creates before and after a restart of the server: the WAL is checkpointed several times.
const CREATES: i64 = 1_500;

/// A running `litestream replicate`.
struct Replication<'a> {
    store: &'a Store<'a>,
    process: Child,
}

impl<'a> Replication<'a> {
    fn start(store: &'a Store) -> Self {
        let log = File::create(store.directory().join("litestream.log")).unwrap();
        let mut command = python_tool("litestream");
        command.arg("replicate").arg(store.file()).arg(replica(store)).stdout(log.try_clone().unwrap()).stderr(log);
        Self { store, process: command.spawn().unwrap() }
    }

    /// Restores the replica into a new file, and returns the URL of that store; none if there is no replica yet.
    fn restore(&self, name: &str) -> Option<String> {
        let _ = fs::remove_file(self.store.directory().join(name));
        let mut command = python_tool("litestream");
        command.args(["restore", "-o", name]).arg(replica(self.store)).current_dir(self.store.directory());
        command.output().unwrap().status.success().then(|| format!("sqlite:{name}"))
    }
}

impl Drop for Replication<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn replica(store: &Store) -> String {
    format!("file://{}", store.directory().join("replica").display())
}

/// Returns the table that a backup of a store prints, with the digests of all rows.
fn digests(store: &Store, url: &str) -> String {
    let _ = fs::remove_file(store.directory().join("backup.db"));
    succeed(&mut store.command(&["backup", "backup.db", "--store", url]))
}

/// Creates plants with ids from `first` on, of which each writer takes every fourth in order, until `during` has returned
/// and [`CREATES`] of them are stored.
fn create_during(client: &Client, first: i64, during: impl FnOnce()) {
    let (stop, created) = (AtomicBool::new(false), AtomicI64::new(0));
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for writer in 0..WRITERS {
            let (stop, created) = (&stop, &created);
            scope.spawn(move || {
                for id in (0..).map(|number| first + writer + number * WRITERS) {
                    client.plant(id, "Rose");
                    created.fetch_add(1, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        wait_until("creates", || created.load(Ordering::Relaxed) > CREATES / 10);
        during();
        wait_until("creates", || created.load(Ordering::Relaxed) > CREATES);
    });
}

sqlite_test!(litestream_replicates_under_load_and_restores_the_same_rows, |store: &Store| {
    let token = store.token("ada", &[]);
    let server = store.serve(&["--log-level", "warn"]);
    let replication = Replication::start(store);
    create_during(&server.client(&token), 0, || {
        let restored = wait_for("a replica", || replication.restore("early.db"));
        digests(store, &restored);
        // No writer waits for another, and each has one create in flight: only whole commits, in their order, have this shape.
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let connection = rusqlite::Connection::open_with_flags(store.directory().join("early.db"), flags).unwrap();
        let gaps = "SELECT count(*) FROM plants AS later WHERE plant_id >= ?1 AND NOT EXISTS (
                    SELECT 1 FROM plants AS earlier WHERE earlier.plant_id = later.plant_id - ?1)";
        assert_eq!(connection.query_row(gaps, [WRITERS], |row| row.get::<_, i64>(0)), Ok(0));
    });
    // The server may stop and start beside Litestream.
    assert_eq!(server.stop().code(), Some(0), "{}", server.log());
    let server = store.serve(&["--log-level", "warn"]);
    create_during(&server.client(&token), 1_000_000, || ());
    let ids = server.client(&token).ids();
    assert_eq!(server.stop().code(), Some(0), "{}", server.log());

    let expected = digests(store, &store.url());
    wait_for("a complete replica", || {
        let restored = replication.restore("late.db")?;
        (digests(store, &restored) == expected).then_some(())
    });
    drop(replication);
    let server = store.serve(&["--store", "sqlite:late.db"]);
    assert_eq!(server.client(&token).ids(), ids);
});
