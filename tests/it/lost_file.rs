//! The file of an embedded store is deleted, moved or replaced under a running server.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use crate::support::tools::succeed;
use crate::support::{Client, Connection, Engine, JSON, Server, Stopwatch, Store, wait_until};

/// One second is documented; the rest is for a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);
const WORKERS: i64 = 4;

/// A server whose store is in a separate directory, which the test can move.
struct Fixture {
    store: Store<'static>,
    server: Server,
    token: String,
}

impl Fixture {
    fn start() -> Self {
        let store = Store::new(Engine::Sqlite);
        fs::create_dir(store.directory().join("data")).unwrap();
        let token = store.token("ada", &["--store", "sqlite:data/plants.db"]);
        let server = store.serve(&["--store", "sqlite:data/plants.db"]);
        Self { store, server, token }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.store.directory().join(name)
    }

    fn client(&self) -> Client {
        self.server.client(&self.token)
    }

    /// Waits until the server exits with a failure whose log message contains `words`.
    fn assert_exits_with(&mut self, words: &str) {
        let start = Stopwatch::start();
        assert_eq!(self.server.wait().code(), Some(1), "{}", self.server.log());
        assert!(start.elapsed() < NOTICED_WITHIN, "noticed after {:?}", start.elapsed());
        let log = self.server.log();
        let last = log.lines().rfind(|line| line.contains("exiting")).unwrap_or_else(|| panic!("{log}"));
        assert!(last.contains(r#""level":"ERROR""#) && last.contains(words), "{words}: {log}");
    }

    /// Creates a backup with one plant in the directory of the store.
    #[track_caller]
    fn back_up(&self) -> PathBuf {
        self.client().plant(-1, "of the backup");
        let backup = self.path("data/backup.db");
        succeed(&mut self.store.command(&["backup", backup.to_str().unwrap(), "--store", "sqlite:data/plants.db"]));
        backup
    }

    /// Starts a server on a store file and returns the ids of its plants.
    fn ids_in(&self, store: &str) -> Vec<i64> {
        let store = format!("sqlite:{store}");
        self.store.serve(&["--store", &store]).client(&self.token).ids()
    }
}

/// Creates plants until the server disconnects. Requests that are sent after the file is lost must not be acknowledged.
fn create_until_disconnected(client: &Client, first: i64, created: &AtomicI64, lost: &AtomicBool) -> Vec<i64> {
    let mut acknowledged = Vec::new();
    let Ok(mut connection) = Connection::try_open(client.address) else { return acknowledged };
    for id in (first..).step_by(usize::try_from(WORKERS).unwrap()) {
        let was_lost = lost.load(Ordering::SeqCst);
        let body = format!(r#"{{"id":{id},"name":"n"}}"#);
        let sent = connection.try_send(client.bytes("POST", "/plants", &[JSON], Some(body.as_bytes())));
        match sent.and_then(|()| connection.try_read_response(false)) {
            Ok(response) if response.status == 200 => {
                assert!(!was_lost, "{id} was acknowledged although it was sent after the file was removed");
                acknowledged.push(id);
                created.fetch_add(1, Ordering::SeqCst);
            }
            Ok(response) => assert_eq!(response.status, 503, "{}", response.text()),
            Err(_) => break,
        }
    }
    acknowledged
}

/// Removes the file under load and returns the acknowledged ids.
fn remove_under_load(fixture: &Fixture, remove: impl FnOnce()) -> Vec<i64> {
    let client = fixture.client();
    let (created, lost) = (AtomicI64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                scope.spawn({
                    let (client, created, lost) = (&client, &created, &lost);
                    move || create_until_disconnected(client, worker, created, lost)
                })
            })
            .collect();
        wait_until("some writes", || created.load(Ordering::SeqCst) > 100);
        remove();
        lost.store(true, Ordering::SeqCst);
        let mut ids: Vec<i64> = workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect();
        ids.sort_unstable();
        ids
    })
}

const DELETED: &str = "the database file was deleted or moved";
const REPLACED: &str = "the database file was replaced";

#[test]
fn deleted_database_file_ends_an_idle_server() {
    let mut fixture = Fixture::start();
    fs::remove_file(fixture.path("data/plants.db")).unwrap();
    fixture.assert_exits_with(DELETED);
}

