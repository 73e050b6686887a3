//! The examples of the README, and of the documents for users, work as printed.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Engine, Server, Site};

/// What a block of a document types and what it shows, line by line.
struct Example {
    command: String,
    shown: Vec<String>,
}

/// The examples of all `console` blocks, in order: a line after `$ ` is typed, one that ends in a backslash goes on, and
/// the lines until the next are shown.
fn examples(document: &str) -> Vec<Example> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document)).unwrap();
    let mut examples: Vec<Example> = Vec::new();
    for block in text.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        for line in block.lines() {
            let unfinished = examples.last().is_some_and(|example| example.command.ends_with('\\'));
            if let Some(command) = line.strip_prefix("$ ") {
                examples.push(Example { command: command.to_owned(), shown: Vec::new() });
            } else if unfinished {
                let command = &mut examples.last_mut().unwrap().command;
                *command = command.trim_end_matches('\\').to_owned() + line.trim_start();
            } else {
                examples.last_mut().unwrap().shown.push(line.to_owned());
            }
        }
    }
    examples
}

/// Whether a line is as printed; `…` in a document stands for what differs from run to run.
fn matches(shown: &str, found: &str) -> bool {
    let mut rest = found;
    let pieces: Vec<&str> = shown.split('…').collect();
    for (index, piece) in pieces.iter().enumerate() {
        let at = if index == 0 { rest.starts_with(piece).then_some(0) } else { rest.find(piece) };
        let Some(at) = at else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.is_empty() || shown.ends_with('…')
}

#[test]
fn the_examples_of_the_readme_work_as_printed() {
    let examples = examples("README.md");
    assert!(examples.len() >= 8, "the README has examples");
    work_as_printed("", &examples);
}

#[test]
fn so_do_those_of_the_document_on_retries() {
    let examples = examples("docs/retries.md");
    assert!(examples.len() >= 3, "it has examples");
    work_as_printed("TOKEN=$(cat plantstore.db.first-token)\n", &examples);
}

/// Types the examples, after some other commands, into a shell beside a new server.
fn work_as_printed(before: &str, examples: &[Example]) {
    let site = Site::new(Engine::Sqlite);
    let mut serve = Command::new(env!("CARGO_BIN_EXE_plantstore"));
    serve.args(["serve", "--listen", "127.0.0.1:0"]).current_dir(site.directory());
    let server = Server::start(serve);
    let program = Path::new(env!("CARGO_BIN_EXE_plantstore")).parent().unwrap();
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", program.display());
    let mut shell = format!("set -u\n{before}");
    for example in examples {
        // Building and serving was done above; everything else is typed as it stands.
        let typed = example.command.replace("127.0.0.1:8080", &server.address().to_string());
        if !typed.starts_with("cargo run") {
            shell.push_str(&typed);
            shell.push('\n');
        }
        shell.push_str("echo; echo ----\n");
    }
    let output = Command::new("bash")
        .args(["-c", &shell])
        .env_clear()
        .env("PATH", path)
        .current_dir(site.directory())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let mut found = output.split("----\n");
    for example in examples {
        let found: Vec<&str> =
            found.next().unwrap().lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        if example.command.starts_with("cargo run") {
            continue;
        }
        let shown: Vec<&str> =
            example.shown.iter().map(|line| line.trim_end()).filter(|line| !line.is_empty()).collect();
        let same = shown.len() == found.len() && shown.iter().zip(&found).all(|(shown, found)| matches(shown, found));
        assert!(same, "{}\nshows   {shown:#?}\nand not {found:#?}", example.command);
    }
}
