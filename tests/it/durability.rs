//! Durability: acknowledged writes survive the loss of the process and errors of the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rstest::rstest;

use crate::support::{
    Client, Connection, Engine, Fault, FaultInjector, JSON, Server, Service, StopOnDrop, Store, engine_test, wait_for,
    wait_until,
};

const QUIET: &[&str] = &["--log-level", "warn"];
const WORKERS: usize = 8;
const IDS_PER_WORKER: i64 = 40;

/// Known state of one id: the last acknowledged name, if it has one, and the write without a response.
#[derive(Clone, Default, Debug)]
struct Known {
    acknowledged: Option<String>,
    pending: Option<PendingWrite>,
}

/// Result of a write: a name, or nothing.
#[derive(Clone, Debug, PartialEq)]
struct PendingWrite(Option<String>);

/// Creates, replaces and deletes its own ids until the server ends. No other client uses them, so every response is predictable.
fn work(client: &Client, worker: usize, known: &Mutex<BTreeMap<i64, Known>>, done: &AtomicUsize, stop: &AtomicBool) {
    let Ok(mut connection) = Connection::try_open(client.address) else { return };
    let first = i64::try_from(worker).expect("small") * IDS_PER_WORKER;
    let mut number = done.load(Ordering::Relaxed) * 31 + worker;
    while !stop.load(Ordering::Relaxed) {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let id =
            first + i64::try_from((number >> 33) % usize::try_from(IDS_PER_WORKER).expect("small")).expect("small");
        let before = known.lock().unwrap().entry(id).or_default().acknowledged.clone();
        let path = format!("/plants/{id}");
        let (bytes, after) = if before.is_some() && number >> 32 & 1 == 0 {
            (client.bytes("DELETE", &path, &[], None), None)
        } else {
            let name = format!("{worker}-{number}");
            let body = format!(r#"{{"id":{id},"name":"{name}"}}"#);
            let (method, path) = if before.is_some() { ("PUT", &*path) } else { ("POST", "/plants") };
            (client.bytes(method, path, &[JSON], Some(body.as_bytes())), Some(name))
        };
        known.lock().unwrap().get_mut(&id).unwrap().pending = Some(PendingWrite(after.clone()));
        let Ok(response) = connection.try_send(bytes).and_then(|()| connection.try_read_response(false)) else {
            return;
        };
        assert_eq!(
            response.status,
            if after.is_some() { 200 } else { 204 },
            "{id} was {before:?}: {}",
            response.text()
        );
        *known.lock().unwrap().get_mut(&id).unwrap() = Known { acknowledged: after, pending: None };
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Compares the list with the known state, and resolves the outcome of writes without a response.
fn settle(client: &Client, fault: &Fault, known: &Mutex<BTreeMap<i64, Known>>) {
    let listed: BTreeMap<i64, String> = client
        .get("/plants?include=id")
        .json()
        .as_array()
        .expect("an array")
        .iter()
        .map(|plant| (plant["id"].as_i64().unwrap(), plant["name"].as_str().unwrap().to_owned()))
        .collect();
    let mut known = known.lock().unwrap();
    assert!(listed.keys().all(|id| known.contains_key(id)), "only created plants are listed");
    for (id, known) in known.iter_mut() {
        let found = listed.get(id).cloned();
        let possible = found == known.acknowledged || known.pending == Some(PendingWrite(found.clone()));
        fault.assert_stored(possible, &format!("{id}: found {found:?}, known {known:?}"));
        *known = Known { acknowledged: found, pending: None };
    }
}

fn integrity(store: &Store) {
    match store.engine {
        Engine::Sqlite => {
            let found: String = store.open_file().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
            assert_eq!(found, "ok");
        }
        Engine::Postgres => {
            let ahead = "SELECT plant_id FROM plants JOIN collections USING (user_id) WHERE plants.version > collections.version";
            assert_eq!(store.rows(ahead), [0_i64; 0], "no plant is newer than its collection");
        }
    }
}

engine_test!(acknowledged_writes_survive_sigkill, |store: &Store| {
    let token = store.token("ada", &[]);
    let known = Mutex::new(BTreeMap::new());
    let done = AtomicUsize::new(0);
    let fault = Fault::on(store.engine, "kill of the service", 20).with_more_in_campaign(7);
    for _ in 0..fault.rounds {
        let mut random = fault.begin_round();
        let server = store.serve(QUIET);
        let ada = server.client(&token);
        settle(&ada, &fault, &known);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            for worker in 0..WORKERS {
                let (ada, known, done, stop) = (&ada, &known, &done, &stop);
                scope.spawn(move || work(ada, worker, known, done, stop));
            }
            // Each kill follows a different number of writes, while other writes are in flight.
            let enough = done.load(Ordering::Relaxed) + 50 + random.below(300);
            wait_until("some writes", || done.load(Ordering::Relaxed) >= enough);
            server.kill();
        });
        integrity(store);
    }
    settle(&store.serve(&[]).client(&token), &fault, &known);
    let done = done.into_inner();
    fault.count(done + fault.rounds * WORKERS, done);
});

/// After a failed sync the kernel drops the written pages and marks them clean. So the process exits, and the next one
/// recovers from the disk.
#[rstest]
#[case::requires_strace()]
fn a_failed_sync_ends_the_process() {
    for failing in 1..=4 {
        let store = Store::new(Engine::Sqlite);
        let token = store.token("ada", &[]);
        let server = store.serve(&[]);
        let ada = server.client(&token);
        let _injector = FaultInjector::attach(
            &server,
            &["-o/dev/null", "-e", &format!("inject=fsync,fdatasync:error=EIO:when={failing}+")],
        );
        let mut acknowledged = Vec::new();
        for id in 0..20 {
            let mut connection = ada.connect();
            let body = format!(r#"{{"id":{id},"name":"n"}}"#);
            let sent = connection.try_send(ada.bytes("POST", "/plants", &[JSON], Some(body.as_bytes())));
            match sent.and_then(|()| connection.try_read_response(false)) {
                Ok(response) if response.status == 200 => acknowledged.push(id),
                Ok(response) => panic!("neither a success nor a closed connection: {}", response.text()),
                Err(_) => break,
            }
        }
        assert_eq!(server.wait().code(), Some(1));
        assert!(server.log().contains("the disk failed to sync written data: exiting"), "{}", server.log());
        assert!(acknowledged.len() < 20);
        integrity(&store);
        let found = store.serve(&[]).client(&token).ids();
        assert!(acknowledged.iter().all(|id| found.contains(id)), "{acknowledged:?} in {found:?}");
    }
}

/// A checkpoint syncs the database in a thread of its own, so that the reset of the WAL, which blocks all writes, has little to sync.
#[rstest]
#[case::requires_strace()]
fn a_failed_sync_of_a_checkpoint_ends_the_process() {
    let store = Store::new(Engine::Sqlite);
    let token = store.token("ada", &[]);
    let server = store.serve(&[]);
    let (stop, written) = (AtomicBool::new(false), AtomicUsize::new(0));
    // SQLite itself calls `fsync`.
    let _injector = FaultInjector::attach(&server, &["-o/dev/null", "-e", "inject=fdatasync:error=EIO"]);
    let acknowledged: Vec<i64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (ada, stop, written) = (server.client(&token), &stop, &written);
                scope.spawn(move || fill(&ada, worker, stop, written))
            })
            .collect();
        {
            let _stop = StopOnDrop(&stop);
            wait_until("the process to end", || server.ended().is_some());
        }
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(server.wait().code(), Some(1));
    assert!(server.log().contains("the disk failed to sync written data: exiting"), "{}", server.log());
    integrity(&store);
    let found: BTreeSet<i64> = store.serve(&[]).client(&token).ids().into_iter().collect();
    assert!(acknowledged.iter().all(|id| found.contains(id)));
}

