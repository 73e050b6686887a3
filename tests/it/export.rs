//! `plantstore export`: writes plants as JSON lines, from one snapshot.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::json;

use crate::support::tools::assert_declared;
use crate::support::transfer::{export, import, lines, stderr};
use crate::support::{Engine, Service, Store, engine_test, engine_tool_test, sqlite_test, wait_until};

// Owners in the order of their bytes, independent of the locale of the database; then ids, as numbers.
engine_test!(every_plant_is_exported_as_a_line_unchanged, |Service { store, server }: &Service| {
    let [ada, zoe, eva] = ["ada", "Zoe", "Éva"].map(|user| server.client(&store.token(user, &[])));
    store.token("carl", &[]);
    if matches!(store.engine, Engine::Postgres) {
        store.execute(r#"ALTER TABLE users ALTER COLUMN name TYPE text COLLATE "en-x-icu""#);
    }
    for (id, name, tag) in
        [(10, "Rose \"red\" \\", None), (9, "naïve 🌵", Some("")), (i64::MIN, " a ", Some("ü")), (i64::MAX, "z", None)]
    {
        let body = json!({ "id": id, "name": name, "tag": tag });
        assert_eq!(ada.post(body.to_string()).status, 200);
    }
    zoe.plant(1, "Zoe's");
    eva.plant(1, "Éva's");
    assert_eq!(
        export(store),
        [
            r#"{"owner":"Zoe","id":1,"name":"Zoe's"}"#,
            r#"{"owner":"ada","id":-9223372036854775808,"name":" a ","tag":"ü"}"#,
            r#"{"owner":"ada","id":9,"name":"naïve 🌵","tag":""}"#,
            r#"{"owner":"ada","id":10,"name":"Rose \"red\" \\"}"#,
            r#"{"owner":"ada","id":9223372036854775807,"name":"z"}"#,
            r#"{"owner":"Éva","id":1,"name":"Éva's"}"#,
            "",
        ]
        .join("\n")
    );
    let one = store.run(&["export", "--user", "Zoe"]);
    assert_eq!(String::from_utf8_lossy(&one.stdout), "{\"owner\":\"Zoe\",\"id\":1,\"name\":\"Zoe's\"}\n");
    assert!(stderr(&one).starts_with("exported 1 plant of 1 user, sha256 "), "{}", stderr(&one));
    let none = store.run(&["export", "--user", "carl"]);
    assert_eq!((none.status.code(), none.stdout.len()), (Some(0), 0), "the export of a user without plants is empty");
    let unknown = store.run(&["export", "--user", "eve", "--output", "eve.ndjson"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("there is no user eve: `plantstore user list` shows"), "{}", stderr(&unknown));
    assert_eq!(
        std::fs::read_dir(store.directory())
            .unwrap()
            .filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().contains("eve"))
            .count(),
        0
    );
});

engine_test!(export_file_appears_when_it_is_complete, |store: &Store| {
    import(store, &[], &lines(&["ada"], 10));
    let file = store.directory().join("plants.ndjson");
    let output = store.run(&["export", "--output", "plants.ndjson"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), export(store));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "plants are private");
    import(store, &[], &lines(&["bob"], 10));
    let rejected = store.run(&["export", "--output", "plants.ndjson"]);
    assert_eq!(rejected.status.code(), Some(1));
    assert!(
        stderr(&rejected).contains("there is a file plants.ndjson already: name another, or use --force"),
        "{}",
        stderr(&rejected)
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), lines(&["ada"], 10), "the file is unchanged");
    assert!(store.run(&["export", "--output", "plants.ndjson", "--force"]).status.success());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), export(store));
    let nowhere = store.run(&["export", "--output", "no/such/place"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(stderr(&nowhere).contains("cannot write no/such/place"), "{}", stderr(&nowhere));
});

// For example, `plantstore export | head`.
engine_test!(closed_pipe_is_no_failure, |store: &Store| {
    import(store, &[], &lines(&["ada"], 20_000));
    let mut child = store.command(&["export"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 40];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert!(first.starts_with(br#"{"owner":"ada","id":0,"name":"plant 0""#));
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = store.command(&["export"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "a write error is a failure");
    assert_eq!(stderr(&output), "error: cannot write: No space left on device\n");
});

// A snapshot of a file keeps the write-ahead log from being reset, so it has a time limit.
sqlite_test!(export_that_is_not_read_gives_up_its_snapshot, |store: &Store| {
    import(store, &[], &lines(&["ada"], 40_000));
    let mut child = store.command(&["export"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    store.execute("UPDATE users SET version = version + 1");
    let log_is_reset = || store.rows("PRAGMA wal_checkpoint(TRUNCATE)") == [0];
    wait_until("the snapshot to be given up", log_is_reset);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("its reader received nothing for a minute"), "{}", stderr(&output));
});

engine_tool_test!(progress_is_shown_on_a_terminal, requires_script, |store: &Store| {
    import(store, &[], &lines(&["ada"], 10_000));
    assert_declared("script");
    let script = r#"script --quiet --return --command "$1 export > /dev/null" /dev/null"#;
    let output = store.command_through(&["sh", "-c", script, "sh"], &[]).stdin(Stdio::null()).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}");
    assert!(shown.contains("\r\x1b[K[########............]  40% 4,096 plants, "), "{shown:?}");
    assert!(
        shown.contains("\r\x1b[Kexported 10,000 plants of 1 user"),
        "the summary replaces the progress bar: {shown:?}"
    );
});

sqlite_test!(file_that_is_no_store_is_rejected, |store: &Store| {
    let missing = store.run(&["export"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("there is no store at sqlite:"), "{}", stderr(&missing));
    assert!(!store.file().exists(), "no store is created");
    std::fs::write(store.file(), "not a database, but long enough to be looked at as if it were one").unwrap();
    let foreign = store.run(&["export"]);
    assert_eq!(foreign.status.code(), Some(1));
    assert!(
        stderr(&foreign).contains("is not a plantstore file (it is not an SQLite database)"),
        "{}",
        stderr(&foreign)
    );
});
