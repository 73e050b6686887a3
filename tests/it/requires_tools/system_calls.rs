//! One system call fails, at each of its indexes in turn: in servers that create, delete and write checkpoints, and in commands. Every
//! response and exit code is true of what is stored, no file is damaged, and the next attempt succeeds.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use rstest::rstest;
use tempfile::TempDir;

use crate::support::transfer::{export, lines};
use crate::support::{CommandOutput, Engine, Fault, FaultInjector, JSON, Server, Store, campaign_factor, wait_until};

const UNAVAILABLE: i64 = 50300;
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
/// Largest step to the next index in the suite.
const STRIDE: usize = 5;

/// Runs `work` with options of strace that make one call fail, for every index of each call, until none is left.
fn for_each_index(fault: &Fault, mut work: impl FnMut(&Injection, &[&str], &str)) {
    let stride = if campaign_factor() > 1 { 1 } else { STRIDE };
    for injection in INJECTIONS {
        let mut index = 1;
        loop {
            let mut random = fault.begin_round();
            index += random.below(stride);
            let traces = Store::in_memory();
            let trace = traces.directory().join("trace");
            let inject = format!("inject={}:{}:when={index}", injection.calls, injection.result);
            let filter = format!("trace={}", injection.calls);
            work(injection, &["-o", trace.to_str().unwrap(), "-e", &filter, "-e", &inject], &inject);
            if !fs::read_to_string(trace).unwrap().contains("(INJECTED)") {
                break;
            }
            index += 1;
        }
    }
}

/// Kinds of work of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    Create,
    Delete,
    Checkpoint,
}

/// Number of plants before the fault.
const BEFORE: i64 = 8;

#[rstest]
#[case::create(Work::Create)]
#[case::delete(Work::Delete)]
#[case::checkpoint(Work::Checkpoint)]
fn response_is_true_though_any_system_call_fails(#[case] work: Work) {
    let fault = Fault::new(&format!("failed system call, {work:?}").to_lowercase(), 1);
    let template = Store::new(Engine::Sqlite);
    let token = template.token("ada", &[]);
    {
        let server = template.serve(&[]);
        let ada = server.client(&token);
        (0..BEFORE).for_each(|id| ada.plant(id, "before"));
        assert_eq!(server.stop().code(), Some(0));
    }
    let mut errors = BTreeSet::new();
    for_each_index(&fault, |injection, options, about| {
        let store = Store::in_memory();
        fs::copy(template.file(), store.file()).unwrap();
        let server = store.serve(&["--log-level", "warn"]);
        let ada = server.client(&token);
        if work == Work::Checkpoint {
            ada.plant(BEFORE, "in the log");
        }
        let mut present: Vec<i64> = (0..BEFORE + i64::from(work == Work::Checkpoint)).collect();
        let mut unknown = Vec::new();
        let injector = FaultInjector::attach(&server, options);
        if work == Work::Checkpoint {
            // Closing the file writes a checkpoint. What that cannot do, the next start does.
            server.stop();
        } else {
            for step in 0..3 {
                let id = if work == Work::Create { BEFORE + step } else { step };
                let path = format!("/plants/{id}");
                let body = format!(r#"{{"id":{id},"name":"new"}}"#);
                let bytes = match work {
                    Work::Delete => ada.bytes("DELETE", &path, &[], None),
                    _ => ada.bytes("POST", "/plants", &[JSON], Some(body.as_bytes())),
                };
                let mut connection = ada.connect();
                match connection.try_send(bytes).and_then(|()| connection.try_read_response(false)) {
                    Ok(response) if response.status == 200 => present.push(id),
                    Ok(response) if response.status == 204 => present.retain(|known| *known != id),
                    Ok(response) => {
                        assert_eq!(Some(response.error()), injection.error, "{about}: {}", response.wire());
                        errors.insert((injection.calls, injection.result));
                        // Otherwise nothing was done.
                        if response.error() == INTERNAL {
                            unknown.push(id);
                        }
                    }
                    // Only a failed sync ends the process.
                    Err(_) => {
                        unknown.push(id);
                        assert_eq!(server.wait().code(), Some(1), "{about}");
                        assert_eq!(injection.calls, SYNCS, "{about}: {}", server.log());
                        break;
                    }
                }
                fault.count(1, usize::from(present.contains(&id) == (work == Work::Create)));
            }
        }
        drop(injector);
        let is_as_acknowledged = |server: &Server, about: &str| {
            let mut found = server.client(&token).ids();
            found.retain(|id| !unknown.contains(id));
            let expected: Vec<i64> = present.iter().copied().filter(|id| !unknown.contains(id)).collect();
            fault.assert_stored(found == expected, &format!("{about}: {found:?} instead of {expected:?}"));
        };
        if server.ended().is_none() {
            is_as_acknowledged(&server, about);
            wait_until("a write after the fault", || ada.post(r#"{"id":-1,"name":"after"}"#).status == 200);
            assert_eq!(ada.delete(-1).status, 204);
            server.kill();
        }
        assert_eq!(store.open_file().query_row("PRAGMA integrity_check", [], |row| row.get(0)), Ok("ok".to_owned()));
        is_as_acknowledged(&store.serve(&[]), about);
    });
    // Each attempt to write has failed in some request.
    let failed_writes = errors.iter().filter(|(calls, _)| *calls == "pwrite64").count();
    assert_eq!(failed_writes, if work == Work::Checkpoint { 0 } else { 3 }, "{errors:?}");
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

fn run_under(store: &Store, options: &[&str], arguments: &[&str]) -> Output {
    let wrapper = [&["strace", "-f", "-qq"], options].concat();
    store.command_through(&wrapper, arguments).stdin(Stdio::null()).output().expect("strace runs")
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
    let fault = Fault::new(&format!("failed system call, {}", command.name), 1);
    for_each_index(&fault, |_, options, about| {
        let store = start();
        let output = run_under(&store, options, command.arguments);
        let has_succeeded = output.status.success();
        fault.count(1, usize::from(has_succeeded));
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
    });
}
