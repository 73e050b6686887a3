//! The file of an embedded store is deleted, moved or replaced under a running server.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Client, Connection, Engine, JSON, Server, Site, wait_for};

/// One second is documented; the rest is for a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);
const WORKERS: i64 = 4;

/// A server on a store in a directory of its own, which can be moved.
struct Victim {
    site: Site<'static>,
    server: Server,
    token: String,
}

impl Victim {
    fn start() -> Self {
        let site = Site::new(Engine::Sqlite);
        fs::create_dir(site.directory().join("data")).unwrap();
        let token = site.token("ada", &["--store", "sqlite:data/plants.db"]);
        let server = site.serve(&["--store", "sqlite:data/plants.db"]);
        Self { site, server, token }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site.directory().join(name)
    }

    fn client(&self) -> Client {
        self.server.client(&self.token)
    }

    /// Waits for the end of the process, which must be a failure that the log explains.
    fn ends_with(&mut self, words: &str) {
        let start = Instant::now();
        assert_eq!(self.server.wait().code(), Some(1), "{}", self.server.log());
        assert!(start.elapsed() < NOTICED_WITHIN, "noticed after {:?}", start.elapsed());
        let log = self.server.log();
        let last = log.lines().rfind(|line| line.contains("exiting")).unwrap_or_else(|| panic!("{log}"));
        assert!(last.contains(r#""level":"ERROR""#) && last.contains(words), "{words}: {log}");
    }

    /// Makes a backup with one plant, beside the store.
    #[track_caller]
    fn back_up(&self) -> PathBuf {
        self.client().plant(-1, "of the backup");
        let backup = self.path("data/backup.db");
        let made = self.site.run(&["backup", backup.to_str().unwrap(), "--store", "sqlite:data/plants.db"]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        backup
    }

    /// The ids of the plants in a store file, as a server that starts on it finds them.
    fn ids_in(&self, store: &str) -> Vec<i64> {
        let store = format!("sqlite:{store}");
        self.site.serve(&["--store", &store]).client(&self.token).ids()
    }
}

/// Creates plants until the server goes away. What is sent after the file was lost must not be acknowledged.
fn create_until_the_end(client: &Client, first: i64, created: &AtomicI64, lost: &AtomicBool) -> Vec<i64> {
    let mut acknowledged = Vec::new();
    let Ok(mut connection) = Connection::try_open(client.address) else { return acknowledged };
    for id in (first..).step_by(usize::try_from(WORKERS).unwrap()) {
        let was_lost = lost.load(Ordering::SeqCst);
        let body = format!(r#"{{"id":{id},"name":"n"}}"#);
        let sent = connection.try_send(client.bytes("POST", "/plants", &[JSON], Some(body.as_bytes())));
        match sent.and_then(|()| connection.try_read_response(false)) {
            Ok(response) if response.status == 200 => {
                assert!(!was_lost, "{id} was acknowledged although the file was gone before it was sent");
                acknowledged.push(id);
                created.fetch_add(1, Ordering::SeqCst);
            }
            Ok(response) => assert_eq!(response.status, 503, "{}", response.text()),
            Err(_) => break,
        }
    }
    acknowledged
}

/// Takes the file away under load; gives the ids that were acknowledged.
fn lose_under_load(victim: &Victim, remove: impl FnOnce()) -> Vec<i64> {
    let client = victim.client();
    let (created, lost) = (AtomicI64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                scope.spawn({
                    let (client, created, lost) = (&client, &created, &lost);
                    move || create_until_the_end(client, worker, created, lost)
                })
            })
            .collect();
        wait_for("some writes", || (created.load(Ordering::SeqCst) > 100).then_some(()));
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
    let mut victim = Victim::start();
    fs::remove_file(victim.path("data/plants.db")).unwrap();
    victim.ends_with(DELETED);
}

#[test]
fn deleted_database_file_is_noticed_before_a_write_is_acknowledged() {
    let mut victim = Victim::start();
    lose_under_load(&victim, || fs::remove_file(victim.path("data/plants.db")).unwrap());
    victim.ends_with(DELETED);
}

#[test]
fn deleted_database_file_makes_the_server_unready() {
    let mut victim = Victim::start();
    let anyone = victim.server.anonymous();
    assert_eq!(anyone.get("/readyz").status, 200);
    fs::remove_file(victim.path("data/plants.db")).unwrap();
    // The last result may be cached for a moment. Then the response is 503 until the process has ended.
    let ready = || {
        let mut connection = Connection::try_open(anyone.address).ok()?;
        connection.try_send(anyone.bytes("GET", "/readyz", &[], None)).ok()?;
        connection.try_read_response(false).ok().filter(|response| response.status == 200)
    };
    wait_for("the server to be unready", || ready().is_none().then_some(()));
    assert_eq!(ready(), None, "it stays unready");
    victim.ends_with(DELETED);
}

/// Makes another store with one plant of the same user and token.
fn another_store(victim: &Victim, backup: &Path, path: &Path) {
    let store = format!("sqlite:{}", path.display());
    let made = victim.site.run(&["restore", backup.to_str().unwrap(), "--store", &store]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn replaced_database_file_ends_an_idle_server() {
    let mut victim = Victim::start();
    let backup = victim.back_up();
    victim.client().plant(1, "later");
    fs::rename(&backup, victim.path("data/plants.db")).unwrap();
    victim.ends_with(REPLACED);
    assert_eq!(victim.ids_in("data/plants.db"), [-1], "the new file is what it was");
}

/// SQLite must not apply the WAL of the old file to the new file.
#[test]
fn replaced_database_file_is_left_intact_under_load() {
    let mut victim = Victim::start();
    let backup = victim.back_up();
    let other = victim.path("data/other.db");
    another_store(&victim, &backup, &other);
    lose_under_load(&victim, || fs::rename(&other, victim.path("data/plants.db")).unwrap());
    victim.ends_with(REPLACED);
    let file = rusqlite::Connection::open_with_flags(
        victim.path("data/plants.db"),
        rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE,
    )
    .unwrap();
    let found: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(found, "ok");
    drop(file);
    assert_eq!(victim.ids_in("data/plants.db"), [-1]);
}

#[test]
fn moved_directory_ends_the_server_and_loses_no_acknowledged_write() {
    let mut victim = Victim::start();
    let acknowledged = lose_under_load(&victim, || fs::rename(victim.path("data"), victim.path("moved")).unwrap());
    victim.ends_with(DELETED);
    let found = victim.ids_in("moved/plants.db");
    assert!(acknowledged.iter().all(|id| found.contains(id)), "{acknowledged:?} in {found:?}");
    assert!(!victim.path("data").exists(), "nothing was made in its place");
}

#[test]
fn deleted_wal_files_do_not_end_the_server() {
    let victim = Victim::start();
    let ada = victim.client();
    ada.plant(1, "first");
    for name in ["data/plants.db-wal", "data/plants.db-shm"] {
        fs::remove_file(victim.path(name)).unwrap();
    }
    ada.plant(2, "second");
    assert_eq!(ada.ids(), [1, 2]);
    assert_eq!(victim.server.anonymous().get("/readyz").status, 200);
}

/// Several servers and commands on one file are ordinary use.
#[test]
fn several_processes_on_one_file_do_not_disturb_each_other() {
    let victim = Victim::start();
    let second = victim.site.serve(&["--store", "sqlite:data/plants.db"]);
    victim.client().plant(1, "first");
    second.client(&victim.token).plant(2, "second");
    let backup = victim.site.run(&["backup", "monday.db", "--store", "sqlite:data/plants.db"]);
    assert!(backup.status.success(), "{}", String::from_utf8_lossy(&backup.stderr));
    for server in [&victim.server, &second] {
        assert_eq!(server.client(&victim.token).ids(), [1, 2]);
        assert_eq!(server.anonymous().get("/readyz").status, 200);
    }
}
