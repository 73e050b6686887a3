//! `plantstore import --server` and `export --server`: plants of a user move over HTTP, with a token and without the store.

use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};

use rstest::rstest;

use crate::support::issuer::Authority;
use crate::support::transfer::{export, feed, import, lines, stderr};
use crate::support::{Engine, Garden, Server, Service, Store, engine_test, signal, sqlite_test, wait_for, wait_until};

/// Returns a command for this server, with the token in its environment. It does not know the store.
fn command(store: &Store, server: &Server, token: &str, arguments: &[&str]) -> Command {
    let url = format!("http://{}", server.address());
    let mut command = store.command(&[arguments, &["--server", &url]].concat());
    command.env("PLANTSTORE_STORE", "sqlite:none").env("PLANTSTORE_TOKEN", token);
    command
}

/// Runs a command of ada, which must succeed, and returns its standard error.
#[track_caller]
fn succeed(Garden { store, server, ada }: &Garden, arguments: &[&str], input: &str) -> String {
    let output = feed(command(store, server, ada.token.as_ref().unwrap(), arguments), input.as_bytes());
    assert!(output.status.success(), "{}", stderr(&output));
    stderr(&output)
}

/// Starts an import of ada whose input is not complete.
fn start_import(Garden { store, server, ada }: &Garden) -> Child {
    let mut command = command(store, server, ada.token.as_ref().unwrap(), &["import"]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn stored(store: &Store) -> i64 {
    store.rows("SELECT count(*) FROM plants")[0]
}

#[track_caller]
fn assert_fails(output: &Output, code: i32, message: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", stderr(output));
    assert!(stderr(output).contains(message), "{}", stderr(output));
}

engine_test!(plants_move_over_http_unchanged, |Service { store, server }: &Service| {
    let owner = "É&a=b+c%";
    let token = store.token(owner, &[]);
    let text = lines(&[owner], 2_500)
        .replace("plant 7\"", "Rose \\\"🌵\\\" \\\\\"")
        .replace(r#""name":"plant 8","tag":"of É&a=b+c%""#, r#""name":"plant 8""#)
        .replace("of É&a=b+c%\"}\n{\"owner\":\"É&a=b+c%\",\"id\":10,", "\"}\n{\"owner\":\"É&a=b+c%\",\"id\":10,");
    let imported = feed(command(store, server, &token, &["import"]), text.as_bytes());
    assert_eq!(stderr(&imported), "stored 2,500 plants\n");
    assert_eq!(export(store), text);
    let exported = command(store, server, &token, &["export"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&exported.stdout), text);
    assert_eq!(stderr(&exported), stderr(&store.run(&["export"])), "the count and the digest are the same");
    let exported = command(store, server, &token, &["export", "--output", "mine.ndjson"]).output().unwrap();
    assert!(exported.status.success(), "{}", stderr(&exported));
    let other = Store::new(store.engine);
    import(&other, &[], &std::fs::read_to_string(store.directory().join("mine.ndjson")).unwrap());
    assert_eq!(export(&other), text);
});

engine_test!(killed_imports_are_completed_by_the_same_command, |garden: &Garden| {
    let Garden { store, .. } = garden;
    let text = lines(&["ada"], 5_000);
    let mut before = 0;
    for kill in 1..=3 {
        let mut child = start_import(garden);
        // The command gets only a part of the input, so it has not ended when it is killed.
        let part = text.len() * kill / 4;
        child.stdin.as_mut().unwrap().write_all(&text.as_bytes()[..part]).unwrap();
        before = wait_for("another plant", || Some(stored(store)).filter(|stored| *stored > before));
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
    }
    let reported = succeed(garden, &["import"], &text);
    assert!(reported.contains("that exist already") && !reported.contains("another name"), "{reported}");
    assert_eq!(export(store), text);
    assert_eq!(succeed(garden, &["import"], &text), "stored 0 plants, skipped 5,000 that exist already\n");
    assert_eq!(garden.ada.delete(7).status, 204);
    assert_eq!(
        succeed(garden, &["import"], &text),
        "stored 1 plant, skipped 4,999 that exist already\n",
        "a plant that was deleted since is stored again"
    );
});

engine_test!(interrupted_import_says_how_to_go_on, |garden: &Garden| {
    let text = lines(&["ada"], 2_000);
    let mut child = start_import(garden);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    wait_until("the first batch", || stored(&garden.store) == 1_024);
    signal(child.id(), "INT");
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    let message =
        "interrupted by SIGINT: all lines up to 1024 are stored, and some after may be; go on with --from-line 1025";
    assert_fails(&output, 130, message);
    assert_eq!(succeed(garden, &["import", "--from-line", "1025"], &text), "stored 976 plants\n");
    assert_eq!(export(&garden.store), text);
});

// The responses to plants that were committed before the kill are lost. Their keys give them again.
engine_test!(import_goes_on_after_a_restart_of_the_server, |garden: &Garden| {
    let Garden { store, server, .. } = garden;
    let text = lines(&["ada"], 12_000);
    let mut child = start_import(garden);
    let mut stdin = child.stdin.take().unwrap();
    let half = text.len() / 2;
    stdin.write_all(&text.as_bytes()[..half]).unwrap();
    wait_until("the first plants", || stored(store) > 0);
    server.kill();
    let listen = server.address().to_string();
    let _restarted = Server::start(store.command(&["serve", "--no-first-token", "--listen", &listen]));
    stdin.write_all(&text.as_bytes()[half..]).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(stderr(&output), "stored 12,000 plants\n");
    assert_eq!(export(store), text);
});

engine_test!(different_plant_stops_the_import_and_stays, |garden: &Garden| {
    let Garden { store, server, ada } = garden;
    let token = ada.token.as_ref().unwrap();
    ada.plant(2, "mine");
    let text = lines(&["ada"], 300);
    let output = feed(command(store, server, token, &["import"]), text.as_bytes());
    assert_fails(&output, 1, "line 3: ada has a plant 2 with another name or tag: all lines up to 2 are stored");
    let reported = succeed(garden, &["import", "--on-conflict", "skip"], &text);
    assert!(reported.starts_with("line 3: skipped: ada has a plant 2 with another name or tag\n"), "{reported}");
    assert!(reported.contains("skipped 1 that exist with another name or tag"), "{reported}");
    let expected = text.replace(r#""plant 2","tag":"of ada""#, r#""mine""#);
    assert_eq!(export(store), expected);
    let without_read = store.token("ada", &["--scope", "plants:write"]);
    let output = feed(command(store, server, &without_read, &["import"]), text.as_bytes());
    assert_fails(&output, 1, "responds with 40300");
    assert_eq!(export(store), expected);
});

engine_test!(invalid_lines_are_reported_and_not_sent, |Garden { store, server, ada }: &Garden| {
    let text = lines(&["ada"], 2) + "{\"owner\":\"ada\",\"id\":3}\n" + &lines(&["ada"], 9);
    let output = feed(command(store, server, ada.token.as_ref().unwrap(), &["import"]), text.as_bytes());
    assert_fails(&output, 1, "line 3: `name` is required\n");
    assert_fails(&output, 1, "1 invalid line: all lines up to 2 are stored, and some after may be; correct the input");
    assert_eq!(export(store), lines(&["ada"], 2));
});

engine_test!(access_of_the_token_limits_both_commands, |Garden { store, server, ada }: &Garden| {
    let bob = store.token("bob", &[]);
    let text = lines(&["ada"], 200);
    let run = |token: &str, arguments: &[&str]| feed(command(store, server, token, arguments), text.as_bytes());
    assert_fails(&run("pst_unknown", &["import"]), 1, "responds with 40101");
    assert_fails(&run("pst_unknown", &["export"]), 1, "responds with 40101");
    assert_fails(&run(&store.token("ada", &["--scope", "plants:read"]), &["import"]), 1, "responds with 40300");
    assert_fails(&run(&store.token("ada", &["--scope", "plants:write"]), &["export"]), 1, "responds with 40300");
    assert_fails(&run(&bob, &["import"]), 1, "line 1: ");
    assert_fails(&run(&bob, &["export", "--user", "ada", "--output", "ada.ndjson"]), 1, "responds with 40400");
    assert!(!store.directory().join("ada.ndjson").exists());
    let share = |role| store.run(&["share", "grant", "--owner", "ada", "--to", "bob", "--role", role]);
    assert!(share("reader").status.success());
    wait_until("the share", || run(&bob, &["export", "--user", "ada"]).status.success());
    assert_fails(&run(&bob, &["import"]), 1, "responds with 40300");
    assert!(ada.ids().is_empty());
    assert!(share("editor").status.success());
    wait_until("the role", || run(&bob, &["import"]).status.success());
    assert_eq!(export(store), text);
    let own = run(&bob, &["export"]);
    assert_eq!((own.status.code(), own.stdout.len()), (Some(0), 0), "the plants of others are exported only by name");
    assert_eq!(String::from_utf8_lossy(&run(&bob, &["export", "--user", "ada"]).stdout), text);
    assert_eq!(stderr(&run(&bob, &["import", "--user", "bob"])), "stored 200 plants\n");
    assert_eq!(export(store), text.clone() + &text.replace(r#""owner":"ada""#, r#""owner":"bob""#));
});

engine_test!(
    rate_limit_slows_both_commands_down,
    &["--rate-limit", "50/s", "--rate-burst", "5", "--metrics-listen", "127.0.0.1:0"],
    |garden: &Garden| {
        let text = lines(&["ada"], 120);
        assert_eq!(succeed(garden, &["import"], &text), "stored 120 plants\n");
        assert!(succeed(garden, &["export"], "").starts_with("exported 120 plants of 1 user"));
        assert_eq!(export(&garden.store), text);
        let rejected = garden.server.metrics().value("plantstore_http_errors_total", &[("code", "42900")]);
        assert!(rejected > 0, "the limit was reached");
    }
);

/// Starts an export of ada to a pipe that is too small for the first page. Returns it when it has written the first bytes.
fn start_export(Garden { store, server, ada }: &Garden) -> Child {
    let name = "x".repeat(500);
    import(store, &[], &lines(&["ada"], 2_500).replace("\"name\":\"", &format!("\"name\":\"{name}")));
    let mut command = command(store, server, ada.token.as_ref().unwrap(), &["export"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    child
}

engine_test!(export_that_cannot_be_completed_fails, |garden: &Garden| {
    let child = start_export(garden);
    assert!(garden.store.run(&["user", "delete", "ada", "--yes"]).status.success());
    wait_until("the deletion", || garden.ada.get("/plants").status == 401);
    let output = child.wait_with_output().unwrap();
    assert_fails(&output, 1, "responds with 40101");
    assert!(!stderr(&output).contains("exported"), "{}", stderr(&output));
});

engine_test!(export_warns_of_changes_during_it, |garden: &Garden| {
    let child = start_export(garden);
    garden.ada.plant(5_000, "late");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).starts_with("warning: plants were changed during the export"), "{}", stderr(&output));
    let exported = String::from_utf8(output.stdout).unwrap();
    assert_eq!(exported.lines().filter(|line| line.contains("plant ")).count(), 2_500);
});

engine_test!(
    interrupted_export_leaves_no_file,
    &["--rate-limit", "1/h", "--rate-burst", "2", "--metrics-listen", "127.0.0.1:0"],
    |garden: &Garden| {
        let Garden { store, server, ada } = garden;
        import(store, &[], &lines(&["ada"], 2_500));
        let mut command = command(store, server, ada.token.as_ref().unwrap(), &["export", "--output", "mine.ndjson"]);
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        let files = || {
            let names = std::fs::read_dir(store.directory()).unwrap().map(|file| file.unwrap().file_name());
            names.filter(|name| name.to_string_lossy().starts_with("mine.ndjson")).count()
        };
        // The second page waits for the rate limit.
        let metrics = server.metrics();
        wait_until("the first page", || metrics.value("plantstore_http_errors_total", &[("code", "42900")]) > 0);
        assert_eq!(files(), 1);
        signal(child.id(), "TERM");
        assert_fails(&child.wait_with_output().unwrap(), 143, "interrupted by SIGTERM");
        assert_eq!(files(), 0);
    }
);

#[rstest]
#[case::requires_openssl()]
fn plants_move_over_https() {
    let store = &Store::new(Engine::Sqlite);
    let authority = Authority::new();
    let [certificate, key] = ["server.crt", "server.key"].map(|name| authority.path(name).display().to_string());
    let server = store.serve(&["--tls-cert", &certificate, "--tls-key", &key]);
    std::fs::write(store.directory().join("token"), store.token("ada", &[])).unwrap();
    let url = format!("https://{}", server.address());
    let authorities = authority.file().display().to_string();
    let text = lines(&["ada"], 100);
    let run = |arguments: &[&str]| {
        let fixed = ["--server", &url, "--token-file", "token"];
        feed(store.command(&[arguments, &fixed].concat()), text.as_bytes())
    };
    assert_eq!(stderr(&run(&["import", "--ca", &authorities])), "stored 100 plants\n");
    assert_eq!(String::from_utf8_lossy(&run(&["export", "--ca", &authorities]).stdout), text);
    let stranger = Authority::new();
    let other = stranger.file().display().to_string();
    assert_fails(&run(&["export", "--ca", &other]), 1, "name the authority that has signed it with --ca");
}

sqlite_test!(options_of_a_server_and_of_a_store_exclude_each_other, |Garden { store, server, ada }: &Garden| {
    let token = ada.token.as_ref().unwrap();
    let url = format!("http://{}", server.address());
    std::fs::write(store.directory().join("token"), token).unwrap();
    for (arguments, message) in [
        (&["import", "--server", &url][..], "no token: put it into PLANTSTORE_TOKEN or a file named by --token-file"),
        (&["import", "--server", &url, "--token-file", "-"], "standard input cannot be both the token and the lines"),
        (&["import", "--server", &url, "--token-file", "token", "--create"], "--create is for stores"),
        (&["export", "--server", &url, "--token-file", "token", "--store=sqlite:x"], "--store is for stores"),
        (&["export", "--token-file", "token"], "--token-file is for a server: name one with --server"),
        (&["import", "--ca", "token"], "--ca is for a server: name one with --server"),
        (&["export", "--server", "plants.example", "--token-file", "token"], "write the server's address as"),
        (&["export", "--server", &url, "--token", token], "a token does not belong on the command line"),
    ] {
        let output = store.run(arguments);
        assert_fails(&output, 2, message);
        assert!(!stderr(&output).contains(token.as_str()), "{}", stderr(&output));
    }
    let output = store.run(&["export", "--server", "http://127.0.0.1:1", "--token-file", "token"]);
    assert_fails(&output, 1, "cannot connect to 127.0.0.1:1: Connection refused");
});
