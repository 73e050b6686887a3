//! One system call fails, at each of its indexes in turn: in servers that create, replace, delete and write checkpoints, and in commands.
//! Or the kernel writes only a part, because a file has reached its limit. Every response and exit code is true of what is stored, no
//! file is damaged, and the next attempt succeeds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;

use rstest::rstest;
use tempfile::TempDir;

use crate::support::tools::{external, succeed};
use crate::support::transfer::{export, lines};
use crate::support::{
    Client, CommandOutput, Connection, Engine, Fault, FaultInjector, JSON, Random, Server, Store, campaign_factor,
    wait_until,
};

const UNAVAILABLE: i64 = 50300;
const UNKNOWN: i64 = 50301;
const FULL: i64 = 50700;
/// SQLite takes a failed read for a damaged file.
const INTERNAL: i64 = 50000;

/// A system call on files that fails.
struct Injection {
    calls: &'static str,
    /// In the syntax of strace.
    result: &'static str,
    /// The error that a write gets, if it gets one.
    error: Option<i64>,
}

const SYNCS: &str = "fsync,fdatasync";
const ENTRIES: &str = "rename,renameat,renameat2,link,linkat,unlink,unlinkat";
const INJECTIONS: &[Injection] = &[
    Injection { calls: "pwrite64", result: "error=EIO", error: Some(UNAVAILABLE) },
    Injection { calls: "pwrite64", result: "error=ENOSPC", error: Some(FULL) },
    // A short write, of nothing.
    Injection { calls: "pwrite64", result: "retval=0", error: Some(FULL) },
    Injection { calls: "pread64", result: "error=EIO", error: Some(INTERNAL) },
    Injection { calls: SYNCS, result: "error=EIO", error: None },
    Injection { calls: SYNCS, result: "error=ENOSPC", error: None },
    Injection { calls: "ftruncate", result: "error=EIO", error: None },
    Injection { calls: "openat", result: "error=EIO", error: None },
    Injection { calls: "openat", result: "error=ENOSPC", error: None },
    Injection { calls: ENTRIES, result: "error=EIO", error: None },
    Injection { calls: ENTRIES, result: "error=ENOSPC", error: None },
];
const ALL: &[&str] = &["pwrite64", "pread64", SYNCS, "ftruncate", "openat", ENTRIES];
/// Largest step to the next index in the suite.
const STRIDE: usize = 5;

/// Runs `work` with options of strace that make calls fail. Returns its result if such a call was made.
fn injected<T>(injection: &Injection, when: &str, work: impl FnOnce(&[&str], &str) -> T) -> Option<T> {
    let traces = Store::in_memory();
    let trace = traces.directory().join("trace");
    let inject = format!("inject={}:{}:when={when}", injection.calls, injection.result);
    let filter = format!("trace={}", injection.calls);
    let result = work(&["-o", trace.to_str().unwrap(), "-e", &filter, "-e", &inject], &inject);
    fs::read_to_string(trace).unwrap().contains("(INJECTED)").then_some(result)
}

/// Runs `work` once for every index of each call, until none is left, and counts what it has written as a round. Fails if a call of
/// `expected` is never made. `later` is `+` if all later calls fail, too.
fn for_each_index(
    fault: &Fault,
    later: &str,
    expected: &[&str],
    mut work: impl FnMut(&Injection, &[&str], &str) -> Option<Written>,
) {
    let stride = if campaign_factor() > 1 { 1 } else { STRIDE };
    let mut failed = BTreeSet::new();
    for injection in INJECTIONS {
        let mut index = 1;
        let mut work = |options: &[&str], about: &str| work(injection, options, about);
        while let Some(result) = injected(injection, &format!("{index}{later}"), &mut work) {
            index += 1;
            if let Some(written) = result {
                failed.insert(injection.calls);
                index += fault.begin_round().below(stride);
                fault.count(written.operations, written.acknowledged);
            }
        }
    }
    assert!(expected.iter().all(|calls| failed.contains(calls)), "failed: {failed:?}");
}

/// Kinds of work of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Work {
    Create,
    Replace,
    Delete,
    Checkpoint,
}

/// Plants as a client knows them from the responses to its writes.
#[derive(Clone, Default)]
pub(super) struct Written {
    present: BTreeMap<i64, String>,
    /// Ids whose last write has an unknown outcome.
    unknown: BTreeSet<i64>,
    pub(super) operations: usize,
    pub(super) acknowledged: usize,
}

