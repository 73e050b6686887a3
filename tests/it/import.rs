//! `plantstore import`: imports JSON lines by the rules of `POST`, also beside a running server and after a kill.

use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::transfer::{export, feed, import, lines, stderr};
use crate::support::{
    Cluster, Engine, StopOnDrop, Store, TcpProxy, assert_snapshot, engine_test, engine_tool_test, postgres_test,
    signal, sqlite_test, wait_for, wait_until,
};

/// Returns the error of an import of these bytes, which must fail.
#[track_caller]
fn error_of(store: &Store, arguments: &[&str], input: &[u8]) -> String {
    let output = feed(store.command(&[&["import", "--create"], arguments].concat()), input);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    stderr(&output)
}

/// Returns the number of plants; 0 if there is no store.
fn stored_if_any(store: &Store) -> usize {
    let output = store.run(&["export"]);
    String::from_utf8_lossy(&output.stdout).lines().count()
}

fn has_thread(process: u32, name: &str) -> bool {
    let Ok(mut threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return false };
    let comm = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
    threads.any(|thread| thread.is_ok_and(|thread| comm(thread).trim_end() == name))
}

fn stored(store: &Store) -> i64 {
    store.rows("SELECT count(*) FROM plants")[0]
}

engine_test!(dash_means_standard_input_and_output, |store: &Store| {
    let text = lines(&["ada"], 3);
    assert!(import(store, &["-"], &text).ends_with("stored 3 plants, created 1 user\n"));
    let exported = store.run(&["export", "--output", "-"]);
    assert_eq!(String::from_utf8(exported.stdout).unwrap(), text);
});

engine_test!(empty_input_stores_nothing, |store: &Store| {
    assert!(import(store, &[], "").ends_with("stored 0 plants\n"));
    assert_eq!(import(store, &["--check"], ""), "0 plants, no invalid lines; nothing was stored\n");
    assert_eq!(import(store, &[], "\n \n"), "stored 0 plants\n", "blank lines are ignored");
    assert_eq!(stored(store), 0);
});

engine_test!(from_line_after_the_end_and_a_directory_are_errors, |store: &Store| {
    let text = lines(&["ada"], 3);
    let reported = error_of(store, &["--from-line", "5"], text.as_bytes());
    assert!(reported.contains("the input ends after 3 lines, before the one that --from-line names"), "{reported}");
    assert!(error_of(store, &["--check", "--from-line", "5"], text.as_bytes()).contains("ends after 3 lines"));
    assert!(
        import(store, &["--from-line", "4"], &text).ends_with("stored 0 plants\n"),
        "the line after the last is a valid start"
    );
    assert!(error_of(store, &["."], b"").contains("cannot read .: it is a directory"));
});

