//! Errors of the command line: one clear line and an exit code.

use crate::support::{CommandOutput, Engine, Server, Service, Store, assert_contains, assert_snapshot, sqlite_test};

/// Asserts that a message holds no text of libraries and no error number of the operating system.
#[track_caller]
fn assert_no_internals(message: &str) {
    for internal in ["os error", "invalid digit", "..=", "is not in", "expected ident", "EOF while"] {
        assert!(!message.contains(internal), "{internal}: {message}");
    }
}

/// Asserts that a message is one line with these words, and returns it.
#[track_caller]
fn one_line(message: String, words: &str) -> String {
    assert_contains(&message, words);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert_no_internals(&message);
    message
}

sqlite_test!(wrong_use_is_one_clear_line_and_exit_code_2, |store: &Store| {
    store.token("ada", &[]);
    let wrong: &[(&[&str], &str)] = &[
        (&["serve", "--store", "mysql://u:secret@h/d"], "unknown store scheme `mysql`: use sqlite:PATH"),
        (&["serve", "--store", "plants.db"], "a store is written as sqlite:PATH"),
        (&["serve", "--store", "sqlite:"], "the path is missing"),
        (&["serve", "--store", "postgres://u:secret@"], "the host is missing"),
        (&["serve", "--store", "postgres:///plants"], "the host is missing"),
        (&["serve", "--store", "postgres://u:secret?x@h/d"], "not a URL of a database: write it as postgres://"),
        (&["serve", "--store", "postgres://u:secret@h:port/d"], "not a URL of a database: write it as postgres://"),
        (&["serve", "--store", "postgres://u:secret@a:1,b:2,c:3/d?port=7"], "give every host its port"),
        (&["serve", "--store", "postgres://u:secret@h/d?port=secret"], "port must be a number up to 65535"),
        (&["serve", "--store", "postgres://u:secret@h/d?target_session_attrs=read-only"], "only the primary will do"),
        (
            &["serve", "--store", "postgres://u:secret@h/d?channel_binding=secret"],
            "channel_binding must be disable, prefer or require",
        ),
        (
            &["serve", "--store", "postgres://u:secret@h/d?sslmode=require&sslrootcert=system"],
            "sslrootcert=system needs sslmode=verify-full",
        ),
        (
            &["serve", "--store", "postgres://u:secret@h/d?sslrootcert=ca.pem&sslmode=disable"],
            "sslrootcert needs sslmode=verify-full, verify-ca or require",
        ),
        (&["serve", "--store", "postgres://u:secret@h/d?secret=1"], "unknown parameter: known are sslmode,"),
        (&["migrate", "--store", "postgres://u:secret@h/d?sslmode=secret"], "sslmode must be disable, prefer, require"),
        (&["token", "list", "--store", "sqlite::memory:"], "would forget everything"),
        (&["serve", "--header-timeout", "10"], "write a whole number and a unit, for example 500ms, 10s"),
        (&["serve", "--header-timeout", "s"], "500ms, 10s"),
        (&["serve", "--header-timeout", "10x"], "500ms, 10s"),
        (&["serve", "--header-timeout", "1.5s"], "500ms, 10s"),
        (&["serve", "--header-timeout", "１s"], "500ms, 10s"),
        (&["serve", "--header-timeout", "99999999999999999999s"], "500ms, 10s"),
        (&["serve", "--header-timeout", "0s"], "must be longer than zero"),
        (&["serve", "--header-timeout", "365001d"], "is too long: the maximum is 365000d"),
        (&["serve", "--listen", "localhost"], "write HOST:PORT, for example 127.0.0.1:8080, or a port of this machine"),
        (&["serve", "--max-body-bytes", "0"], "'--max-body-bytes <BYTES>': write a whole number from 1 to 16,777,216"),
        (&["serve", "--max-in-flight", "many"], "write a whole number from 1 to 100,000"),
        (&["serve", "--list-cache-bytes", "x"], "write a whole number from 0 to 4,294,967,295"),
        (&["import", "--from-line", "x"], "write a whole number, 1 or more"),
        (&["serve", "--nonsense"], "--nonsense"),
        (&["token", "create"], "--user"),
        (&["token", "create", "--user", "a b"], "no white space"),
        (&["token", "create", "--user", ""], "1 to 255 characters"),
        (&["token", "create", "--user", "a\u{202e}b"], "no invisible ones"),
        (&["serve", "--listen", "127.0.0.1:99999"], "ports go up to 65535"),
        (&["backup", "-"], "a store cannot be read or written through a pipe"),
        (&["restore", "-"], "a store cannot be read or written through a pipe"),
        (&["serv"], "unrecognized subcommand 'serv'; tip: a similar subcommand exists: 'serve' (see --help)"),
        (&["copi"], "unrecognized subcommand 'copi'; tip: a similar subcommand exists: 'copy' (see --help)"),
        (
            &["token", "create", "--user", "a", "--expires", "soon"],
            "for example 500ms, 10s, 5m, 2h or 90d; or write never",
        ),
        (&["token", "create", "--user", "ada", "--expires", "0d"], "longer than zero"),
        (
            &["token", "create", "--user", "ada", "--scope", "plants:eat"],
            "the scopes are: plants:read plants:write plants:delete tokens:manage shares:manage",
        ),
        (&["token", "create", "--user", "ada", "--label", "two\nlines"], "a label has at most 100 characters"),
        (&["token", "create", "--user", "a", "--label", "a\u{202e}b"], r"'a\u202eb' for '--label <TEXT>': a label has"),
        (&["token", "revoke", "x"], "the id of a token is a number"),
        (&["nonsense"], "nonsense"),
    ];
    for (arguments, words) in wrong {
        let output = store.run(arguments);
        let reported = one_line(output.failure(2), words);
        assert!(reported.starts_with("error: ") && !reported.contains("secret"), "{reported}");
        assert_eq!(output.stdout_text(), "");
    }
    assert_eq!(store.tokens().len(), 1, "nothing was done");
});

