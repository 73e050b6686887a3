//! Validation in `restore`, `copy` and `backup`: the first invalid row is an error that names it.

use std::process::Output;
use std::sync::OnceLock;

use crate::support::{CommandOutput, Engine, Store, assert_contains, engine_test};

/// Characters that control a terminal or change the direction of text.
const HOSTILE: [char; 4] = ['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}'];

/// Returns a valid file with a row in every table.
fn valid_file() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(make_valid_file)
}

fn make_valid_file() -> Vec<u8> {
    let store = Store::new(Engine::Sqlite);
    let ada = store.token("ada", &["--label", "balcony"]);
    store.token("bob", &[]);
    store.share("ada", "bob", "reader");
    let server = store.serve(&[]);
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", "key")];
    let created = server.client(&ada).call("POST", "/plants", &headers, Some(br#"{"id":7,"name":"Rose","tag":"red"}"#));
    assert_eq!(created.status, 200);
    assert_eq!(server.stop().code(), Some(0));
    std::fs::read(store.file()).unwrap()
}

/// Creates a store from the valid file and changes it with these statements.
fn changed_file(statements: &str) -> Store<'static> {
    let store = Store::new(Engine::Sqlite);
    std::fs::write(store.file(), valid_file()).unwrap();
    let file = store.open_file();
    file.pragma_update(None, "foreign_keys", false).unwrap();
    file.pragma_update(None, "ignore_check_constraints", true).unwrap();
    file.execute_batch(statements).unwrap();
    store
}

/// Restores the file into the target, which stays empty, and returns the error.
#[track_caller]
fn error_of(file: &Store, target: &Store) -> String {
    let output = target.run(&["restore", file.file().to_str().unwrap()]);
    assert_rejected(&output, target);
    output.stderr_text()
}

#[track_caller]
fn assert_rejected(output: &Output, target: &Store) {
    let reported = output.failure(1);
    assert_eq!(reported.lines().filter(|line| !line.contains("the password in")).count(), 1, "{reported}");
    match target.engine {
        Engine::Sqlite => {
            let left: Vec<_> =
                std::fs::read_dir(target.directory()).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(left.is_empty(), "{left:?}");
        }
        Engine::Postgres => {
            let schema = "SELECT count(*) FROM pg_tables WHERE schemaname = 'plantstore' AND tablename = 'users'";
            assert!(target.rows(schema) == [0] || target.rows("SELECT count(*) FROM users") == [0]);
        }
    }
}

engine_test!(rows_that_break_a_rule_are_not_restored, |store: &Store| {
    let long = "replace(hex(zeroblob(600)), '0', 'x')";
    let cases = [
        ("UPDATE users SET name = 'a' || char(10) || 'b' WHERE user_id = 1", "table users, user_id 1: a user name"),
        ("UPDATE users SET name = '' WHERE user_id = 2", "table users, user_id 2: a user name"),
        ("UPDATE users SET user_id = -5 WHERE user_id = 2", "table users, user_id -5: "),
        (
            "UPDATE users SET user_id = 9223372036854775807 WHERE user_id = 2",
            "table users, user_id 9223372036854775807: ",
        ),
        ("UPDATE users SET version = -1 WHERE user_id = 2", "table users, user_id 2: "),
        ("UPDATE users SET created_at = 900000000000000000 WHERE user_id = 2", "table users, user_id 2: "),
        ("UPDATE tokens SET label = char(27) WHERE token_id = 1", "table tokens, token_id 1: a label"),
        ("UPDATE tokens SET scopes = 'plants:read plants:eat' WHERE token_id = 2", "table tokens, token_id 2: "),
        ("UPDATE tokens SET expires_at = -900000000000000000 WHERE token_id = 2", "table tokens, token_id 2: "),
        ("UPDATE tokens SET hash = x'00' WHERE token_id = 2", "table tokens, token_id 2: "),
        ("UPDATE tokens SET user_id = 99 WHERE token_id = 2", "table tokens, token_id 2: "),
        ("UPDATE shares_by_name SET role = 'owner'", "table shares_by_name, grantee_name bob, owner_id 1: "),
        (
            "UPDATE shares_by_name SET role = char(27, 155, 8238)",
            r"table shares_by_name, grantee_name bob, owner_id 1: `role` is `\u001b\u009b\u202e`, which",
        ),
        (
            "UPDATE shares_by_name SET grantee_name = 'a' || char(27, 7, 155, 8238)",
            r"table shares_by_name, grantee_name a\u001b\u0007\u009b\u202e, owner_id 1: a user name",
        ),
        ("UPDATE shares_by_name SET owner_id = 99", "table shares_by_name, grantee_name bob, owner_id 99: "),
        ("UPDATE shares_by_name SET owner_id = 2", "table shares_by_name, grantee_name bob, owner_id 2: "),
        ("UPDATE shares_by_name SET grantee_id = 99", "table shares_by_name, grantee_name bob, owner_id 1: "),
        ("UPDATE shares_by_name SET declined_at = 1", "table shares_by_name, grantee_name bob, owner_id 1: "),
        ("UPDATE idempotency_keys SET fingerprint = x'00'", "table idempotency_keys, user_id 1, key "),
        ("UPDATE idempotency_keys SET outcome = 7", "table idempotency_keys, user_id 1, key "),
        ("UPDATE idempotency_keys SET outcome = 40400, message = char(0)", "table idempotency_keys, user_id 1, key "),
        (
            "UPDATE plants SET name = char(7)",
            "table plants, user_id 1, plant_id 7: `name` must not hold control characters",
        ),
        ("UPDATE plants SET name = ''", "table plants, user_id 1, plant_id 7: `name` must have 1 to 1000 characters"),
        (
            &format!("UPDATE plants SET tag = {long}"),
            "table plants, user_id 1, plant_id 7: `tag` must have 0 to 200 characters",
        ),
        ("UPDATE plants SET name = CAST(x'ff' AS TEXT)", "table plants, user_id 1, plant_id 7: "),
        ("UPDATE users SET name = CAST(x'ff' AS TEXT) WHERE user_id = 2", "table users, user_id 2: "),
        ("UPDATE plants SET version = -1", "table plants, user_id 1, plant_id 7: "),
        (
            "UPDATE sqlite_sequence SET seq = 9223372036854775807 WHERE name = 'users'",
            "table users, last assigned id 9223372036854775807: ",
        ),
    ];
    for (statements, expected) in cases {
        let reported = error_of(&changed_file(statements), store);
        assert!(reported.contains(expected), "{statements}: {reported}");
        assert!(!reported.contains(HOSTILE), "{reported:?}");
    }
    let sound = changed_file("");
    store.run(&["restore", sound.file().to_str().unwrap()]).success();
});

engine_test!(file_whose_schema_no_release_wrote_is_not_restored, |store: &Store| {
    let endless = "
        ALTER TABLE plants RENAME TO others;
        CREATE VIEW plants AS WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n FROM numbers)
        SELECT 1 AS user_id, n AS plant_id, 'x' AS name, NULL AS tag, 1 AS version FROM numbers";
    let loose = "
        DROP TABLE shares_by_name; CREATE TABLE shares_by_name (grantee_name, owner_id, role, created_at)";
    let cases = [
        ("PRAGMA user_version = 0", "user_version is 0"),
        ("PRAGMA user_version = -1", "user_version is -1"),
        ("PRAGMA user_version = 1", "user_version is 1, which does not fit the table `idempotency_keys`"),
        ("PRAGMA user_version = 1000", "was written by a newer plantstore"),
        ("CREATE VIEW overview AS SELECT name FROM plants", "it has the view `overview`"),
        ("CREATE TRIGGER moved AFTER INSERT ON plants BEGIN SELECT 1; END", "it has the trigger `moved`"),
        ("DROP TABLE shares_by_name", "the table `shares_by_name` is missing"),
        ("CREATE TABLE shares (id INTEGER) STRICT", "user_version is 4, which does not fit the table `shares`"),
        (loose, "`shares_by_name` is not a table that plantstore created"),
        (endless, "`plants` is not a table that plantstore created"),
    ];
    for (statements, expected) in cases {
        let reported = error_of(&changed_file(statements), store);
        assert!(reported.contains(expected), "{statements}: {reported}");
    }
});