engine_tool_test!(an_export_can_be_imported_elsewhere, requires_postgres, |store: &Store| {
    let text = lines(&["Zoe", "ada", "Éva"], 3_000).replace("plant 7\"", "Rose \\\"🌵\\\" \\\\\"");
    let reported = import(store, &[], &text);
    assert!(reported.ends_with("stored 9,000 plants, created 3 users\n"), "{reported}");
    assert_eq!(export(store), text);
    let file = store.directory().join("plants.ndjson");
    std::fs::write(&file, export(store)).unwrap();
    for engine in [Engine::Sqlite, Engine::Postgres] {
        let other = Store::new(engine);
        let output = other.run(&["import", "--create", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(export(&other), text);
        let server = other.serve(&[]);
        let ada = server.client(&other.token("ada", &[]));
        assert_eq!(
            ada.get("/plants").json().as_array().map(Vec::len),
            Some(3_000),
            "an export has no tokens, so the user gets a new one"
        );
        assert_eq!(ada.get("/plants?limit=8").json()[7]["name"], r#"Rose "🌵" \"#);
    }
});

// Fields in any order, with white space, escapes and unknown fields; lines end with CRLF, LF or the end of the input.
engine_test!(lines_follow_the_rules_of_bodies, |store: &Store| {
    import(
        store,
        &[],
        "\n{\"tag\":null,\"name\":\"R\\u00f6se\",\"color\":[1],\"id\":1,\"owner\":\"a\\u0064a\"}\r\n \t\r\n\n{ \"owner\" : \"ada\", \"id\" : -2, \"name\" : \"b\" }",
    );
    assert_eq!(
        export(store),
        "{\"owner\":\"ada\",\"id\":-2,\"name\":\"b\"}\n{\"owner\":\"ada\",\"id\":1,\"name\":\"Röse\"}\n"
    );
});

// The last batch is not full and waits for more lines, so it is not stored.
engine_test!(interrupted_import_reports_its_progress_and_how_to_resume, |store: &Store| {
    let text = lines(&["ada"], 10_000);
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let before = stored_if_any(store);
        let mut child = store
            .command(&["import", "--create", "--from-line", &(before + 1).to_string()])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let part: String = text.split_inclusive('\n').take(before + 4_500).collect();
        stdin.write_all(part.as_bytes()).unwrap();
        let through = before + 4_096;
        wait_until("the first commit", || stored_if_any(store) == through);
        signal(child.id(), name);
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        let range = if before == 0 { "up to 4096".to_owned() } else { format!("from {} to {through}", before + 1) };
        let (next, stderr) = (through + 1, stderr(&output));
        let expected = format!(
            "error: interrupted by SIG{name}: all lines {range} are stored, and none after; go on with --from-line {next}\n"
        );
        assert!(stderr.contains("stored 4,096 plants"), "{stderr}");
        assert!(stderr.ends_with(&expected), "{stderr}");
    }
    import(store, &["--from-line", "8193"], &text);
    assert_eq!(export(store), text);
});

engine_test!(summary_after_skipped_lines_is_correct, |store: &Store| {
    import(store, &[], &lines(&["ada"], 3));
    let text = lines(&["ada"], 5).replace("plant 2", "another") + "{}\n";
    let skip = ["--from-line", "2", "--on-conflict", "skip"];
    let reported = error_of(store, &skip, text.as_bytes());
    assert!(
        reported.ends_with(
            "stored 2 plants, skipped 1 that exist already, skipped 1 that exist with another name or tag\n\
         error: 1 invalid line: all lines from 2 to 5 are stored or skipped, and this run stored none after; \
         correct the input and go on with --from-line 6 --on-conflict skip\n"
        ),
        "{reported}"
    );
    let reported = error_of(store, &["--from-line", "4"], text.as_bytes());
    assert!(
        reported.contains("line 4: ada has a plant 3 already: nothing was stored; go on with --from-line 4"),
        "{reported}"
    );
    let more = lines(&["ada"], 8).split_inclusive('\n').skip(5).collect::<String>() + "{}\n";
    let reported = error_of(store, &["--from-line", "2"], more.as_bytes());
    assert!(
        reported.contains(
            "all lines from 2 to 3 are stored, and none after; correct the input and go on with --from-line 4\n"
        ),
        "{reported}"
    );
});

engine_test!(a_byte_order_mark_at_the_start_is_accepted, |store: &Store| {
    let text = lines(&["ada"], 2);
    import(store, &[], &format!("\u{feff}{text}"));
    assert_eq!(export(store), text);
    let reported = error_of(store, &[], format!("\n\u{feff}{text}").as_bytes());
    assert!(reported.contains("line 2: it is not JSON"), "a byte order mark is accepted only at the start: {reported}");
});

engine_test!(errors_name_their_line_and_nothing_after_the_first_is_stored, |store: &Store| {
    let long = format!(r#"{{"owner":"ada","id":10,"name":"{}"}}"#, "x".repeat(1_001));
    let huge = "x".repeat(40_000);
    let input: Vec<&[u8]> = vec![
        br#"{"owner":"ada","id":1,"name":"a"}"#,
        b"",
        br#"{"owner":"ada","id":2,"name":"b"}"#,
        br#"{"owner":"ada","id":3}"#,
        br#"{"owner":"ada","id":4,"name":"fine"}"#,
        br#"{"id":"x","name":"","tag":5}"#,
        br#"{"owner":"a b","id":6,"name":"c"}"#,
        br#"{"owner":5,"id":6,"name":"c"}"#,
        br#"{"owner":"ada","owner":"bob","id":6,"name":"c"}"#,
        br#"{"owner":"ada","id":6,"id":7,"name":"c"}"#,
        br#"{"owner":"ada","id":6,"name":"\u0007"}"#,
        b"{\"owner\":\"ada\",\"id\":6,\"name\":\"\xff\"}",
        br#"{"owner":"ada","id":6,"name":"c"} {}"#,
        br#"["ada",6,"c"]"#,
        long.as_bytes(),
        huge.as_bytes(),
        br#"{"owner":"ada","id":9223372036854775808,"name":"c"}"#,
        br#"{"owner":"ada","id":6,"name":"cut of"#,
    ];
    let input = input.join(&b'\n');
    let reported = error_of(store, &[], &input);
    let reported =
        reported.lines().filter(|line| !line.starts_with("created a new store")).collect::<Vec<_>>().join("\n");
    assert_snapshot!(reported, @r#"
    line 4: `name` is required
    line 6: `owner` is required; `id` must be an integer such as 42 or -7, without leading zeros, fraction or exponent; `name` must have 1 to 1000 characters, has 0; `tag` must be a string
    line 7: `owner`: a user name holds no white space, no control characters and no invisible ones
    line 8: `owner` must be a string
    line 9: `owner` is given more than once
    line 10: `id` is given more than once
    line 11: `name` must not hold control characters (found U+0007)
    line 12: it is not JSON: it is not UTF-8 text
    line 13: it is not JSON: trailing characters at column 35
    line 14: it must be a JSON object with `owner`, `id` and `name`
    line 15: `name` must have 1 to 1000 characters, has 1001
    line 16: it is longer than 32768 bytes
    line 17: `id` must lie between -9223372036854775808 and 9223372036854775807
    line 18: it is not JSON: it ends in the middle of a string at column 36
    stored 2 plants, created 1 user
    error: 14 invalid lines: all lines up to 3 are stored, and none after; correct the input and go on with --from-line 4
    "#);
    assert_eq!(
        export(store),
        "{\"owner\":\"ada\",\"id\":1,\"name\":\"a\"}\n{\"owner\":\"ada\",\"id\":2,\"name\":\"b\"}\n"
    );
    let few = error_of(store, &["--max-faults", "2", "--on-conflict", "skip"], &input);
    assert_eq!(few.lines().filter(|line| line.starts_with("line ")).count(), 2, "{few}");
    let first = error_of(store, &["--from-line", "4"], &input);
    assert!(
        first.contains("14 invalid lines: nothing was stored; correct the input and go on with --from-line 4"),
        "{first}"
    );
    let corrected = String::from_utf8_lossy(&input)
        .lines()
        .take(5)
        .collect::<Vec<_>>()
        .join("\n")
        .replace(r#""id":3"#, r#""id":3,"name":"c""#);
    let reported = import(store, &["--from-line", "4"], &corrected);
    assert_eq!(reported, "stored 2 plants\n");
    assert_eq!(stored(store), 4);
});

engine_test!(existing_plants_end_an_import_or_are_skipped, |store: &Store| {
    import(store, &[], &lines(&["ada"], 5_000));
    let more = lines(&["ada"], 10_000);
    // The existing plants are in the middle of a batch with new ones.
    let turned = more.lines().rev().collect::<Vec<_>>().join("\n");
    let reported = error_of(store, &[], turned.as_bytes());
    assert_eq!(
        reported,
        "stored 5,000 plants\nerror: line 5001: ada has a plant 4999 already: all lines up to 5000 are stored, and none after; go on with --from-line 5001 --on-conflict skip to skip such lines\n"
    );
    assert_eq!(export(store), more);
    let reported = import(store, &["--on-conflict", "skip"], &more);
    assert_eq!(reported, "stored 0 plants, skipped 10,000 that exist already\n");
    // Another name, another tag, no tag, and a new plant, which is then repeated and changed.
    let changed = r#"{"owner":"ada","id":1,"name":"other","tag":"of ada"}
{"owner":"ada","id":2,"name":"plant 2","tag":"other"}
{"owner":"ada","id":3,"name":"plant 3"}
{"owner":"ada","id":10000,"name":"new"}
{"owner":"ada","id":10000,"name":"new"}
{"owner":"ada","id":10000,"name":"newer"}
"#;
    let reported = import(store, &["--on-conflict", "skip"], changed);
    assert_eq!(
        reported,
        "line 1: skipped: ada has a plant 1 with another name or tag
line 2: skipped: ada has a plant 2 with another name or tag
line 3: skipped: ada has a plant 3 with another name or tag
line 6: skipped: ada has a plant 10000 with another name or tag
stored 1 plant, skipped 1 that exist already, skipped 4 that exist with another name or tag\n"
    );
    assert_eq!(export(store), more + "{\"owner\":\"ada\",\"id\":10000,\"name\":\"new\"}\n");
    let twice = "{\"owner\":\"bob\",\"id\":1,\"name\":\"a\"}\n".repeat(2);
    let reported = error_of(store, &[], twice.as_bytes());
    assert!(reported.contains("line 2: bob has a plant 1 already: all lines up to 1 are stored"), "{reported}");
});

// Lines after the first conflict are in the same batch, and some of them belong to a new user.
engine_test!(nothing_after_a_conflict_is_stored, |store: &Store| {
    let text = lines(&["ada", "bob"], 2_000);
    let all: Vec<&str> = text.split_inclusive('\n').collect();
    import(store, &[], all[1_234]);
    let reported = error_of(store, &[], text.as_bytes());
    assert!(
        reported.contains("line 1235: ada has a plant 1234 already: all lines up to 1234 are stored, and none after"),
        "{reported}"
    );
    assert_eq!(export(store), all[..=1_234].concat());
    assert_eq!(store.texts("SELECT name FROM users"), ["ada"]);
});

engine_test!(a_check_stores_nothing, |engine: &Engine| {
    let store = &Store::empty(*engine);
    let output = feed(store.command(&["import", "--check"]), lines(&["ada"], 5_000).as_bytes());
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(0), "5,000 plants, no invalid lines; nothing was stored\n")
    );
    let reported = error_of(store, &["--check"], (lines(&["ada"], 10) + "{}\n" + &lines(&["bob"], 10)).as_bytes());
    assert_eq!(
        reported,
        "line 11: `owner` is required; `id` is required; `name` is required\nerror: 1 invalid line; nothing was stored\n"
    );
    let users = store.run(&["user", "list"]);
    assert!(stderr(&users).contains("there is no store"), "no store is created: {}", stderr(&users));
});

// Committed batches stay. The next run imports the rest and skips what is stored.
engine_test!(killed_imports_are_completed_by_another, |store: &Store| {
    let text = lines(&["ada", "bob", "cyd"], 10_000);
    store.token("ada", &[]);
    let mut before = 0;
    for kill in 1..=3 {
        let mut child = store
            .command(&["import", "--on-conflict", "skip"])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The command gets only a part of the input, so it has not ended when it is killed.
        let part = text.len() * kill / 4;
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| stdin.write_all(&text.as_bytes()[..part]));
            before = wait_for("another commit", || Some(stored(store)).filter(|stored| *stored > before));
            child.kill().unwrap();
            // The pipe may break while it is written to.
            let _ = writing.join().unwrap();
        });
        assert!(!child.wait().unwrap().success());
    }
    let left = stored(store);
    assert!((before..30_000).contains(&left), "{left} of 30000");
    let reported = import(store, &["--on-conflict", "skip"], &text);
    assert!(reported.replace(',', "").contains(&format!("skipped {left} that exist already")), "{reported}");
    assert_eq!(export(store), text);
});

