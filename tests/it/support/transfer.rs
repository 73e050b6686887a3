//! Import and export through the command line.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use sha2::{Digest, Sha256};

use super::{CommandOutput, Store};

/// Runs a command to its end with this standard input.
pub(crate) fn feed(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // The command may end before it has read everything.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    })
}

/// Standard error of a command.
pub(crate) fn stderr(output: &Output) -> String {
    output.stderr_text()
}

/// Imports valid lines, which must succeed. Creates the store if it does not exist.
#[track_caller]
pub(crate) fn import(store: &Store, arguments: &[&str], lines: &str) -> String {
    let output = feed(store.command(&[&["import", "--create"], arguments].concat()), lines.as_bytes());
    output.success();
    output.stderr_text()
}

/// Exports all plants as lines, after checking the printed count and digest.
#[track_caller]
pub(crate) fn export(store: &Store) -> String {
    let output = store.run(&["export"]);
    let text = output.success();
    let digest = Sha256::digest(&output.stdout).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    let plants = text.lines().count();
    let reported = output.stderr_text();
    assert!(reported.replace(',', "").starts_with(&format!("exported {plants} plant")), "{reported}");
    assert!(reported.trim_end().ends_with(&format!("sha256 {digest}")), "{reported}");
    text
}

/// Returns import lines with `each` plants for each of these users.
pub(crate) fn lines(users: &[&str], each: i64) -> String {
    let mut text = String::new();
    for user in users {
        for id in 0..each {
            let _ = writeln!(text, r#"{{"owner":"{user}","id":{id},"name":"plant {id}","tag":"of {user}"}}"#);
        }
    }
    text
}