engine_test!(row_that_breaks_a_rule_is_neither_copied_nor_backed_up, |store: &Store| {
    store.token("ada", &[]);
    store.execute("UPDATE users SET name = 'a\nb'");
    let target = Store::new(Engine::Sqlite);
    for output in [
        target.run(&["copy", "--from", &store.url(), "--to", "sqlite:new.db"]),
        target.run(&["backup", "new.db", "--store", &store.url()]),
    ] {
        assert_rejected(&output, &target);
        assert_contains(output.stderr_text(), "table users, user_id 1: ");
    }
});

engine_test!(lists_show_a_row_that_breaks_a_rule, |store: &Store| {
    for user in ["ada", "bob", "cyd"] {
        store.token(user, &[]);
    }
    store.share("bob", "cyd", "reader");
    store.execute("UPDATE users SET name = 'b\nob' WHERE name = 'bob'");
    store.execute("UPDATE tokens SET label = 'red \u{1b}[31m' WHERE token_id = 3");
    for command in ["user", "token", "share"] {
        let output = store.run(&[command, "list"]);
        let table = output.stdout_text();
        assert!(output.status.success(), "{command}: {}", output.stderr_text());
        // A cell that is too wide is wrapped.
        assert!(table.contains("b\\nob") && table.contains("(invalid)"), "{table}");
        let json = store.run(&[command, "list", "--json"]).stdout;
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let names = json.as_array().unwrap().iter().flat_map(|row| [&row["name"], &row["user"], &row["owner"]]);
        assert_eq!(names.filter(|name| **name == "b\nob").count(), 1, "{json}");
    }
    let tokens = String::from_utf8(store.run(&["token", "list"]).stdout).unwrap();
    assert!(tokens.contains("red") && tokens.contains("\\u001b[31m"), "{tokens}");
    let of_ada = store.run(&["token", "list", "--user", "ada"]);
    assert_eq!(of_ada.stdout_text().lines().count(), 2);
});