sqlite_test!(failure_is_one_clear_line_and_exit_code_1, |Service { store, server }: &Service| {
    let taken = server.address().to_string();
    let server_url = format!("http://{taken}");
    let new = Store::new(Engine::Sqlite);
    std::fs::write(new.directory().join("text.db"), "this is a text file, and not a small one".repeat(100)).unwrap();
    std::fs::create_dir(new.directory().join("directory.db")).unwrap();
    let failures: &[(&[&str], &str)] = &[
        (&["serve", "--listen", &taken], "is in use: stop what listens there, or choose another address with --listen"),
        (&["serve", "--listen", "192.0.2.1:80"], "this machine has no address 192.0.2.1:80"),
        (&["serve", "--listen", "0", "--store", "sqlite:no/such/place/p.db"], "name a file in a directory that exists"),
        (&["serve", "--listen", "0", "--store", "sqlite:directory.db"], "cannot open sqlite:directory.db"),
        (&["serve", "--listen", "0", "--store", "sqlite:text.db"], "(it is not an SQLite database)"),
        (&["serve", "--listen", "0", "--store", "sqlite:/proc/plants.db"], "cannot open sqlite:/proc/plants.db"),
        (
            &["token", "list", "--store", "sqlite:missing.db"],
            "missing.db): name yours with --store; `plantstore serve` and `plantstore migrate` create a new one",
        ),
        (&["token", "revoke", "1", "--store", "sqlite:missing.db"], "there is no store at"),
        (&["user", "list", "--store", "sqlite:missing.db"], "there is no store at"),
        (&["import", "missing.ndjson"], "cannot read missing.ndjson: No such file or directory"),
        (&["export", "--store", &store.url(), "--output", "no/such/directory/x"], "cannot write no/such/directory/x"),
        (&["backup", "--store", &store.url(), "no/such/directory/x.db"], "cannot write no/such/directory/x.db"),
        (&["check", &server_url, "--token-file", "missing"], "cannot read the token from missing"),
        (&["man", "--output", "/dev/null/man"], "cannot write the manual into /dev/null/man"),
    ];
    for (arguments, words) in failures {
        one_line(new.run(arguments).failure(1), words);
    }
    assert!(!new.file().exists(), "a server that cannot start creates no store");
    let unknown = store.run(&["token", "revoke", "77"]).failure(1);
    assert_snapshot!(unknown, @"error: there is no token 77: `plantstore token list` shows those there are");
});

