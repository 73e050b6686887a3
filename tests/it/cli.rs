//! The command line, beside a running server and without one.

mod failures;
mod terminal;

use std::process::Stdio;

use serde_json::Value;

use crate::support::transfer::feed;
use crate::support::{
    CommandOutput, Garden, JSON, Server, Stopwatch, Store, assert_contains, assert_snapshot, engine_test, free_port,
    sqlite_test, wait_for, wait_until,
};
use crate::tokens::EFFECT_LIMIT;

engine_test!(a_token_works_at_once_and_stops_within_5_seconds_of_its_revocation, |store: &Store| {
    let server = store.serve(&[]);
    let token = store.token("ada", &["--label", "balcony"]);
    let ada = server.client(&token);
    assert_eq!(ada.get("/plants").status, 200, "immediately after its creation");
    let id = store.tokens()[0]["id"].to_string();
    assert_eq!(ada.get("/plants").status, 200);
    let output = store.run(&["token", "revoke", &id]);
    let start = Stopwatch::start();
    assert_contains(output.notes(), "revoked");
    let mut connection = ada.connect();
    let rejected = wait_for("the revocation", || {
        Some(connection.ask(ada.bytes("GET", "/plants", &[], None))).filter(|response| response.status != 200)
    });
    assert_eq!(rejected.error(), 40101);
    assert!(start.elapsed() < EFFECT_LIMIT, "{:?}", start.elapsed());
    assert_eq!(store.tokens()[0]["state"], "revoked");
    let revoked = store.tokens()[0]["revoked"].clone();
    store.run(&["token", "revoke", &id]).success();
    assert_eq!(store.tokens()[0]["revoked"], revoked, "a second revocation changes nothing");
    let another = server.client(&store.token("ada", &[]));
    assert_eq!(another.get("/plants").status, 200);
});

