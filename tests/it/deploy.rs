//! Deployment files: the systemd unit, the image, the probe.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output};

use rstest::rstest;

use crate::support::rewriting_proxy::{Reply, RewritingProxy};
use crate::support::tools::external;
use crate::support::{
    CLOSED_ADDRESS, CommandOutput, Engine, Server, Service, Store, TIMEOUT, engine_tool_test, sqlite_test, wait_for,
};

const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/plantstore.service");
/// Highest accepted score of `systemd-analyze security`.
const EXPOSURE_MAX: f64 = 1.5;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn file(path: &str) -> String {
    std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn systemd_analyze(arguments: &[&str]) -> Output {
    external("systemd-analyze").args(arguments).output().expect("systemd-analyze, of the package systemd")
}

#[rstest]
#[case::requires_systemd()]
fn unit_has_a_low_exposure_score() {
    let output = systemd_analyze(&["security", "--no-pager", "--offline=true", UNIT]);
    let found = output.stdout_text();
    let line = found.lines().find(|line| line.contains("Overall exposure level")).expect("a verdict");
    let level: f64 = line.split(':').nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert!(level <= EXPOSURE_MAX, "{found}");
}

#[rstest]
#[case::requires_systemd()]
fn the_unit_is_well_formed() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("plantstore.service");
    let unit = file("deploy/plantstore.service").replace("/usr/local/bin/plantstore", env!("CARGO_BIN_EXE_plantstore"));
    std::fs::write(&copy, unit).unwrap();
    let output = systemd_analyze(&["verify", "--man=no", copy.to_str().unwrap()]);
    let about_it = output.stderr_text();
    let about_it: Vec<&str> = about_it.lines().filter(|line| line.contains("plantstore")).collect();
    assert!(output.status.success() && about_it.is_empty(), "{about_it:?}");
}

/// Lists the system calls of a filter group of systemd, including its subgroups.
fn system_calls(group: &str) -> BTreeSet<String> {
    let output = systemd_analyze(&["syscall-filter", "--no-pager", group]);
    assert!(output.status.success(), "{group}: {}", output.stderr_text());
    let mut calls = BTreeSet::new();
    for word in output.stdout_text().lines().skip(1).map(str::trim) {
        match word.chars().next() {
            Some('@') => calls.extend(system_calls(word)),
            Some('#') | None => {}
            Some(_) => drop(calls.insert(word.to_owned())),
        }
    }
    calls
}

/// Lists the values of a setting of the unit.
fn settings<'a>(unit: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    unit.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix('='))
}

fn allowed_by(unit: &str) -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for value in settings(unit, "SystemCallFilter") {
        let forbidden = value.starts_with('~');
        for group in value.trim_start_matches('~').split(' ') {
            let calls = system_calls(group);
            if forbidden {
                allowed.retain(|call| !calls.contains(call));
            } else {
                allowed.extend(calls);
            }
        }
    }
    allowed
}