#[test]
fn deleted_database_file_is_noticed_before_a_write_is_acknowledged() {
    let mut fixture = Fixture::start();
    remove_under_load(&fixture, || fs::remove_file(fixture.path("data/plants.db")).unwrap());
    fixture.assert_exits_with(DELETED);
}

#[test]
fn deleted_database_file_makes_the_server_unready() {
    let mut fixture = Fixture::start();
    let anyone = fixture.server.anonymous();
    assert_eq!(anyone.get("/readyz").status, 200);
    fs::remove_file(fixture.path("data/plants.db")).unwrap();
    // The last result may be cached for a moment. Then the response is 503 until the process has ended.
    let ready = || {
        let mut connection = Connection::try_open(anyone.address).ok()?;
        connection.try_send(anyone.bytes("GET", "/readyz", &[], None)).ok()?;
        connection.try_read_response(false).ok().filter(|response| response.status == 200)
    };
    wait_until("the server to be unready", || ready().is_none());
    assert_eq!(ready(), None, "the server stays unready");
    fixture.assert_exits_with(DELETED);
}

/// Restores the backup to another path.
fn another_store(fixture: &Fixture, backup: &Path, path: &Path) {
    let store = format!("sqlite:{}", path.display());
    succeed(&mut fixture.store.command(&["restore", backup.to_str().unwrap(), "--store", &store]));
}

#[test]
fn replaced_database_file_ends_an_idle_server() {
    let mut fixture = Fixture::start();
    let backup = fixture.back_up();
    fixture.client().plant(1, "later");
    fs::rename(&backup, fixture.path("data/plants.db")).unwrap();
    fixture.assert_exits_with(REPLACED);
    assert_eq!(fixture.ids_in("data/plants.db"), [-1], "the new file is unchanged");
}

/// SQLite must not apply the WAL of the old file to the new file.
#[test]
fn replaced_database_file_is_left_intact_under_load() {
    let mut fixture = Fixture::start();
    let backup = fixture.back_up();
    let other = fixture.path("data/other.db");
    another_store(&fixture, &backup, &other);
    remove_under_load(&fixture, || fs::rename(&other, fixture.path("data/plants.db")).unwrap());
    fixture.assert_exits_with(REPLACED);
    let file = rusqlite::Connection::open_with_flags(
        fixture.path("data/plants.db"),
        rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE,
    )
    .unwrap();
    let found: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(found, "ok");
    drop(file);
    assert_eq!(fixture.ids_in("data/plants.db"), [-1]);
}

#[test]
fn moved_directory_ends_the_server_and_loses_no_acknowledged_write() {
    let mut fixture = Fixture::start();
    let acknowledged = remove_under_load(&fixture, || fs::rename(fixture.path("data"), fixture.path("moved")).unwrap());
    fixture.assert_exits_with(DELETED);
    let found = fixture.ids_in("moved/plants.db");
    assert!(acknowledged.iter().all(|id| found.contains(id)), "{acknowledged:?} in {found:?}");
    assert!(!fixture.path("data").exists(), "no directory is created in its place");
}

#[test]
fn deleted_wal_files_do_not_end_the_server() {
    let fixture = Fixture::start();
    let ada = fixture.client();
    ada.plant(1, "first");
    for name in ["data/plants.db-wal", "data/plants.db-shm"] {
        fs::remove_file(fixture.path(name)).unwrap();
    }
    ada.plant(2, "second");
    assert_eq!(ada.ids(), [1, 2]);
    assert_eq!(fixture.server.anonymous().get("/readyz").status, 200);
}

/// Several servers and commands on one file are ordinary use.
#[test]
fn several_processes_on_one_file_do_not_disturb_each_other() {
    let fixture = Fixture::start();
    let second = fixture.store.serve(&["--store", "sqlite:data/plants.db"]);
    fixture.client().plant(1, "first");
    second.client(&fixture.token).plant(2, "second");
    succeed(&mut fixture.store.command(&["backup", "monday.db", "--store", "sqlite:data/plants.db"]));
    for server in [&fixture.server, &second] {
        assert_eq!(server.client(&fixture.token).ids(), [1, 2]);
        assert_eq!(server.anonymous().get("/readyz").status, 200);
    }
}
