//! Clients of `GET /events` that others have written: the programs of `docs/how-to/live-updates.md`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use crate::support::tools::{external, in_tests, python_tool};
use crate::support::{Garden, engine_test};

const PAGE: &str = include_str!("../../../docs/how-to/live-updates.md");

/// A program that is killed at the end of the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the first block of the page in this language, with the address of the server.
fn program(garden: &Garden, language: &str) -> String {
    let block = PAGE.split("```").skip(1).step_by(2).find_map(|block| block.strip_prefix(&format!("{language}\n")));
    block.expect("a program").replace("127.0.0.1:8080", &garden.server.address().to_string())
}

/// Runs a program in the directory of the store, and returns the lines that it prints.
fn run(garden: &Garden, command: &mut Command) -> (Program, impl Iterator<Item = String> + use<>) {
    let command = command.current_dir(garden.store.directory()).env("TOKEN", garden.ada.token.as_deref().unwrap());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program runs");
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (Program(child), lines.map(|line| line.unwrap()))
}

/// Changes plants while the program runs, which must show the list after each change.
fn expect_lists(garden: &Garden, command: &mut Command) {
    garden.ada.plant(1, "Rose");
    let (_program, mut lines) = run(garden, command);
    assert_eq!(lines.next().as_deref(), Some("Rose"));
    garden.ada.plant(2, "Fern");
    assert_eq!(lines.next().as_deref(), Some("Rose, Fern"));
    assert_eq!(garden.ada.delete(1).status, 204);
    assert_eq!(lines.next().as_deref(), Some("Fern"));
}

engine_test!(eventsource_of_npm_shows_changes, |garden: &Garden| {
    fs::write(garden.store.directory().join("live.mjs"), program(garden, "js")).unwrap();
    // Node.js looks up modules from the directory of the program.
    symlink(in_tests("node/node_modules"), garden.store.directory().join("node_modules")).unwrap();
    expect_lists(garden, external("node").arg("live.mjs"));
});

engine_test!(httpx_sse_shows_changes, |garden: &Garden| {
    fs::write(garden.store.directory().join("live.py"), program(garden, "python")).unwrap();
    expect_lists(garden, python_tool("python").arg("live.py"));
});

engine_test!(curl_prints_events, |garden: &Garden| {
    let (_program, mut lines) = run(garden, external("bash").args(["-c", &program(garden, "sh")]));
    assert_eq!([(); 2].map(|()| lines.next().expect("a line")), ["retry: 2000", ""]);
    let tag = || garden.ada.get("/plants").header("etag").expect("a tag").to_owned();
    let mut expect_event = |tag: &str| {
        let data = serde_json::json!({ "etag": tag });
        let event = [(); 4].map(|()| lines.next().expect("a line"));
        assert_eq!(event, ["event: plants", &format!("id: {tag}"), &format!("data: {data}"), ""]);
    };
    expect_event(&tag());
    garden.ada.plant(1, "Rose");
    expect_event(&tag());
});
