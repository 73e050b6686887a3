//! The first token of a new store: in a file beside it, and on a terminal also on the screen.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rstest::rstest;

use crate::support::{
    CommandOutput, Engine, Server, Store, StraceCommand, Terminal, assert_contains, sqlite_test, tool_test,
};
use crate::tokens::ALL_SCOPES;

const SERVE: [&str; 3] = ["serve", "--listen", "127.0.0.1:0"];

fn file(store: &Store) -> PathBuf {
    store.directory().join("plants.db.first-token")
}

/// Reads the token from its file, which only the owner may read.
#[track_caller]
fn stored_token(store: &Store) -> String {
    let token = std::fs::read_to_string(file(store)).expect("the file with the token");
    assert_eq!(std::fs::metadata(file(store)).unwrap().permissions().mode() & 0o777, 0o600);
    let note =
        std::fs::read_to_string(store.directory().join("plants.db.first-token.txt")).expect("the note beside it");
    assert!(
        note.starts_with(&format!("The first token of this store, for the user gardener, is {}.", validity(store))),
        "{note}"
    );
    // As `$(cat …)` reads it.
    let token = token.strip_suffix('\n').expect("one line");
    assert!(!token.contains(char::is_whitespace), "{token}");
    token.to_owned()
}

/// Returns the expiry time of the first token as the server announces it.
#[track_caller]
fn validity(store: &Store) -> String {
    let expires: jiff::Timestamp = store.tokens()[0]["expires"].as_str().expect("a time").parse().unwrap();
    expires.strftime("valid until %Y-%m-%d %H:%M UTC").to_string()
}

sqlite_test!(new_embedded_store_gets_a_first_token, |store: &Store| {
    let serve = || Server::start(store.command(&[&SERVE[..], &["--log-level", "trace"]].concat()));
    let server = serve();
    let token = stored_token(store);
    assert_eq!(std::fs::metadata(store.file()).unwrap().permissions().mode() & 0o777, 0o600);
    server.client(&token).plant(1, "Monstera");
    assert_eq!(server.stop().code(), Some(0));
    assert!(server.log().contains("plants.db.first-token"), "the log names the file");
    assert!(!server.log().contains("pst_"), "the log never has the token");
    let first = &store.tokens()[0];
    assert_eq!(first["user"], "gardener");
    assert_eq!(first["scopes"], serde_json::json!(ALL_SCOPES.split(',').collect::<Vec<_>>()));
    let [created, expires] =
        ["created", "expires"].map(|name| first[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap());
    assert_eq!(expires.duration_since(created).as_hours(), 90 * 24);

    std::fs::remove_file(file(store)).unwrap();
    let again = serve();
    assert!(!file(store).exists(), "only a new store gets a first token");
    assert_eq!(again.client(&token).ids(), [1]);
    again.stop();
});

/// A store whose users were all deleted is not new.
#[test]
fn a_store_is_new_until_it_has_had_a_user() {
    let store = Store::new(Engine::Sqlite);
    drop(store.serve(&[]));
    assert!(!file(&store).exists(), "--no-first-token");
    assert_eq!(store.tokens().len(), 0);
    let server = Server::start(store.command(&SERVE));
    assert_eq!(server.client(&stored_token(&store)).get("/plants").status, 200);
    drop(server);
    store.run(&["user", "delete", "--yes", "gardener"]).success();
    std::fs::remove_file(file(&store)).unwrap();
    drop(Server::start(store.command(&SERVE)));
    assert!(!file(&store).exists());
    assert_eq!(store.tokens().len(), 0);
}

sqlite_test!(a_first_token_that_cannot_be_written_is_not_issued, |store: &Store| {
    std::fs::create_dir(file(store)).unwrap();
    let stderr = store.run(&[&SERVE[..], &["--log-level", "error"]].concat()).failure(1);
    assert_contains(&stderr, "cannot write the first token to");
    assert_contains(&stderr, "issue one with `plantstore token create --user gardener");
    assert_eq!(store.tokens().len(), 0);
    std::fs::remove_dir(file(store)).unwrap();
    let server = Server::start(store.command(&SERVE));
    assert_eq!(server.client(&stored_token(store)).get("/plants").status, 200, "the next start issues the token");
});

tool_test!(first_token_is_shown_once_on_a_terminal, requires_script, |store: &Store| {
    let mut terminal = Terminal::serve(store, &[]);
    let screen = terminal.screen();
    terminal.close();
    let token = screen.split("export TOKEN=").nth(1).and_then(|rest| rest.lines().next()).expect("the token").trim();
    assert_eq!(token.len(), 42);
    assert_eq!(screen.matches("pst_").count(), 1, "the token is shown once: {screen}");
    assert_contains(&screen, "and shows them in a browser at http://127.0.0.1:");
    assert_eq!(stored_token(store), token);
    assert!(screen.contains(&format!("It is {}.", validity(store))), "{screen}");
    assert_contains(&screen, "plants.db.first-token, which only its owner can read");
    let server = store.serve(&[]);
    assert_eq!(server.client(token).get("/plants").status, 200);
});

/// Kills the first start of a server at the given system call. Returns false if the server makes fewer of these calls.
fn is_killed_at(store: &Store, call: &str, number: usize) -> bool {
    let mut traced = StraceCommand::start(store, &format!("{call}:signal=SIGKILL:when={number}"), &SERVE);
    let mut announced = String::new();
    let output = traced.child().stdout.as_mut().expect("standard output is piped");
    BufReader::new(output).read_line(&mut announced).expect("the address, or the end");
    let started = announced.starts_with("Listening on");
    if started {
        traced.signal("KILL");
    }
    traced.wait();
    !started
}

/// When the first start is killed, the store, the file and the token may each exist or not.
#[rstest]
#[case::requires_strace()]
fn interrupted_first_start_is_completed_by_the_next() {
    let mut kills = 0;
    for call in ["fsync", "fdatasync", "rename", "renameat2", "pwrite64", "unlink"] {
        for number in 1.. {
            let store = Store::new(Engine::Sqlite);
            if !is_killed_at(&store, call, number) {
                break;
            }
            kills += 1;
            let server = Server::start(store.command(&SERVE));
            let response = server.client(&stored_token(&store)).get("/plants");
            assert_eq!(response.status, 200, "after a kill at {call} {number}: {}", response.text());
        }
    }
    assert!(kills > 5, "{kills} kills");
}
