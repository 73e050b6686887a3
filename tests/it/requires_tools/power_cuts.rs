//! Power cuts: the real program runs on files that a cut at a random moment may have left. What it had acknowledged is there,
//! nothing is there by half, and every key counts once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use tempfile::TempDir;

use crate::support::recorded_disk::{RecordedDisk, Syncs, recorder};
use crate::support::transfer::{export, lines};
use crate::support::{Client, CommandOutput, Engine, Fault, JSON, Random, Response, Server, Store};

const WORKERS: usize = 4;
const IDS_PER_WORKER: usize = 12;
/// Writes of each worker: so many that the write-ahead log is reset and begun again.
const WRITES_PER_WORKER: usize = 600;
/// Number of cuts of each kind of work in the suite.
const CUTS: usize = 13;
/// Number of times as many cuts in a campaign.
const MORE_CUTS: usize = 25;
const OWNERS: [&str; 2] = ["ada", "bob"];

/// A write, which is sent again with the same key after a cut.
struct Write {
    id: usize,
    method: &'static str,
    /// The name that the plant has afterwards.
    after: Option<String>,
    key: String,
}

impl Write {
    fn send(&self, client: &Client) -> Response {
        let path = if self.method == "POST" { "/plants".to_owned() } else { format!("/plants/{}", self.id) };
        let quoted = format!("\"{}\"", self.key);
        let headers = [("Idempotency-Key", &*quoted), ("X-Request-Id", &self.key), JSON];
        let body = self.after.as_ref().map(|name| format!(r#"{{"id":{},"name":"{name}"}}"#, self.id));
        let headers = if body.is_some() { &headers[..] } else { &headers[..2] };
        client.call(self.method, &path, headers, body.as_ref().map(String::as_bytes))
    }

    /// Returns true if the response to another request with this key is the stored one.
    fn is_stored(&self, client: &Client) -> bool {
        let response = self.send(client);
        response.status == self.status() && response.header("idempotency-replayed") == Some("true")
    }

    fn status(&self) -> u16 {
        if self.after.is_some() { 200 } else { 204 }
    }
}

/// Creates, replaces and deletes plants of its own ids, one after the other, until there is a number of them.
fn work(client: &Client, worker: usize, count: usize) -> Vec<Write> {
    let mut random = Random::new(worker as u64);
    let mut plants = BTreeMap::new();
    let mut writes: Vec<Write> = Vec::new();
    for number in 0..count {
        let id = worker * IDS_PER_WORKER + random.below(IDS_PER_WORKER);
        let method = match (plants.contains_key(&id), random.below(2)) {
            (false, _) => "POST",
            (true, 0) => "PUT",
            (true, _) => "DELETE",
        };
        // The longest names, so that the log is soon long enough for a reset.
        let after = (method != "DELETE").then(|| format!("{worker}-{number}-{}", "🌱".repeat(900)));
        match &after {
            Some(name) => drop(plants.insert(id, name.clone())),
            None => drop(plants.remove(&id)),
        }
        let write = Write { id, method, after, key: format!("cut-{worker}-{number}") };
        assert_eq!(write.send(client).status, write.status());
        writes.push(write);
    }
    writes
}

/// Returns the plants after these writes.
fn state(writes: &[Write]) -> BTreeMap<usize, String> {
    let mut plants = BTreeMap::new();
    for write in writes {
        match &write.after {
            Some(name) => drop(plants.insert(write.id, name.clone())),
            None => drop(plants.remove(&write.id)),
        }
    }
    plants
}

/// Returns the plants of each worker that the server has.
fn listed(client: &Client, request: &str) -> [BTreeMap<usize, String>; WORKERS] {
    let mut plants: [BTreeMap<usize, String>; WORKERS] = Default::default();
    let response = client.call("GET", "/plants?include=id", &[("X-Request-Id", request)], None);
    for plant in response.json().as_array().unwrap() {
        let id = usize::try_from(plant["id"].as_u64().unwrap()).unwrap();
        plants[id / IDS_PER_WORKER].insert(id, plant["name"].as_str().unwrap().to_owned());
    }
    plants
}

#[track_caller]
fn assert_integrity(store: &Store) {
    let found: String = store.open_file().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(found, "ok");
}

/// A directory with the files that a cut has left.
fn after_cut(disk: &RecordedDisk, moment: usize, syncs: Syncs, random: &mut Random) -> Store<'static> {
    let store = Store::in_memory();
    disk.cut(moment, syncs, random, store.directory());
    store
}

/// Calls `check` with the files of many cuts. `moment` is `disk.end` for a cut after the end of the program.
fn for_each_cut(disk: &RecordedDisk, fault: &Fault, mut check: impl FnMut(&Store, usize)) {
    for number in 0..fault.rounds {
        let mut random = fault.begin_round();
        // Every tenth cut is after the end.
        let moment = if number % 10 == 0 { disk.end } else { random.below(disk.end) };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check(&after_cut(disk, moment, Syncs::Honest, &mut random), moment);
        }));
        assert!(result.is_ok(), "cut {number}, at call {moment} of {}", disk.end);
    }
}

