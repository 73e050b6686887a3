//! Power cuts: the real program runs on files that a cut at a random moment may have left. What it had acknowledged is there,
//! nothing is there by half, and every key counts once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use tempfile::TempDir;

use crate::support::recorded_disk::{RecordedDisk, Syncs, recorder};
use crate::support::transfer::{export, lines};
use crate::support::{Client, CommandOutput, Engine, Fault, JSON, Random, Server, Store, wait_until};

const WORKERS: usize = 4;
const IDS_PER_WORKER: usize = 12;
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
    fn send(&self, client: &Client) -> u16 {
        let path = if self.method == "POST" { "/plants".to_owned() } else { format!("/plants/{}", self.id) };
        let quoted = format!("\"{}\"", self.key);
        let headers = [("Idempotency-Key", &*quoted), ("X-Request-Id", &self.key), JSON];
        let body = self.after.as_ref().map(|name| format!(r#"{{"id":{},"name":"{name}"}}"#, self.id));
        let headers = if body.is_some() { &headers[..] } else { &headers[..2] };
        client.call(self.method, &path, headers, body.as_ref().map(String::as_bytes)).status
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
        // Long names, so that the log is soon long enough for a checkpoint.
        let after = (method != "DELETE").then(|| format!("{worker}-{number}-{}", "x".repeat(900)));
        match &after {
            Some(name) => drop(plants.insert(id, name.clone())),
            None => drop(plants.remove(&id)),
        }
        let write = Write { id, method, after, key: format!("cut-{worker}-{number}") };
        assert_eq!(write.send(client), write.status());
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
fn listed(client: &Client) -> [BTreeMap<usize, String>; WORKERS] {
    let mut plants: [BTreeMap<usize, String>; WORKERS] = Default::default();
    for plant in client.get("/plants?include=id").json().as_array().unwrap() {
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

/// Records a server under load, and returns the writes of each worker.
fn record_server(store: &Store, token: &str) -> (RecordedDisk, Vec<Vec<Write>>) {
    let disk = RecordedDisk::of(store.directory());
    let traces = TempDir::new().unwrap();
    let trace = traces.path().join("trace");
    let server = store.serve_through(&recorder(&trace), &["--log-level", "warn"]);
    let ada = server.client(token);
    let writes = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let ada = &ada;
                scope.spawn(move || work(ada, worker, 250))
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(server.stop().code(), Some(0));
    (disk.replay(server.id(), &trace), writes)
}

#[test]
fn acknowledged_writes_survive_a_power_cut() {
    let store = Store::new(Engine::Sqlite);
    let token = store.token("ada", &[]);
    let (disk, workers) = record_server(&store, &token);
    // Number of acknowledged writes of a worker.
    let count =
        |worker: usize, moment| workers[worker].partition_point(|write: &Write| disk.responded_at(&write.key) < moment);
    let fault = Fault::new("power cut under load", CUTS).with_more_in_campaign(MORE_CUTS);
    for_each_cut(&disk, &fault, |store, moment| {
        let server = store.serve(&["--log-level", "warn"]);
        let ada = server.client(&token);
        let found = listed(&ada);
        let expected = workers.iter().enumerate().map(|(worker, writes)| {
            let done = count(worker, moment);
            let found = &found[worker];
            let next = writes.get(done);
            fault.count(done + usize::from(next.is_some()), done);
            let possible = [state(&writes[..done]), state(&writes[..(done + 1).min(writes.len())])];
            fault.assert_stored(possible.contains(found), &format!("{worker} after {done} writes: {found:?}"));
            // The last acknowledged write has no second effect, and the next one has one.
            if let Some(last) = done.checked_sub(1) {
                assert_eq!(writes[last].send(&ada), writes[last].status(), "{worker} repeats {last}");
            }
            if let Some(write) = next {
                assert_eq!(write.send(&ada), write.status(), "{worker} sends {done} again");
            }
            let [_, after_next] = possible;
            after_next
        });
        let expected: Vec<_> = expected.collect();
        assert_eq!(listed(&ada)[..], expected, "at {moment}");
        server.kill();
        assert_integrity(store);
    });
    // The harness finds what a disk loses that is not asked to sync the log at each commit. A file may even be damaged.
    let control = Fault::new("power cut, syncs of the log are ignored", 1).into_control();
    let mut random = control.begin_round();
    let is_lost = || {
        let moment = disk.end / 4 + random.below(disk.end / 4);
        let store = after_cut(&disk, moment, Syncs::NotOfTheLog, &mut random);
        let listed = store.run(&["export"]);
        let plants = String::from_utf8_lossy(&listed.stdout);
        let has =
            |write: &Write| plants.contains(&format!(r#""name":"{}""#, write.after.as_deref().unwrap_or_default()));
        let is_lost = |worker: usize| {
            let (writes, done) = (&workers[worker], count(worker, moment));
            // The newest write of a plant that is still there, unless the next write changes it.
            let last =
                writes[..done].iter().rev().find(|write| writes.get(done).is_none_or(|next| next.id != write.id));
            last.is_some_and(|write| write.after.is_some() && !has(write))
        };
        !listed.status.success() || (0..WORKERS).any(is_lost)
    };
    wait_until("a lost write", is_lost);
    control.found_lost();
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
        if sent < moment {
            assert_eq!(token(store).unwrap().trim_end(), first);
            assert_eq!(server.client(&first).ids(), [1]);
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