/// A share in a file with a role that no release wrote.
#[test]
fn unknown_role_is_escaped_in_the_error_of_a_list() {
    let store = changed_file("UPDATE shares_by_name SET role = 'x' || char(27, 7, 155, 8238)");
    let reported = store.run(&["share", "list"]).stderr_text();
    assert!(reported.contains(r"x\u001b\u0007\u009b\u202e") && !reported.contains(HOSTILE), "{reported:?}");
}

// Earlier releases accepted labels with invisible characters: they are shown escaped, and copied as they are.
engine_test!(label_of_an_earlier_release_is_shown_escaped, |store: &Store| {
    let label = "a\u{202e}b\u{200b}c\u{e0061}";
    let ada = store.token("ada", &["--scope", "tokens:manage"]);
    store.execute(&format!("UPDATE tokens SET label = '{label}'"));
    let [table, json] = [&["token", "list"][..], &["token", "list", "--json"]]
        .map(|command| String::from_utf8(store.run(command).stdout).unwrap());
    assert!(table.split_whitespace().collect::<String>().contains(r"a\u202eb\u200b"), "{table}");
    assert!(![table, json.clone()].iter().any(|shown| shown.contains(['\u{202e}', '\u{200b}', '\u{e0061}'])));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["label"], label);
    assert_eq!(store.serve(&[]).client(&ada).get("/tokens").json()[0]["label"], label);
    let copy = Store::new(Engine::Sqlite);
    copy.run(&["copy", "--from", &store.url(), "--to", &copy.url()]).success();
    assert_eq!(copy.texts("SELECT label FROM tokens"), [label]);
});

/// Triggers in the file cannot use virtual tables.
#[test]
fn schema_of_a_file_is_not_trusted() {
    let store =
        changed_file("CREATE TRIGGER spy AFTER INSERT ON plants BEGIN SELECT name FROM pragma_database_list; END");
    let server = store.serve(&[]);
    let ada = server.client(&store.token("ada", &[]));
    assert_eq!(ada.post(r#"{"id":8,"name":"Fern"}"#).error(), 50000);
    server.wait_for_log(r#""error":50000,"detail":"store failed: unsafe use of virtual table"#);
}