engine_tool_test!(unit_allows_all_system_calls_of_the_service, requires_strace, |store: &Store| {
    let allowed = allowed_by(&file("deploy/plantstore.service"));
    assert!(allowed.contains("fsync") && !allowed.contains("mount") && !allowed.contains("chroot"));
    let trace = store.directory().join("trace");
    let strace = ["strace", "-D", "-f", "-q", "-o", trace.to_str().unwrap()];
    let server = store.serve_through(&strace, &[]);
    let ada = server.client(&store.token("ada", &[]));
    ada.plant(1, "Rose");
    assert_eq!(ada.ids(), [1]);
    assert_eq!(ada.delete(1).status, 204);
    let process = server.id();
    assert_eq!(server.stop().code(), Some(0));
    let ended = |line: &str| line.starts_with(&format!("{process} ")) && line.ends_with("+++ exited with 0 +++");
    let trace = wait_for("the whole trace", || {
        let trace = std::fs::read_to_string(&trace).unwrap();
        trace.lines().any(ended).then_some(trace)
    });
    let calls: BTreeSet<&str> = trace
        .lines()
        .filter_map(|line| line.split_once(' ')?.1.trim_start().split_once('('))
        .map(|(call, _)| call)
        .filter(|call| call.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
        .collect();
    assert!(calls.contains("accept4") && calls.len() > 30, "{calls:?}");
    // SQLite calls `fchown` only as root, and the unit does not run as root.
    let rejected: Vec<_> = calls.iter().filter(|call| !allowed.contains(**call) && **call != "fchown").collect();
    assert!(rejected.is_empty(), "the unit forbids {rejected:?}");
});

/// Every variable in the example files is an existing option.
#[test]
fn variables_in_deploy_are_options() {
    let serve = Command::new(env!("CARGO_BIN_EXE_plantstore")).args(["serve", "--help"]).output().unwrap();
    // The help is wrapped: join its lines.
    let serve = serve.stdout_text().split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = 0;
    for path in [
        "deploy/plantstore.service",
        "deploy/environment",
        "deploy/Dockerfile",
        "deploy/compose.yaml",
        "docs/how-to/deployment.md",
        "docs/how-to/install.md",
    ] {
        for (at, _) in file(path).match_indices("PLANTSTORE_") {
            let text = &file(path)[at..];
            let end = text.find(|character: char| !character.is_ascii_uppercase() && character != '_');
            let name = &text[..end.unwrap_or(text.len())];
            assert!(
                ["=", "]"].iter().any(|end| serve.contains(&format!("[env: {name}{end}")))
                    || name == "PLANTSTORE_TOKEN",
                "{path}: {name}"
            );
            found += 1;
        }
    }
    assert!(found > 5);
}

/// Runs a server that notifies a supervisor until it is stopped, and returns its messages.
fn supervised(store: &Store, name: &str, socket: &UnixDatagram, watchdog: &str) -> Vec<String> {
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = store.command(&["serve", "--listen", "127.0.0.1:0", "--no-first-token"]);
    command.env("NOTIFY_SOCKET", name).env("WATCHDOG_USEC", watchdog);
    let server = Server::start(command);
    let mut buffer = [0; 100];
    let mut next = || {
        let length = socket.recv(&mut buffer).expect("a message");
        text(&buffer[..length])
    };
    let mut messages = vec![next()];
    let awaited = if watchdog.is_empty() { 0 } else { 3 };
    messages.extend((0..awaited).map(|_| next()));
    server.signal("TERM");
    loop {
        messages.push(next());
        if messages.last().unwrap() != "WATCHDOG=1" {
            break;
        }
    }
    assert_eq!(server.wait().code(), Some(0));
    messages
}

sqlite_test!(supervisor_is_notified_of_start_and_stop, |store: &Store| {
    let path = store.directory().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let messages = supervised(store, path.to_str().unwrap(), &socket, "20000");
    assert_eq!(messages[..4], ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]);
    assert_eq!(messages.last().unwrap(), "STOPPING=1");
});

#[cfg(target_os = "linux")]
#[test]
fn supervisor_with_an_abstract_socket_is_notified() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::SocketAddr;

    let store = Store::new(Engine::Sqlite);
    let name = format!("plantstore-test-{}", store.directory().file_name().unwrap().display());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    assert_eq!(supervised(&store, &format!("@{name}"), &socket, ""), ["READY=1", "STOPPING=1"]);
}

// A supervisor that cannot be notified does not stop the service.
sqlite_test!(missing_supervisor_is_no_error, |store: &Store| {
    let mut command = store.command(&["serve", "--listen", "127.0.0.1:0", "--no-first-token"]);
    command.env("NOTIFY_SOCKET", store.directory().join("missing"));
    let server = Server::start(command);
    assert_eq!(server.stop().code(), Some(0));
    assert!(server.log().contains("cannot notify the service manager"), "{}", server.log());
});

sqlite_test!(probe_reports_readiness, |Service { store, server }: &Service| {
    let ready = store.run(&["probe", &format!("http://{}", server.address()), "--timeout", "30s"]);
    assert!(ready.status.success() && ready.stdout == b"ready\n", "{}", ready.stderr_text());
    let unready = RewritingProxy::start(server.address(), |request, server| {
        Reply::Response(server.send(request).with_status(503))
    });
    let closed = format!("http://{CLOSED_ADDRESS}");
    let silent = RewritingProxy::start(server.address(), |_, _| Reply::Silence);
    for (url, timeout, says) in [
        (unready.url(), "30s", "error: not ready: 503 with {\"status\":\"ready\"}\n"),
        (closed, "30s", "error: cannot connect to 127.0.0.1:"),
        (silent.url(), "100ms", "error: no complete response within 100ms\n"),
    ] {
        let reported = store.run(&["probe", &url, "--timeout", timeout]).failure(1);
        assert!(reported.starts_with(says), "{reported}");
    }
    assert_eq!(store.run(&["probe", "localhost"]).status.code(), Some(2));
});