/// Records a command to its end.
fn record(store: &Store, arguments: &[&str]) -> (RecordedDisk, Output) {
    let disk = RecordedDisk::of(store.directory());
    let traces = TempDir::new().unwrap();
    let trace = traces.path().join("trace");
    let mut command = store.command_through(&recorder(&trace), arguments);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    (disk.replay(id, &trace), output)
}

/// A server under load, and what its clients did.
struct RecordedLoad {
    disk: RecordedDisk,
    token: String,
    /// Writes of each worker.
    workers: Vec<Vec<Write>>,
    /// Request ids of lists, and how many of the writes of each worker are in each list at least.
    lists: Vec<(String, [usize; WORKERS])>,
}

impl RecordedLoad {
    fn record(store: &Store) -> Self {
        let token = store.token("ada", &[]);
        let disk = RecordedDisk::of(store.directory());
        let traces = TempDir::new().unwrap();
        let trace = traces.path().join("trace");
        let server = store.serve_through(&recorder(&trace), &["--log-level", "warn"]);
        let ada = &server.client(&token);
        let (workers, lists) = std::thread::scope(|scope| {
            let workers: Vec<_> =
                (0..WORKERS).map(|worker| scope.spawn(move || work(ada, worker, WRITES_PER_WORKER))).collect();
            let mut lists = Vec::new();
            while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                let request = format!("list-{}", lists.len());
                let seen = listed(ada, &request).map(|plants| plants.values().map(|name| number_of(name) + 1).max());
                lists.push((request, seen.map(Option::unwrap_or_default)));
            }
            (workers.into_iter().map(|worker| worker.join().unwrap()).collect(), lists)
        });
        let stopping = server.stop();
        assert_eq!(stopping.code(), Some(0));
        let disk = disk.replay(server.id(), &trace);
        assert!(disk.log_headers() >= 2, "the log was not reset");
        Self { disk, token, workers, lists }
    }

    /// Checks the store that a cut has left: every acknowledged write is there, with its key, and each that a list has shown.
    fn check(&self, store: &Store, moment: usize, fault: &Fault) -> Result<(), String> {
        let server = store.serve(&["--log-level", "warn"]);
        let ada = server.client(&self.token);
        let found = listed(&ada, "after the cut");
        // The whole of a list was received before the next one was requested.
        let received = self.lists.windows(2).rfind(|pair| self.disk.responded_at(&pair[1].0) < moment);
        let seen = received.map_or([0; WORKERS], |pair| pair[0].1);
        for (worker, writes) in self.workers.iter().enumerate() {
            let done = writes.partition_point(|write| self.disk.responded_at(&write.key) < moment);
            let sent = (done + 1).min(writes.len());
            fault.count(sent, done);
            if !(done.max(seen[worker])..=sent).any(|count| state(&writes[..count]) == found[worker]) {
                let found: Vec<usize> = found[worker].values().map(|name| number_of(name)).collect();
                return Err(format!("{worker} after {done} writes, {} listed, has those of {found:?}", seen[worker]));
            }
            // The last acknowledged write has no second effect, nor has an earlier one, and the next one has one.
            let repeated = [done.checked_sub(1), moment.checked_rem(done)];
            if let Some(lost) = repeated.iter().flatten().find(|write| !writes[**write].is_stored(&ada)) {
                return Err(format!("{worker} after {done} writes: the key of {lost}"));
            }
            if let Some(write) = writes.get(done) {
                assert_eq!(write.send(&ada).status, write.status(), "{worker} sends {done} again");
            }
            let expected = state(&writes[..sent]);
            assert_eq!(listed(&ada, "after the next write")[worker], expected, "{worker} at {moment}");
        }
        server.kill();
        assert_integrity(store);
        Ok(())
    }
}

