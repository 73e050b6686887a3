//! The examples in the documents work as printed.

use std::process::{Command, Stdio};

use crate::support::issuer::{AUDIENCE, Issuer, SigningKey};
use crate::support::{CommandOutput, Engine, Store, Terminal, wait_for};

/// Metrics port in the documents.
const METRICS_PORT: &str = "9464";

/// Commands whose examples also show standard error.
const ACCOUNT_COMMANDS: [&str; 3] = ["plantstore token ", "plantstore share ", "plantstore user "];

/// A command in a document and its printed output, line by line.
struct Example {
    command: String,
    shown: Vec<String>,
}

impl Example {
    /// Returns the options if the command starts a server.
    fn served(&self) -> Option<Vec<&str>> {
        let words =
            self.command.strip_prefix("cargo run --release -- ").or(self.command.strip_prefix("plantstore "))?;
        words.strip_prefix("serve").map(|options| options.split_whitespace().collect())
    }
}

/// Returns the examples of all `console` blocks in order. A line after `$ ` is a command, which continues after a
/// backslash at its end. The lines until the next command are its output.
fn examples(document: &str) -> Vec<Example> {
    let text = std::fs::read_to_string(format!("{}/{document}", env!("CARGO_MANIFEST_DIR"))).unwrap();
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

/// Returns true if a line is as printed; `…` in a document, with the spaces after it, stands for text that differs from
/// run to run.
fn matches(shown: &str, found: &str) -> bool {
    let mut rest = found;
    let pieces: Vec<&str> = shown.split('…').collect();
    for (index, piece) in pieces.iter().enumerate() {
        let piece = if index == 0 { piece } else { piece.trim_start() };
        let at = if index == 0 { rest.starts_with(piece).then_some(0) } else { rest.find(piece) };
        let Some(at) = at else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.is_empty() || shown.ends_with('…')
}

/// Runs the examples in a shell. A server with these options and a new store runs on another terminal.
fn check(options: &[&str], token: &str, examples: &[Example]) {
    check_in(&Store::new(Engine::Sqlite), options, token, examples, |_| ());
}

/// Runs the examples in the directory of `store`. `prepare` is called with the address of the server before.
fn check_in<'a>(store: &Store, options: &[&'a str], token: &str, examples: &[Example], prepare: impl FnOnce(&str)) {
    let free = |option: &&'a str| if *option == METRICS_PORT { "0" } else { *option };
    let server = Terminal::serve_default_store(store, &options.iter().map(free).collect::<Vec<_>>());
    let address = server.address().expect("the server listens").to_string();
    prepare(&address);
    let metrics = options
        .contains(&METRICS_PORT)
        .then(|| wait_for("the address of the metrics", || server.metrics_address()).to_string());
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_plantstore")).parent().unwrap();
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", program.display());
    let mut shell = String::from("set -u\n");
    for example in examples {
        let command =
            example.command.replace("127.0.0.1:8080", &address).replace("cargo run --release --", "plantstore");
        let metrics = metrics.as_deref().unwrap_or_default();
        shell.push_str(&command.replace(&format!("127.0.0.1:{METRICS_PORT}"), metrics));
        if ACCOUNT_COMMANDS.iter().any(|words| command.starts_with(words)) {
            shell.push_str(" 2>&1");
        }
        shell.push_str("\necho; echo ----\n");
    }
    let output = Command::new("bash")
        .args(["-c", &shell])
        .env_clear()
        .env("PATH", path)
        .env("TOKEN", token)
        .current_dir(store.directory())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let output = output.stdout_text();
    let mut found = output.split("----\n");
    for example in examples {
        let found: Vec<&str> =
            found.next().unwrap().lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let shown: Vec<&str> =
            example.shown.iter().map(|line| line.trim_end()).filter(|line| !line.is_empty()).collect();
        let same = shown.len() == found.len() && shown.iter().zip(&found).all(|(shown, found)| matches(shown, found));
        assert!(same, "{}\nshows   {shown:#?}\nand not {found:#?}", example.command);
    }
}