engine_test!(tokens_are_listed, |store: &Store| {
    store.token("ada", &["--label", "balcony 🌵", "--scope", "plants:read", "--scope", "plants:delete"]);
    store.token("bob", &["--expires", "never"]);
    let eves = store.token("eve", &["--expires", "1ms"]);
    let server = store.serve(&[]);
    let all = store.tokens();
    let [ada, bob, eve] = &all[..] else { panic!("three tokens, not {all:?}") };
    assert_eq!((&ada["user"], &ada["label"], &ada["state"]), (&"ada".into(), &"balcony 🌵".into(), &"active".into()));
    assert_eq!(ada["scopes"], serde_json::json!(["plants:read", "plants:delete"]));
    assert_eq!(bob["scopes"], serde_json::json!(["plants:read", "plants:write", "plants:delete"]));
    assert_eq!((&bob["expires"], &bob["last_used"], &bob["revoked"]), (&Value::Null, &Value::Null, &Value::Null));
    assert_eq!(eve["state"], "expired");
    let days = |token: &Value| {
        let [created, expires] =
            ["created", "expires"].map(|name| token[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap());
        expires.duration_since(created).as_hours() / 24
    };
    assert_eq!(days(ada), 90);
    let table = store.run(&["token", "list", "--user", "ada"]).stdout_text();
    assert_eq!(table.lines().count(), 2, "{table}");
    let titles = ["ID", "USER", "LABEL", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "STATE"];
    let values = ["ada", "balcony 🌵", "read", "delete", "active"];
    for word in titles.iter().chain(&values) {
        assert_contains(&table, word);
    }
    assert!(!table.contains("bob"));
    let everything =
        store.run(&["token", "list"]).stdout_text() + &store.run(&["token", "list", "--json"]).stdout_text();
    assert!(!everything.contains("pst_") && !everything.contains(&eves[4..20]), "secrets are never listed");
    drop(server);
});

engine_test!(last_use_of_a_token_is_stored_by_day, |Garden { store, ada, .. }: &Garden| {
    assert_eq!(store.tokens()[0]["last_used"], Value::Null);
    assert_eq!(ada.get("/plants").status, 200);
    let day = wait_for("the last use to be stored", || store.tokens()[0]["last_used"].as_str().map(str::to_owned));
    assert_eq!(day.len(), "2026-01-01".len(), "{day}");
    assert_contains(store.run(&["token", "list"]).stdout_text(), &day);
    assert_eq!(store.rows("SELECT last_used_at % 86400 FROM tokens"), [0], "the time of day is not stored");
});

engine_test!(a_new_token_is_alone_on_standard_output, |store: &Store| {
    let output = store.run(&["token", "create", "--create", "--user", "ada"]);
    let token = output.stdout_text();
    assert_eq!(token.len(), 43, "{token}");
    assert!(token.starts_with("pst_") && token.ends_with('\n'));
    assert_contains(output.stderr_text(), "token 1 for ada: plants:read plants:write plants:delete, expires");
    assert!(!output.stderr_text().contains("pst_"));
    let server = store.serve(&[]);
    assert_eq!(server.client(token.trim_end()).get("/plants").status, 200);
});

engine_test!(users_are_listed_and_deleted_with_all_they_have, |Garden { store, server, ada }: &Garden| {
    let bob = server.client(&store.token("bob", &[]));
    for id in 0..30 {
        ada.plant(id, "ada's");
    }
    bob.plant(1, "bob's");
    let users: Value = store.run(&["user", "list", "--json"]).json();
    assert_eq!((&users[0]["name"], &users[0]["plants"], &users[0]["tokens"]), (&"ada".into(), &30.into(), &1.into()));
    assert_eq!((&users[1]["name"], &users[1]["plants"]), (&"bob".into(), &1.into()));
    assert_contains(store.run(&["user", "list"]).stdout_text(), "ada        1      30");

    assert_contains(store.run(&["user", "delete", "ada"]).failure(1), "nothing was deleted");
    let confirm = |response: &str| feed(store.command(&["user", "delete", "ada"]), response.as_bytes());
    assert_eq!(confirm("yes\n").status.code(), Some(1));
    assert_eq!(ada.ids().len(), 30);
    assert_contains(confirm("ada\n").notes(), "with 1 token and 30 plants");

    assert_eq!(ada.post(r#"{"id":99,"name":"too late"}"#).error(), 40101, "immediately after the deletion");
    assert_eq!(ada.delete(29).error(), 40101);
    wait_until("the token to be rejected", || ada.get("/plants").status == 401);
    assert_eq!(bob.ids(), [1], "the plants of other users stay");
    let counts =
        ["plants", "departed_users", "tokens"].map(|table| store.rows(&format!("SELECT count(*) FROM {table}"))[0]);
    assert_eq!(counts, [1, 0, 1], "no row of the deleted user is left");
    let again = server.client(&store.token("ada", &[]));
    assert_eq!(again.ids(), [0_i64; 0], "a new user of the same name starts with nothing");
    again.plant(1, "new");
    store.run(&["user", "delete", "--yes", "ada"]).success();
    assert_contains(store.run(&["user", "delete", "--yes", "ada"]).failure(1), "there is no user ada");
});

engine_test!(every_option_is_also_in_the_environment, |store: &Store| {
    let token = store.token("ada", &[]);
    let mut command = store.command(&["serve"]);
    command
        .env("PLANTSTORE_LISTEN", "127.0.0.1:0")
        .env("PLANTSTORE_MAX_BODY_BYTES", "100")
        .env("PLANTSTORE_NO_FIRST_TOKEN", "1");
    let server = Server::start(command);
    assert_eq!(server.client(&token).post(format!(r#"{{"id":1,"name":"{}"}}"#, "x".repeat(100))).error(), 41300);
    let help = store.run(&["serve", "--help"]).stdout_text();
    let options: Vec<&str> = help.split_whitespace().filter(|word| word.starts_with("--")).collect();
    assert!(options.len() > 15, "{help}");
    for option in options.into_iter().filter(|option| !["--help", "--version"].contains(option)) {
        let name = option.trim_start_matches('-').replace('-', "_").to_uppercase();
        assert!(help.contains(&format!("PLANTSTORE_{name}")), "{option} has no variable");
    }
});

engine_test!(closed_pipe_is_no_failure, |store: &Store| {
    store.token("ada", &[]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = store.command(&["token", "list"]).stdin(Stdio::null()).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr_text().as_str()), (Some(0), ""));
});

engine_test!(token_that_could_not_be_printed_is_revoked, |store: &Store| {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    assert_contains(
        store.command(&["token", "create", "--create", "--user", "ada"]).stdout(full).output().unwrap().failure(1),
        "cannot print the token, so it is revoked again",
    );
    assert_eq!(store.tokens()[0]["state"], "revoked");
});

sqlite_test!(help_and_version_are_printed, |store: &Store| {
    let version = store.run(&["--version"]);
    assert_eq!(version.stdout_text(), format!("plantstore {}\n", env!("CARGO_PKG_VERSION")));
    for arguments in [
        &["--help"][..],
        &["serve", "--help"],
        &["token", "create", "--help"],
        &["user", "delete", "--help"],
        &["share", "grant", "--help"],
    ] {
        let help = store.run(arguments);
        assert_eq!(help.status.code(), Some(0));
        assert_contains(help.stdout_text(), "Usage: plantstore");
    }
    assert_eq!(store.run(&[]).status.code(), Some(2), "a missing command is a usage error");
    let help = store.run(&["serve", "--help"]).stdout_text().split_whitespace().collect::<Vec<_>>().join(" ");
    let defaults: Vec<&str> = help.split("[default: ").skip(1).filter_map(|rest| rest.split(']').next()).collect();
    // The defaults of the contract.
    assert_eq!(
        defaults.join(" "),
        "127.0.0.1:8080 sqlite:plantstore.db info auto sub 10s 75s 30s \
        16384 100 10000 10s 30s 16384 512 512 1s 16777216 1024 2s 10 100"
    );
    assert_snapshot!(store.run(&["--help"]).stdout_text(), @r"
    Keeps people's plants: a small HTTP/JSON service

    Usage: plantstore <COMMAND>

    Commands:
      serve        Run the service
      migrate      Create a store, or update its schema, for servers that run with --no-migrate
      token        Issue, list and revoke access tokens; works beside a running server
      share        Share the plants of one user with another; works beside a running server
      user         List and delete users; works beside a running server
      openapi      Print the OpenAPI document that the service serves at /openapi.json
      export       Write all plants, or one user's, as lines of JSON; works beside a running server
      import       Store plants from lines of JSON; works beside a running server
      backup       Copy the whole store into a file, while servers continue to write
      restore      Copy a backup into a new store of either engine
      copy         Copy a whole store to a new place or engine, for example from SQLite to PostgreSQL
      check        Check that a live server keeps the contract, and leave nothing behind
      probe        Check that a server is ready for requests
      completions  Print the completion script of a shell
      man          Print a manual page, or write all of them into a directory
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help     Print help
      -V, --version  Print version

    Examples:
      plantstore serve
      plantstore token create --user ada
      plantstore backup monday.db
      plantstore man serve | man -l -
    ");
});

engine_test!(token_list_fits_80_columns, |store: &Store| {
    store.token("ada", &["--label", "balcony"]);
    store.token(
        &"u".repeat(255),
        &["--label", &"a long label ".repeat(7), "--scope", "plants:write,plants:delete", "--expires", "never"],
    );
    let manager = store.token("gardener", &["--label", "first token", "--scope", "plants:read,tokens:manage"]);
    let created = store.serve(&[]).client(&manager).call("POST", "/tokens", &[JSON], Some(b"{}"));
    assert_eq!(created.status, 201);
    let table = store.run(&["token", "list", "--user", "gardener"]).stdout_text();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(table.contains(" gardener ") && table.contains(" by token 3"), "words are not broken: {table}");
    let table = store.run(&["token", "list"]).stdout_text();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let whole: String = table.split_whitespace().collect();
    assert_eq!(whole.matches('u').count(), 255, "names are wrapped, not cut: {table}");
    let row = table.lines().nth(1).expect("a row");
    assert!(row.contains("ada") && row.contains("balcony") && row.contains("plants"), "{table}");
});

sqlite_test!(a_port_alone_is_an_address_of_this_machine, |store: &Store| {
    let port = free_port().to_string();
    let server = Server::start(store.command(&["serve", "--listen", &port, "--no-first-token"]));
    assert_eq!(server.address().to_string(), format!("127.0.0.1:{port}"));
    assert_eq!(server.anonymous().get("/livez").status, 200);
    assert_eq!(server.stop().code(), Some(0));
    assert_eq!(server.rest_of_output(), "", "the log has the address, and a program that chose the port knows it");
});

sqlite_test!(thousands_separators_are_the_same_everywhere, |store: &Store| {
    let lines = crate::support::transfer::lines(&["ada"], 1_234);
    std::fs::write(store.directory().join("plants.ndjson"), lines).unwrap();
    store.token("bob", &[]);
    assert!(store.run(&["import", "plants.ndjson"]).stderr_text().contains("stored 1,234 plants"));
    assert!(
        store.run(&["import", "plants.ndjson", "--on-conflict", "skip"]).stderr_text().contains("skipped 1,234 that")
    );
    assert!(store.run(&["user", "list"]).stdout_text().contains("ada        0   1,234"));
    assert!(store.run(&["export", "--output", "out"]).stderr_text().contains("exported 1,234 plants of 1 user"));
    assert!(store.run(&["backup", "b.db"]).stdout_text().contains("  1,234 "));
    assert!(store.run(&["user", "delete", "ada", "--yes"]).stderr_text().contains("and 1,234 plants"));
});