/// The store is on a small file system in a mount namespace of its own.
#[rstest]
#[case::requires_unshare()]
fn writes_to_a_full_disk_get_507_until_space_is_freed() {
    let store = Store::new(Engine::Sqlite);
    let token = store.token("ada", &[]);
    std::fs::create_dir(store.directory().join("small")).unwrap();
    let script = "mount -t tmpfs -o size=2m tmpfs small && cp plants.db small/ && head -c 600000 /dev/zero > small/filler && exec \"$@\"";
    let wrapper = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh"];
    let server = store.serve_through(&wrapper, &["--store", "sqlite:small/plants.db"]);
    let ada = server.client(&token);
    let body = |id: i64| format!(r#"{{"id":{id},"name":"{}"}}"#, "x".repeat(1_000));
    let mut stored = Vec::new();
    let full = wait_for("the disk to be full", || {
        let id = i64::try_from(stored.len()).unwrap();
        let response = ada.post(body(id));
        if response.status == 200 {
            stored.push(id);
            return None;
        }
        Some(response)
    });
    assert_eq!(full.error(), 50700);
    assert_eq!(full.message(), "storage is full, nothing was done: tell the operator of this service");
    assert_eq!(ada.ids(), stored, "reads still succeed");
    assert_eq!(ada.post(body(100_000)).error(), 50700);
    assert_eq!(server.anonymous().get("/readyz").status, 200);
    // The file system is mounted only in the mount namespace of the server.
    let filler = format!("/proc/{}/root{}/small/filler", server.id(), store.directory().display());
    std::fs::remove_file(filler).expect("the filler is removed");
    assert_eq!(ada.post(body(100_000)).status, 200, "the next write succeeds");
    stored.push(100_000);
    assert_eq!(ada.ids(), stored);
    assert_eq!(server.stop().code(), Some(0));
}

/// The write-ahead log is reset under continuous load, and so stays bounded.
#[test]
fn the_wal_stays_bounded_under_load() {
    let Service { store, server } = &Service::new(Engine::Sqlite, &["--log-level", "warn"]);
    let token = store.token("ada", &[]);
    let stop = AtomicBool::new(false);
    let written = AtomicUsize::new(0);
    let wal = store.directory().join("plants.db-wal");
    let length = || std::fs::metadata(&wal).map_or(0, |file| file.len());
    let mut largest = 0;
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for worker in 0..WORKERS {
            let (ada, stop, written) = (server.client(&token), &stop, &written);
            scope.spawn(move || fill(&ada, worker, stop, written));
        }
        // Every plant changes at least one page, so the writes are larger than the limit. Each wait has a timeout of its own,
        // because a slow machine may need long for all writes.
        for part in 1..=9 {
            wait_until("more writes", || {
                largest = largest.max(length());
                written.load(Ordering::Relaxed) * 4_096 > part * (8 << 20)
            });
        }
    });
    assert!(largest < 64 << 20, "{largest} bytes");
    assert_eq!(Server::log(server), "", "no warnings");
}

/// Creates large plants of random ids until it is stopped or the server ends, and returns the ids of those that were acknowledged.
fn fill(client: &Client, worker: usize, stop: &AtomicBool, written: &AtomicUsize) -> Vec<i64> {
    let mut connection = client.connect();
    let name = "x".repeat(1_000);
    let mut id = i64::try_from(worker).expect("small") + 1;
    let mut acknowledged = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        id = id.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let body = format!(r#"{{"id":{id},"name":"{name}"}}"#);
        let sent = connection.try_send(client.bytes("POST", "/plants", &[JSON], Some(body.as_bytes())));
        let Ok(response) = sent.and_then(|()| connection.try_read_response(false)) else { break };
        assert_eq!(response.status, 200);
        acknowledged.push(id);
        written.fetch_add(1, Ordering::Relaxed);
    }
    acknowledged
}