sqlite_test!(a_bad_value_of_a_variable_is_reported_by_its_name, |store: &Store| {
    let wrong: &[(&str, &str, &str)] = &[
        ("PLANTSTORE_LISTEN", "localhost", "error: invalid value 'localhost' for PLANTSTORE_LISTEN: write HOST:PORT"),
        ("PLANTSTORE_LISTEN", "", "PLANTSTORE_LISTEN"),
        ("PLANTSTORE_MAX_BODY_BYTES", "0", "for PLANTSTORE_MAX_BODY_BYTES: write a whole number from 1 to 16,777,216"),
        ("PLANTSTORE_HEADER_TIMEOUT", "10", "for PLANTSTORE_HEADER_TIMEOUT: write a whole number and a unit"),
        ("PLANTSTORE_LOG_LEVEL", "loud", "for PLANTSTORE_LOG_LEVEL"),
        ("PLANTSTORE_RATE_LIMIT", "x", "for PLANTSTORE_RATE_LIMIT"),
        ("PLANTSTORE_STORE", "mysql://u:secret@h/d", "error: PLANTSTORE_STORE: unknown store scheme `mysql`"),
        ("PLANTSTORE_CORS_ORIGIN", "nonsense", "error: PLANTSTORE_CORS_ORIGIN: "),
        ("PLANTSTORE_RATE_BURST", "5", "error: PLANTSTORE_RATE_BURST needs a --rate-limit"),
    ];
    for (variable, value, words) in wrong {
        let output = store.command_through(&["timeout", "60"], &["serve"]).env(variable, value).output().unwrap();
        let reported = output.failure(2);
        assert_contains(&reported, words);
        assert!(!reported.contains("--store") && !reported.contains("--listen"), "{reported}");
    }
    // The option overrides the variable.
    let typed = store.command(&["serve", "--listen", "x"]).env("PLANTSTORE_LISTEN", "8080").output().unwrap();
    assert_contains(typed.stderr_text(), "'--listen <[HOST:]PORT>'");
});

sqlite_test!(an_unknown_variable_is_warned_of_and_the_nearest_known_one_is_named, |store: &Store| {
    store.token("ada", &[]);
    let output = store
        .command(&["user", "list"])
        .env("PLANTSTORE_LISTN", "127.0.0.1:8081")
        .env("PLANTSTORE_COLOUR_OF_THE_SHED", "red")
        .env("PLANTSTORE_TOKEN", "known to check")
        // Kubernetes sets these variables for a service with the name `plantstore`.
        .env("PLANTSTORE_PORT", "tcp://10.0.0.1:8080")
        .env("PLANTSTORE_SERVICE_HOST", "10.0.0.1")
        .env("PLANTSTORE_PORT_8080_TCP_ADDR", "10.0.0.1")
        .output()
        .unwrap();
    assert!(output.status.success());
    let mut warnings: Vec<String> = output.stderr_text().lines().map(str::to_owned).collect();
    warnings.sort();
    assert_eq!(
        warnings,
        [
            "warning: the variable PLANTSTORE_COLOUR_OF_THE_SHED is ignored: there is no such option (see plantstore serve --help)",
            "warning: the variable PLANTSTORE_LISTN is ignored: there is no such option; did you mean PLANTSTORE_LISTEN?",
        ]
    );
    let mut command = store.command(&["serve", "--listen", "0"]);
    command.env("PLANTSTORE_SOTRE_TIMEOUT", "1s");
    let server = Server::start(command);
    server.wait_for_log("did you mean PLANTSTORE_STORE_TIMEOUT?");
});

sqlite_test!(restore_names_its_argument, |store: &Store| {
    std::fs::write(store.directory().join("text.db"), "this is a text file, and not a small one".repeat(100)).unwrap();
    for (file, words) in [
        ("missing.db", "there is no store at sqlite:missing.db: name one that exists as FILE"),
        ("text.db", "sqlite:text.db is not a plantstore file (it is not an SQLite database): name another as FILE"),
    ] {
        let reported = store.run(&["restore", file, "--store", "sqlite:new.db"]).failure(1);
        assert!(reported.contains(words) && !reported.contains("--store"), "{reported}");
    }
});

sqlite_test!(a_line_that_is_not_json_is_described_without_terms_of_the_parser, |store: &Store| {
    for (line, words) in [
        ("nope\n", "line 1: it is not JSON: a word other than true, false and null at column 2\n"),
        ("{\n", "line 1: it is not JSON: it ends in the middle of an object at column 1\n"),
    ] {
        std::fs::write(store.directory().join("plants.ndjson"), line).unwrap();
        let reported = store.run(&["import", "--check", "plants.ndjson"]).failure(1);
        assert!(reported.starts_with(words), "{reported}");
        assert_no_internals(&reported);
    }
});