#[test]
fn the_examples_work_as_printed() {
    let documents = [
        ("README.md", 8),
        ("docs/how-to/backup-and-restore.md", 4),
        ("docs/how-to/caching.md", 4),
        ("docs/how-to/check-a-deployment.md", 4),
        ("docs/how-to/cors.md", 3),
        ("docs/how-to/deployment.md", 3),
        ("docs/how-to/edit-plants.md", 5),
        ("docs/how-to/import-and-export.md", 6),
        ("docs/how-to/monitoring.md", 4),
        ("docs/how-to/pagination.md", 6),
        ("docs/how-to/rate-limits.md", 5),
        ("docs/how-to/retries-and-idempotency.md", 3),
        ("docs/how-to/sharing.md", 8),
    ];
    for (document, least) in documents {
        let examples = examples(document);
        assert!(examples.len() >= least, "{document} has examples");
        // A command that starts a server begins a new group of examples. A document without one gets a default server.
        for run in examples.chunk_by(|_, next| next.served().is_none()) {
            let options = run[0].served();
            check(&options.clone().unwrap_or_default(), "", &run[usize::from(options.is_some())..]);
        }
    }
}

#[test]
fn the_tutorial_works_as_printed() {
    let examples = examples("docs/tutorial.md");
    let [serve, rest @ ..] = examples.as_slice() else { panic!("a command that starts a server, and others") };
    assert!(rest.len() >= 7 && rest.iter().any(|example| example.command == "python3 garden.py"));
    let store = Store::new(Engine::Sqlite);
    let file = store.directory().join("garden.py");
    check_in(&store, &serve.served().expect("a server"), "", rest, |address| {
        std::fs::write(&file, program("docs/tutorial.md", "python").replace("127.0.0.1:8080", address)).unwrap();
    });
}

#[test]
fn the_examples_about_openid_connect_work_as_printed() {
    let key = SigningKey::rsa("key");
    let issuer = Issuer::start(&[&key]);
    let options = ["--oidc-issuer", issuer.url(), "--oidc-audience", AUDIENCE, "--no-first-token"];
    check(&options, &key.token(&issuer.claims("ada")), &examples("docs/how-to/openid-connect.md"));
}

#[test]
fn the_examples_about_tls_work_as_printed() {
    let examples = examples("docs/how-to/tls.md");
    let [certificate, serve, rest @ ..] = examples.as_slice() else {
        panic!("a command for a certificate, one that starts a server, and others")
    };
    let store = Store::new(Engine::Sqlite);
    let made = Command::new("bash").args(["-c", &certificate.command]).current_dir(store.directory()).status();
    assert!(made.unwrap().success(), "{}", certificate.command);
    check_in(&store, &serve.served().expect("a server"), "", rest, |_| ());
}

/// Returns the only code block of a document in this language.
fn program(document: &str, language: &str) -> String {
    let text = std::fs::read_to_string(format!("{}/{document}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let start = format!("```{language}\n");
    let mut blocks = text.split(&start).skip(1).map(|rest| rest.split("```").next().unwrap());
    let (Some(block), None) = (blocks.next(), blocks.next()) else { panic!("{document} has one block of {language}") };
    block.to_owned()
}

#[test]
fn python_and_javascript_examples_follow_the_next_links() {
    let python = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("venv/bin/python");
    assert!(python.exists(), "{} is missing: scripts/test installs it", python.display());
    let store = Store::new(Engine::Sqlite);
    let server = store.serve(&[]);
    let token = store.token("ada", &[]);
    let names: Vec<String> = (1..=5).map(|id| format!("Plant {id}")).collect();
    for (id, name) in (1..).zip(&names) {
        server.client(&token).plant(id, name);
    }
    for (language, interpreter, file) in
        [("python", python.as_os_str(), "page.py"), ("javascript", "node".as_ref(), "page.mjs")]
    {
        let program =
            program("docs/how-to/pagination.md", language).replace("127.0.0.1:8080", &server.address().to_string());
        std::fs::write(store.directory().join(file), program).unwrap();
        let output = Command::new(interpreter).arg(file).env("TOKEN", &token).current_dir(store.directory()).output();
        let output = output.unwrap();
        let printed = output.stdout_text();
        let printed: Vec<&str> = printed.lines().collect();
        assert_eq!(printed, names, "{language}: {}", output.stderr_text());
    }
}