impl Written {
    /// Writes a plant. Returns the error code of the response, 0 for a success; `None` if there is no response.
    pub(super) fn write(&mut self, ada: &Client, work: Work, id: i64, name: &str) -> Option<i64> {
        let path = format!("/plants/{id}");
        let body = format!(r#"{{"id":{id},"name":"{name}"}}"#);
        let bytes = match work {
            Work::Delete => ada.bytes("DELETE", &path, &[], None),
            Work::Replace => ada.bytes("PUT", &path, &[JSON], Some(body.as_bytes())),
            Work::Create | Work::Checkpoint => ada.bytes("POST", "/plants", &[JSON], Some(body.as_bytes())),
        };
        self.operations += 1;
        let response = Connection::try_open(ada.address).and_then(|mut connection| {
            connection.try_send(bytes)?;
            connection.try_read_response(false)
        });
        let Ok(response) = response else {
            self.unknown.insert(id);
            return None;
        };
        if response.status >= 300 {
            assert!(response.status >= 500, "{}", response.wire());
            if [INTERNAL, UNKNOWN].contains(&response.error()) {
                self.unknown.insert(id);
            }
            return Some(response.error());
        }
        self.acknowledged += 1;
        if work == Work::Delete {
            self.present.remove(&id);
        } else {
            self.present.insert(id, name.to_owned());
        }
        Some(0)
    }

    /// Writes a random plant: a new one, or one whose state is known.
    pub(super) fn write_random(&mut self, ada: &Client, random: &mut Random, new: i64, name: &str) -> Option<i64> {
        let known: Vec<i64> = self.present.keys().copied().filter(|id| !self.unknown.contains(id)).collect();
        match random.below(3) {
            0 if !known.is_empty() => self.write(ada, Work::Delete, known[random.below(known.len())], name),
            1 if !known.is_empty() => self.write(ada, Work::Replace, known[random.below(known.len())], name),
            _ => self.write(ada, Work::Create, new, name),
        }
    }

    /// Adds what another client has written to other plants.
    fn add(&mut self, other: Self) {
        self.present.extend(other.present);
        self.unknown.extend(other.unknown);
        self.operations += other.operations;
        self.acknowledged += other.acknowledged;
    }

    /// Fails if the list is not as acknowledged.
    #[track_caller]
    pub(super) fn assert_listed(&self, fault: &Fault, client: &Client, about: &str) {
        let known = |list: &BTreeMap<i64, String>| -> BTreeMap<i64, String> {
            let known = list.iter().filter(|(id, _)| !self.unknown.contains(id));
            known.map(|(id, name)| (*id, name.clone())).collect()
        };
        let listed = client.get("/plants?include=id");
        let found = known(&listed.listed().unwrap_or_else(|| panic!("{about}: {}", listed.wire())));
        let expected = known(&self.present);
        fault.assert_stored(found == expected, &format!("{about}: {found:?} instead of {expected:?}"));
    }

    /// Checks the store after the fault: in the server, if it runs, which is then killed, in the file, and in a new server.
    fn verify(&self, fault: &Fault, store: &Store, server: &Server, token: &str, about: &str) {
        if server.ended().is_none() {
            let ada = server.client(token);
            self.assert_listed(fault, &ada, about);
            wait_until("a write after the fault", || ada.post(r#"{"id":-1,"name":"after"}"#).status == 200);
            assert_eq!(ada.delete(-1).status, 204);
            server.kill();
        }
        assert_eq!(store.open_file().query_row("PRAGMA integrity_check", [], |row| row.get(0)), Ok("ok".to_owned()));
        self.assert_listed(fault, &store.serve(&[]).client(token), about);
    }
}

/// Number of plants before the fault.
const BEFORE: i64 = 8;

#[rstest]
#[case::create(Work::Create, "")]
#[case::create_with_later_calls(Work::Create, "+")]
#[case::replace(Work::Replace, "")]
#[case::delete(Work::Delete, "")]
#[case::checkpoint(Work::Checkpoint, "")]
fn response_is_true_though_any_system_call_fails(#[case] work: Work, #[case] later: &str) {
    let calls = if later.is_empty() { "failed system call" } else { "failed system call and all later ones" };
    let fault = Fault::new(&format!("{calls}, {work:?}").to_lowercase(), 1);
    let template = Store::new(Engine::Sqlite);
    let token = template.token("ada", &[]);
    let mut before = Written::default();
    {
        let server = template.serve(&[]);
        let ada = server.client(&token);
        (0..BEFORE).for_each(|id| assert_eq!(before.write(&ada, Work::Create, id, "before"), Some(0)));
        assert_eq!(server.stop().code(), Some(0));
    }
    let mut errors = BTreeSet::new();
    let expected = if work == Work::Checkpoint { ALL } else { &["pwrite64", "pread64", "openat", SYNCS] };
    for_each_index(&fault, later, expected, |injection, options, about| {
        let store = Store::in_memory();
        fs::copy(template.file(), store.file()).unwrap();
        let server = store.serve(&["--log-level", "warn"]);
        let ada = server.client(&token);
        let mut written = Written { operations: 0, acknowledged: 0, ..before.clone() };
        if work == Work::Checkpoint {
            assert_eq!(written.write(&ada, work, BEFORE, "in the log"), Some(0));
        }
        let injector = FaultInjector::attach(&server, options);
        if work == Work::Checkpoint {
            // Closing the file writes a checkpoint. What that cannot do, the next start does.
            server.stop();
        } else {
            for step in 0..3 {
                match written.write(&ada, work, if work == Work::Create { BEFORE + step } else { step }, "new") {
                    Some(0) => {}
                    Some(error) => {
                        // After a read has failed, SQLite reports later ones as failed, too.
                        let is_expected = Some(error) == injection.error || (later == "+" && error == UNAVAILABLE);
                        assert!(is_expected, "{about}: {}", server.log());
                        errors.insert((injection.calls, injection.result));
                    }
                    None => {
                        assert_ended_by_sync(&server, injection, about);
                        break;
                    }
                }
            }
        }
        drop(injector);
        written.verify(&fault, &store, &server, &token, about);
        Some(written)
    });
    // Each attempt to write has failed in some request.
    let failed_writes = errors.iter().filter(|(calls, _)| *calls == "pwrite64").count();
    assert_eq!(failed_writes, if work == Work::Checkpoint { 0 } else { 3 }, "{errors:?}");
}

/// Asserts that the process has ended because of a failed sync: no other call ends it.
#[track_caller]
fn assert_ended_by_sync(server: &Server, injection: &Injection, about: &str) {
    assert_eq!(server.wait().code(), Some(1), "{about}");
    assert_eq!(injection.calls, SYNCS, "{about}: {}", server.log());
}

/// A name that fills a page of the file.
fn long_name() -> String {
    "\u{1F331}".repeat(1_000)
}

/// Inserts plants of the first user until the log has this size, and returns them.
fn fill_log(store: &Store, size: u64, ada: &Client) -> BTreeMap<i64, String> {
    let file = store.open_file();
    file.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
    let insert = "INSERT INTO plants (user_id, plant_id, name, version) VALUES (1, ?1, ?2, 0)";
    let log = store.file().with_extension("db-wal");
    let ids = (1_i64..).take_while(|_| fs::metadata(&log).unwrap().len() < size);
    for id in ids {
        assert_eq!(file.execute(insert, (id, long_name())), Ok(1));
    }
    ada.get("/plants?include=id").listed().unwrap()
}

/// Requests write to the log while the thread for checkpoints copies it.
#[test]
fn checkpoint_under_load_survives_failed_system_calls() {
    const WRITERS: i64 = 4;
    const WRITES: usize = 40;
    /// Size of the log shortly before the first checkpoint.
    const LOG: u64 = 1_900 * (4_096 + 24);
    let fault = Fault::new("failed system call, checkpoint under load", 6);
    let template = Store::in_memory();
    let token = template.token("ada", &[]);
    let injections: Vec<_> =
        INJECTIONS.iter().filter(|injection| ["pwrite64", "pread64", SYNCS].contains(&injection.calls)).collect();
    // More than the number of calls. It decreases when the call of an index is not made.
    let mut bounds: Vec<_> =
        injections.iter().map(|injection| if injection.calls == SYNCS { 60 } else { 1_200 }).collect();
    for round in 0..fault.rounds {
        let (injection, bound) = (injections[round % injections.len()], &mut bounds[round % injections.len()]);
        let mut random = fault.begin_round();
        let seeds: Vec<_> = (0..WRITERS).map(|_| random.below(usize::MAX)).collect();
        let work = |options: &[&str], about: &str| {
            let store = Store::in_memory();
            fs::copy(template.file(), store.file()).unwrap();
            let server = store.serve(&["--log-level", "warn", "--metrics-listen", "0"]);
            let metrics = server.metrics();
            let ada = server.client(&token);
            let mut written = Written { present: fill_log(&store, LOG, &ada), ..Written::default() };
            let injector = FaultInjector::attach(&server, options);
            let write = |(writer, seed): (i64, &usize)| {
                let mut random = Random::new(*seed as u64);
                let mut written = Written::default();
                for id in (100_000 * (writer + 1)..).take(WRITES) {
                    let Some(error) = written.write_random(&ada, &mut random, id, &long_name()) else {
                        assert_ended_by_sync(&server, injection, about);
                        break;
                    };
                    assert!([Some(0), injection.error].contains(&Some(error)), "{about}: {}", server.log());
                }
                written
            };
            thread::scope(|scope| {
                let writers: Vec<_> = (0..).zip(&seeds).map(|writer| scope.spawn(move || write(writer))).collect();
                for writer in writers {
                    written.add(writer.join().unwrap());
                }
            });
            let copied = || metrics.value("plantstore_checkpoint_duration_seconds_count", &[("mode", "passive")]);
            wait_until("the checkpoint", || server.ended().is_some() || copied() > 0);
            drop(injector);
            (store, server, written)
        };
        let (store, server, written) = loop {
            let index = 1 + random.below(*bound);
            if let Some(result) = injected(injection, &index.to_string(), work) {
                break result;
            }
            assert!(index > 1, "{} is not called", injection.calls);
            *bound = index;
        };
        written.verify(&fault, &store, &server, &token, injection.calls);
        fault.count(written.operations, written.acknowledged);
    }
}

/// Runs a program for which a write beyond the limit of file sizes is an error, and not its end.
const WITHOUT_SIGNAL: [&str; 4] = ["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"];

#[test]
fn write_that_the_kernel_cuts_short_is_an_error_and_loses_nothing() {
    let fault = Fault::new("short write of the log", 6).with_more_in_campaign(10);
    let store = Store::in_memory();
    let token = store.token("ada", &[]);
    let log_size = || fs::metadata(store.file().with_extension("db-wal")).unwrap().len();
    let mut written = Written::default();
    let mut new = 0..;
    for _ in 0..fault.rounds {
        let mut random = fault.begin_round();
        let server = store.serve_through(&WITHOUT_SIGNAL, &["--log-level", "error"]);
        let ada = server.client(&token);
        let limit_files = |limit: &str| {
            succeed(external("prlimit").args(["--pid", &server.id().to_string(), &format!("--fsize={limit}:")]));
        };
        // In the middle of one of the next frames.
        let offset = 1 + random.below(16 << 10) as u64;
        let is_lifted = random.below(2) == 0;
        let mut write = |written: &mut Written| written.write_random(&ada, &mut random, new.next().unwrap(), "name");
        assert_eq!(write(&mut written), Some(0));
        let limit = log_size() + offset;
        limit_files(&limit.to_string());
        let mut error = Some(0);
        while error == Some(0) {
            error = write(&mut written);
        }
        assert!([Some(UNAVAILABLE), Some(FULL)].contains(&error), "{error:?}: {}", server.log());
        assert_eq!(log_size(), limit, "the kernel has written a part");
        written.assert_listed(&fault, &ada, "with the limit");
        for _ in 0..3 {
            let error = write(&mut written);
            assert!([Some(0), Some(UNAVAILABLE), Some(FULL)].contains(&error), "{error:?}: {}", server.log());
        }
        if is_lifted {
            limit_files("unlimited");
            wait_until("a write without the limit", || write(&mut written) == Some(0));
        } else {
            server.kill();
        }
        written.verify(&fault, &store, &server, &token, &format!("limit {limit}"));
    }
    fault.count(written.operations, written.acknowledged);
}

/// A command and what is true after it.
struct Command {
    name: &'static str,
    arguments: &'static [&'static str],
    /// File that is complete, if it is there, and must be there if the command succeeds.
    result: &'static str,
    /// Arguments of the next attempt, if they differ.
    again: &'static [&'static str],
}

const COMMANDS: [Command; 4] = [
    Command { name: "backup", arguments: &["backup", "copy.db"], result: "copy.db", again: &[] },
    Command { name: "restore", arguments: &["restore", "backup.db"], result: "plants.db", again: &[] },
    Command { name: "migration", arguments: &["migrate"], result: "", again: &[] },
    Command {
        name: "import",
        arguments: &["import", "plants.jsonl"],
        result: "",
        again: &["import", "--on-conflict", "skip", "plants.jsonl"],
    },
];

/// Creates the files that the command starts with.
fn prepare(command: &Command, directory: &Path) {
    let store = Store::empty(Engine::Sqlite);
    let plants = lines(&["ada", "bob"], 40);
    if command.name == "migration" {
        fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/0.1.0.db"), store.file()).unwrap();
    } else {
        store.run(&["migrate"]).success();
        fs::write(directory.join("plants.jsonl"), &plants).unwrap();
        fs::write(store.directory().join("plants.jsonl"), plants).unwrap();
    }
    if ["backup", "restore"].contains(&command.name) {
        store.run(&["import", "plants.jsonl"]).success();
    }
    let name = if command.name == "restore" { "backup.db" } else { "plants.db" };
    fs::copy(store.file(), directory.join(name)).unwrap();
}

/// Exports a copy of a store, which is not changed.
fn exported(file: &Path) -> String {
    let store = Store::in_memory();
    fs::copy(file, store.file()).unwrap();
    let log = file.with_extension("db-wal");
    if log.exists() {
        fs::copy(log, store.directory().join("plants.db-wal")).unwrap();
    }
    let integrity = store.open_file().query_row("PRAGMA integrity_check", [], |row| row.get(0));
    assert_eq!(integrity, Ok("ok".to_owned()));
    export(&store)
}

#[rstest]
fn command_ends_with_an_error_or_completes_though_any_system_call_fails(#[values(0, 1, 2, 3)] number: usize) {
    let command = &COMMANDS[number];
    let template = TempDir::new().unwrap();
    prepare(command, template.path());
    let start = || {
        let store = Store::in_memory();
        for file in fs::read_dir(template.path()).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), store.directory().join(file.file_name())).unwrap();
        }
        store
    };
    let result = |store: &Store| {
        let result = if command.result.is_empty() { "plants.db" } else { command.result };
        store.directory().join(result)
    };
    let whole = start();
    whole.run(command.arguments).success();
    let expected = exported(&result(&whole));
    assert_ne!(expected, "");
    // What is true after a run through other programs.
    let attempt = |fault: &Fault, wrapper: &[&str], about: &str| {
        let store = start();
        let output = store.command_through(wrapper, command.arguments).stdin(Stdio::null()).output();
        let output = output.expect("scripts/test installs it");
        let has_succeeded = output.status.success();
        if !has_succeeded {
            // A failure of the dynamic linker has the exit code 127.
            assert!(matches!(output.status.code(), Some(1 | 127)), "{about}: {}", output.stderr_text());
            assert!(!output.stderr_text().contains("panicked"), "{about}: {}", output.stderr_text());
        }
        let result = result(&store);
        if has_succeeded || (!command.result.is_empty() && result.exists()) {
            let found = exported(&result);
            fault.assert_stored(found == expected, &format!("{about}: {}", output.stderr_text()));
        }
        if !result.exists() || command.result.is_empty() {
            let again = if command.again.is_empty() { command.arguments } else { command.again };
            let output = store.run(again);
            assert!(output.status.success(), "{about}, again: {}", output.stderr_text());
            assert_eq!(exported(&result), expected, "{about}, again");
        }
        let written = Written { operations: 1, acknowledged: usize::from(has_succeeded), ..Written::default() };
        (output.status.code() != Some(127)).then_some(written)
    };
    let fault = Fault::new(&format!("failed system call, {}", command.name), 1);
    for_each_index(&fault, "", ALL, |_, options, about| {
        attempt(&fault, &[&["strace", "-f", "-qq"], options].concat(), about)
    });
    let fault = Fault::new(&format!("short write, {}", command.name), 4).with_more_in_campaign(10);
    let size = usize::try_from(fs::metadata(result(&whole)).unwrap().len()).unwrap();
    for _ in 0..fault.rounds {
        let mut random = fault.begin_round();
        // Attempts that the limit does not concern are repeated with a smaller one.
        let mut limit = random.below(size);
        let written = loop {
            let about = format!("--fsize={limit}");
            let written = attempt(&fault, &[&["prlimit", &about], &WITHOUT_SIGNAL[..]].concat(), &about);
            if let Some(written) = written.filter(|written| written.acknowledged == 0) {
                break written;
            }
            limit = random.below(limit);
        };
        fault.count(written.operations, written.acknowledged);
    }
}