// Clients continue to write through the server, and its cached lists are updated.
engine_test!(server_keeps_serving_during_an_import, |store: &Store| {
    let server = store.serve(&["--log-level", "warn"]);
    let [ada, bob] = ["ada", "bob"].map(|user| server.client(&store.token(user, &[])));
    ada.plant(-1, "first");
    let before = ada.get("/plants?include=id");
    assert_eq!(ada.get("/plants?include=id").body, before.body);
    let stop = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let writer = scope.spawn(|| {
            let mut connection = bob.connect();
            let mut id = 0;
            while !stop.load(Ordering::Relaxed) {
                let body = format!(r#"{{"id":{id},"name":"of the server"}}"#);
                connection.send(bob.bytes(
                    "POST",
                    "/plants",
                    &[("Content-Type", "application/json")],
                    Some(body.as_bytes()),
                ));
                let response = connection.read_response(false);
                assert_eq!(response.status, 200, "{}", response.text());
                id += 1;
            }
            id
        });
        import(store, &[], &lines(&["ada"], 30_000));
        let after = ada.get("/plants?include=id");
        assert_eq!(after.ids(), (-1..30_000).collect::<Vec<_>>(), "the list after the import is complete");
        assert_ne!(after.header("etag"), before.header("etag"));
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(written > 0);
    assert_eq!(bob.ids(), (0..written).collect::<Vec<_>>());
    // PostgreSQL may end a session that a busy machine has stopped for seconds.
    let log = server.log();
    assert!(log.lines().all(|line| line.contains("database connection lost")), "{log}");
});

// After a conflict, a second transaction stores the lines before it. If another client creates one of their plants
// meanwhile, that is a conflict, too, and no line after it is stored.
postgres_test!(nothing_after_a_concurrent_conflict_is_stored, |store: &Store| {
    let text = lines(&["ada"], 10);
    let all: Vec<&str> = text.split_inclusive('\n').collect();
    import(store, &[], all[7]);
    let proxy = TcpProxy::start(Cluster::shared().address());
    proxy.freeze_at(b"ROLLBACK");
    proxy.freeze_at(b"BEGIN ISOLATION LEVEL READ COMMITTED");
    let slow = store.through(&proxy);
    std::thread::scope(|scope| {
        let importing = scope.spawn(|| error_of(&slow, &[], text.as_bytes()));
        wait_for("the first attempt to end", || proxy.is_frozen().then(|| proxy.heal()));
        wait_until("the second attempt to begin", || proxy.is_frozen());
        import(store, &[], all[3]);
        proxy.heal();
        let reported = importing.join().unwrap();
        assert!(
            reported.contains("line 4: ada has a plant 3 already: all lines up to 3 are stored, and none after"),
            "{reported}"
        );
    });
    assert_eq!(export(store), [&all[..=3], &all[7..8]].concat().concat());
});

// The memory for a line is bounded by the largest valid line.
sqlite_test!(endless_line_is_rejected_in_bounded_memory, |store: &Store| {
    let script = "ulimit -v 400000; head -c 600000000 /dev/zero | tr '\\0' x | \"$@\" import --check";
    let output = store.command_through(&["sh", "-c", script, "sh"], &[]).output().unwrap();
    assert_eq!(stderr(&output), "line 1: it is longer than 32768 bytes\nerror: 1 invalid line; nothing was stored\n");
});

// After an import without a server, SQLite leaves no WAL files.
sqlite_test!(an_import_leaves_one_file, |store: &Store| {
    import(store, &[], &lines(&["ada"], 20_000));
    let files: Vec<_> = std::fs::read_dir(store.directory()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["plants.db"]);
});

// Another process holds the write lock, so that the commit waits after the first signal.
sqlite_test!(a_second_signal_ends_an_import_during_its_commit, |store: &Store| {
    import(store, &[], &lines(&["ada"], 3));
    let held = store.hold_writes();
    // If the first signal arrives before the commit, it ends the import; then the test tries again.
    let stderr = wait_for("an import that waits for its commit", || {
        let mut child = store.command(&["import"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines(&["bob"], 3).as_bytes()).unwrap();
        wait_until("the thread that waits for signals", || has_thread(child.id(), "signals"));
        wait_for("the import to end", || {
            signal(child.id(), "INT");
            child.try_wait().unwrap()
        });
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        Some(stderr(&output)).filter(|stderr| stderr.contains("a second time"))
    });
    drop(held);
    assert_eq!(
        stderr,
        "error: interrupted by SIGINT a second time: the last lines may be stored; run it again with --on-conflict skip\n"
    );
});