/// Returns the number of the write that has given a plant its name.
fn number_of(name: &str) -> usize {
    name.split('-').nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn acknowledged_writes_survive_a_power_cut() {
    let store = Store::new(Engine::Sqlite);
    let load = RecordedLoad::record(&store);
    // The check finds what is lost if commits are not synced.
    let control = Fault::new("power cut, synchronous=NORMAL", CUTS).into_control();
    for _ in 0..control.rounds {
        let mut random = control.begin_round();
        let moment = random.below(load.disk.end);
        let store = after_cut(&load.disk, moment, Syncs::NotOfCommits, &mut random);
        if load.check(&store, moment, &control).is_err() {
            control.found_lost();
        }
    }
    assert!(control.has_found(), "no write was lost");
    let fault = Fault::new("power cut under load", CUTS).with_more_in_campaign(MORE_CUTS);
    for_each_cut(&load.disk, &fault, |store, moment| {
        let result = load.check(store, moment, &fault);
        fault.assert_stored(result.is_ok(), &format!("{result:?}"));
    });
}

#[test]
fn power_cut_during_the_first_start_leaves_a_store_that_starts() {
    let store = Store::empty(Engine::Sqlite);
    let disk = RecordedDisk::of(store.directory());
    let traces = TempDir::new().unwrap();
    let trace = traces.path().join("trace");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--log-level", "warn"];
    let server = Server::start(store.command_through(&recorder(&trace), &serve));
    let token = |store: &Store| fs::read_to_string(store.directory().join("plants.db.first-token"));
    let first = token(&store).unwrap().trim_end().to_owned();
    let headers = [("X-Request-Id", "first-plant"), JSON];
    let response = server.client(&first).call("POST", "/plants", &headers, Some(br#"{"id":1,"name":"Rose"}"#));
    assert_eq!(response.status, 200);
    assert_eq!(server.stop().code(), Some(0));
    let disk = disk.replay(server.id(), &trace);
    let sent = disk.responded_at("first-plant");
    let fault = Fault::new("power cut during the first start", CUTS).with_more_in_campaign(MORE_CUTS);
    for_each_cut(&disk, &fault, |store, moment| {
        let server = Server::start(store.command(&serve));
        fault.count(1, usize::from(sent < moment));
        let token = token(store).unwrap();
        let ids = server.client(token.trim_end()).ids();
        if sent < moment {
            fault.assert_stored(ids == [1] && token.trim_end() == first, &format!("{ids:?}"));
        }
        server.kill();
        assert_integrity(store);
    });
}

#[test]
fn power_cut_during_a_migration_loses_nothing() {
    for version in ["0.1.0", "0.3.0", "0.6.0"] {
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
        let store = Store::empty(Engine::Sqlite);
        fs::copy(files.join(format!("{version}.db")), store.file()).unwrap();
        let token = fs::read_to_string(files.join(format!("{version}.token"))).unwrap().trim_end().to_owned();
        let (disk, output) = record(&store, &["migrate"]);
        output.success();
        let plants = export(&store);
        assert_ne!(plants, "");
        let fault =
            Fault::new(&format!("power cut during migration from {version}"), CUTS).with_more_in_campaign(MORE_CUTS);
        for_each_cut(&disk, &fault, |store, moment| {
            fault.count(1, usize::from(moment == disk.end));
            // Complete without another migration, if the command has ended.
            if moment < disk.end {
                store.run(&["migrate"]).success();
            }
            assert_eq!(export(store), plants, "{version}");
            assert_eq!(store.serve(&["--log-level", "warn"]).client(&token).get("/me").status, 200, "{version}");
            assert_integrity(store);
        });
    }
}

/// Creates a store with plants of two users, and returns them as lines.
fn store_with_plants() -> (Store<'static>, String) {
    let store = Store::empty(Engine::Sqlite);
    store.run(&["migrate"]).success();
    fs::write(store.directory().join("plants.jsonl"), lines(&OWNERS, 300)).unwrap();
    store.run(&["import", "plants.jsonl"]).success();
    let plants = export(&store);
    (store, plants)
}

#[test]
fn backup_appears_only_when_it_is_complete_also_after_a_power_cut() {
    let (store, plants) = store_with_plants();
    let (disk, output) = record(&store, &["backup", "copy.db"]);
    output.success();
    let fault = Fault::new("power cut during a backup", CUTS).with_more_in_campaign(MORE_CUTS);
    for_each_cut(&disk, &fault, |store, moment| {
        fault.count(1, usize::from(moment == disk.end));
        assert_eq!(export(store), plants);
        let copy = store.directory().join("copy.db");
        assert!(copy.exists() || moment < disk.end, "the command has ended");
        if copy.exists() {
            fs::rename(copy, store.file()).unwrap();
            for name in ["plants.db-wal", "plants.db-shm"] {
                let _ = fs::remove_file(store.directory().join(name));
            }
            assert_eq!(export(store), plants);
            assert_integrity(store);
        }
    });
}

#[test]
fn restored_store_appears_only_when_it_is_complete_also_after_a_power_cut() {
    let (store, plants) = store_with_plants();
    store.run(&["backup", "copy.db"]).success();
    for name in ["plants.db", "plants.db-wal", "plants.db-shm"] {
        let _ = fs::remove_file(store.directory().join(name));
    }
    let (disk, output) = record(&store, &["restore", "copy.db"]);
    output.success();
    let fault = Fault::new("power cut during a restore", CUTS).with_more_in_campaign(MORE_CUTS);
    for_each_cut(&disk, &fault, |store, moment| {
        fault.count(1, usize::from(moment == disk.end));
        if !store.file().exists() {
            assert!(moment < disk.end, "the command has ended");
            store.run(&["restore", "copy.db"]).success();
        }
        assert_eq!(export(store), plants);
        assert_integrity(store);
    });
}

#[test]
fn import_after_a_power_cut_continues_where_it_stopped() {
    let store = Store::empty(Engine::Sqlite);
    store.run(&["migrate"]).success();
    let text = lines(&OWNERS, 4_200);
    fs::write(store.directory().join("plants.jsonl"), &text).unwrap();
    let (disk, output) = record(&store, &["import", "plants.jsonl"]);
    output.success();
    let plants = export(&store);
    let fault = Fault::new("power cut during an import", CUTS).with_more_in_campaign(MORE_CUTS);
    for_each_cut(&disk, &fault, |store, moment| {
        fault.count(1, usize::from(moment == disk.end));
        let stored = export(store);
        assert!(stored == plants || moment < disk.end, "the command has ended");
        let more = store.run(&["import", "--on-conflict", "skip", "plants.jsonl"]);
        more.success();
        assert_eq!(export(store), plants);
        assert!(text.starts_with(&stored), "a beginning of the lines is stored");
        assert_integrity(store);
    });
}
