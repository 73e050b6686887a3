//! The examples of the documents work as printed.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::issuer::{AUDIENCE, Issuer, SigningKey};
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
    let site = Site::new(Engine::Sqlite);
    work_as_printed(&examples("README.md"), &start(&site, &[]), &site, "");
}

#[test]
fn the_examples_about_lists_and_shares_work_as_printed() {
    for document in ["docs/rereads.md", "docs/sharing.md"] {
        let site = Site::new(Engine::Sqlite);
        work_as_printed(&examples(document), &start(&site, &[]), &site, "");
    }
}

#[test]
fn the_examples_about_openid_connect_work_as_printed() {
    let site = Site::new(Engine::Sqlite);
    let key = SigningKey::rsa("key");
    let issuer = Issuer::start(&[&key]);
    let options = ["--oidc-issuer", issuer.url(), "--oidc-audience", AUDIENCE, "--no-first-token"];
    let token = key.token(&issuer.claims("ada"));
    work_as_printed(&examples("docs/openid-connect.md"), &start(&site, &options), &site, &token);
}

/// A server as the documents start it, on the store in its directory.
fn start(site: &Site, options: &[&str]) -> Server {
    let mut serve = Command::new(env!("CARGO_BIN_EXE_plantstore"));
    serve.args(["serve", "--listen", "127.0.0.1:0"]).args(options).current_dir(site.directory());
    Server::start(serve)
}

fn work_as_printed(examples: &[Example], server: &Server, site: &Site, token: &str) {
    let program = Path::new(env!("CARGO_BIN_EXE_plantstore")).parent().unwrap();
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", program.display());
    assert!(examples.len() >= 3, "the document has examples");
    let mut shell = String::from("set -u\n");
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
        .env("TOKEN", token)
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
