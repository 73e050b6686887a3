//! The SQLite file of a store: recognised, migrated, never damaged.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rstest::rstest;

use crate::support::{CommandOutput, Engine, Garden, Store, assert_contains, engine_test, sqlite_test};

fn open(file: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open_with_flags(file, rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE).expect("the file")
}

/// Returns the error of `serve` for a file that it rejects.
fn error_of(store: &Store) -> String {
    let before = std::fs::read(store.file()).expect("the file");
    let output = store.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read(store.file()).expect("the file"), before, "the file is unchanged");
    let words = output.stderr_text();
    assert_eq!(words.lines().count(), 1, "{words}");
    words
}

/// `tests/files` has store files of earlier releases. Each file must open with all of its plants.
#[test]
fn files_of_earlier_releases_are_opened() {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    let mut opened = 0;
    let files =
        std::fs::read_dir(files).expect("the files of earlier releases").map(|file| file.expect("a file").path());
    for file in files.filter(|file| file.extension().is_some_and(|ending| ending == "db")) {
        let store = Store::new(Engine::Sqlite);
        std::fs::copy(&file, store.file()).expect("a copy");
        let server = store.serve(&[]);
        let token = std::fs::read_to_string(file.with_extension("token")).expect("the token beside it");
        let ada = server.client(token.trim_end());
        assert_eq!(
            ada.get("/plants?include=id").text(),
            r#"[{"id":-9223372036854775808,"name":"Ångström 🌵"},{"id":1,"name":"Rose","tag":"red"},{"id":2,"name":"Fern","tag":""}]"#,
            "{}",
            file.display()
        );
        ada.plant(3, "new");
        assert_eq!(ada.delete(1).status, 204);
        assert_eq!(ada.ids(), [i64::MIN, 2, 3]);
        opened += 1;
    }
    assert!(opened >= 1, "no file of an earlier release was found");
}

/// Creates a store with the schema of 0.3.0, which is version 2.
fn old_store(engine: Engine) -> Store<'static> {
    const MIGRATIONS: [&str; 2] = [
        include_str!("../../migrations/postgres/0001_plants.sql"),
        include_str!("../../migrations/postgres/0002_keys_and_shares.sql"),
    ];
    let store = Store::empty(engine);
    match engine {
        Engine::Sqlite => {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/0.3.0.db");
            std::fs::copy(file, store.file()).expect("a copy");
        }
        Engine::Postgres => store.execute(&format!(
            "SET ROLE plantstore; CREATE SCHEMA plantstore; {}; INSERT INTO schema_versions VALUES (1, 1), (2, 1)",
            MIGRATIONS.concat()
        )),
    }
    store
}

fn schema_version(store: &Store) -> i64 {
    match store.engine {
        Engine::Sqlite => store.rows("PRAGMA user_version")[0],
        Engine::Postgres => store.rows("SELECT max(version) FROM schema_versions")[0],
    }
}

engine_test!(only_serve_and_migrate_change_an_old_schema, |engine: &Engine| {
    let store = &old_store(*engine);
    let url = store.url();
    let commands: &[&[&str]] = &[
        &["serve", "--listen", "127.0.0.1:0", "--no-migrate"],
        &["token", "create", "--user", "bob"],
        &["token", "create", "--user", "bob", "--create"],
        &["token", "list"],
        &["token", "revoke", "1"],
        &["user", "list"],
        &["user", "delete", "--yes", "ada"],
        &["share", "grant", "--owner", "ada", "--to", "bob", "--role", "reader"],
        &["share", "list"],
        &["share", "revoke", "--owner", "ada", "--to", "bob"],
        &["import", "--create"],
        &["export"],
        &["backup", "new.db"],
        &["copy", "--from", &url, "--to", "sqlite:new.db"],
    ];
    for command in commands {
        let stderr = store.run(command).failure(1);
        assert!(stderr.contains("is at version 2, this release needs "), "{command:?}: {stderr}");
        assert!(stderr.contains(": run `plantstore migrate` first"), "{command:?}: {stderr}");
    }
    assert_eq!(schema_version(store), 2);
    assert!(!store.directory().join("new.db").exists());

    let migrate = || String::from_utf8(store.run(&["migrate"]).stderr).expect("text");
    let updated = migrate();
    let expected = format!("schema updated from 2 to {}", schema_version(store));
    assert!(updated.contains(&expected) && updated.contains("the schema is up to date\n"), "{updated}");
    assert_eq!(migrate(), "the schema is up to date\n");
    store.run(&["user", "list"]).success();
    let server = old_store(*engine).serve(&[]);
    server.stop();
    assert!(server.log().contains(&expected), "{}", server.log());
});

/// A copy is no reason to change the schema of its target; a restore is one.
#[rstest]
#[case::requires_postgres()]
fn old_schema_of_an_empty_database_is_migrated_by_restore() {
    let source = Store::empty(Engine::Sqlite);
    source.token("ada", &[]);
    let store = old_store(Engine::Postgres);
    let copied = source.run(&["copy", "--from", &source.url(), "--to", &store.url()]);
    assert!(copied.stderr_text().contains("run `plantstore migrate` first"), "{copied:?}");
    assert_eq!(schema_version(&store), 2);
    let restored = store.run(&["restore", source.file().to_str().expect("text")]);
    assert!(restored.status.success(), "{restored:?}");
    assert!(restored.stderr_text().contains("schema updated from 2 to "), "{restored:?}");
    assert!(schema_version(&store) > 2);
}

sqlite_test!(missing_store_is_not_created_with_no_migrate, |store: &Store| {
    let output = store.run(&["serve", "--listen", "127.0.0.1:0", "--no-migrate"]);
    let stderr = output.stderr_text();
    assert!(stderr.contains("there is no store at ") && stderr.contains("`plantstore migrate` create"), "{stderr}");
    assert!(!store.file().exists());
});

#[test]
fn file_that_others_can_write_logs_a_warning() {
    for (mode, is_warned) in [(0o600, false), (0o644, false), (0o620, true), (0o602, true)] {
        let store = Store::new(Engine::Sqlite);
        store.token("ada", &[]);
        std::fs::set_permissions(store.file(), Permissions::from_mode(mode)).expect("a mode");
        let server = store.serve(&[]);
        server.stop();
        let warnings = server.log().matches("other users can write to the store").count();
        assert_eq!(warnings, usize::from(is_warned), "{mode:o}: {}", server.log());
    }
}

sqlite_test!(file_of_a_newer_release_is_rejected, |store: &Store| {
    store.token("ada", &[]);
    open(&store.file()).pragma_update(None, "user_version", 1_000).expect("a version from the future");
    open(&store.file())
        .pragma_update_and_check(None, "wal_checkpoint", "TRUNCATE", |_| Ok(()))
        .expect("a complete checkpoint");
    let words = error_of(store);
    assert!(words.contains("was written by a newer plantstore (schema 1000, this one knows "), "{words}");
    assert_contains(&words, "use that release or a later one");
    assert_eq!(store.run(&["token", "list"]).status.code(), Some(1), "other commands reject the file, too");
});

sqlite_test!(file_of_another_program_is_rejected, |store: &Store| {
    std::fs::write(store.file(), "").expect("an empty file");
    open(&store.file())
        .execute_batch("CREATE TABLE plants (mine TEXT); INSERT INTO plants VALUES ('precious')")
        .expect("a table");
    let words = error_of(store);
    assert_contains(&words, "is not a plantstore file (it is an SQLite database of another program)");
    let empty = Store::new(Engine::Sqlite);
    std::fs::write(empty.file(), "").expect("an empty file");
    open(&empty.file()).pragma_update(None, "user_version", 7).expect("a version of another program");
    assert!(error_of(&empty).contains("is not a plantstore file"), "a file without tables is rejected, too");
});

sqlite_test!(file_has_the_documented_schema_and_mode, |Garden { store, ada, .. }: &Garden| {
    ada.plant(1, "Rose");
    let file = open(&store.file());
    let pragma =
        |name: &str| file.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0)).unwrap();
    assert_eq!(pragma("journal_mode"), "wal".to_owned().into());
    assert_eq!(pragma("page_size"), 4096.into());
    let own_tables = "SELECT name, wr, strict FROM pragma_table_list
                      WHERE schema = 'main' AND name NOT LIKE 'sqlite_%' ORDER BY name";
    let tables: Vec<(String, bool, bool)> = file
        .prepare(own_tables)
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(tables.iter().all(|(_, _, strict)| *strict), "{tables:?}");
    assert!(tables.contains(&("plants".to_owned(), true, true)), "plants are stored without a rowid: {tables:?}");
    let key: Vec<String> = file
        .prepare("SELECT name FROM pragma_table_info('plants') WHERE pk > 0 ORDER BY pk")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(key, ["user_id", "plant_id"]);
});

// The full path shows an operator who runs the command in the wrong directory what is wrong.
sqlite_test!(missing_store_is_reported_with_its_full_path, |store: &Store| {
    let output = store.run(&["token", "create", "--user", "ada", "--store", "sqlite:plantstore.db"]);
    let stderr = output.stderr_text();
    let path = store.directory().canonicalize().unwrap().join("plantstore.db");
    let expected = format!("there is no store at sqlite:plantstore.db ({}): name yours with --store", path.display());
    assert_contains(&stderr, &expected);
});

// An empty file is no store. It becomes one only with `--create`.
sqlite_test!(empty_file_is_rejected, |store: &Store| {
    std::fs::write(store.file(), "").unwrap();
    let output = store.run(&["token", "create", "--user", "ada"]);
    assert!(output.stderr_text().contains("there is no store at"), "{output:?}");
    assert_eq!(std::fs::read(store.file()).unwrap(), b"", "the file is unchanged");
    store.token("ada", &[]);
});

// Another tool may have changed the journal mode of the file; the server changes it back.
sqlite_test!(the_journal_mode_is_set_at_every_start, |store: &Store| {
    store.token("ada", &[]);
    let mode = |mode: &str| -> String {
        open(&store.file()).pragma_update_and_check(None, "journal_mode", mode, |row| row.get(0)).unwrap()
    };
    assert_eq!(mode("DELETE"), "delete");
    let server = store.serve(&[]);
    let found: String = open(&store.file()).pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(found, "wal");
    drop(server);
});

/// Returns the error of `serve` after the shell command `freeze` has made files read-only in a new mount namespace.
fn error_when_frozen(freeze: &str) -> String {
    let store = Store::new(Engine::Sqlite);
    store.token("ada", &[]);
    let script =
        format!("mkdir frozen && mount -t tmpfs tmpfs frozen && cp plants.db frozen/ && {freeze} && exec \"$@\"");
    let wrapper = ["unshare", "--map-root-user", "--mount", "sh", "-c", &script, "sh"];
    let serve = ["serve", "--listen", "127.0.0.1:0", "--store", "sqlite:frozen/plants.db"];
    let words = store.command_through(&wrapper, &serve).output().unwrap().failure(1);
    assert_eq!(words.lines().count(), 1, "{words}");
    words
}

/// A store that cannot be written is rejected when the server starts, not at the first request.
#[rstest]
#[case::requires_unshare()]
fn read_only_store_is_rejected() {
    let words = error_when_frozen("mount -o remount,ro frozen");
    assert_contains(&words, "cannot open sqlite:frozen/plants.db: Read-only file system");
    let shm = "frozen/plants.db-shm";
    let words =
        error_when_frozen(&format!("touch {shm} && mount --bind {shm} {shm} && mount -o remount,bind,ro {shm}"));
    assert_contains(&words, "a file beside it whose name starts with its own, may only be read");
}

// The deletion of a user was interrupted after its first transaction. Plants of other users must stay.
engine_test!(rows_of_a_deleted_user_are_removed_after_the_next_start, |store: &Store| {
    let tokens = ["ada", "bob"].map(|user| store.token(user, &[]));
    let server = store.serve(&[]);
    for (number, token) in tokens.iter().enumerate() {
        (0..=number).for_each(|id| server.client(token).plant(i64::try_from(id).unwrap(), "n"));
    }
    server.stop();
    // The changes of the first transaction of a deletion.
    store.execute("INSERT INTO departed_users (user_id) VALUES (2); DELETE FROM tokens WHERE user_id = 2; DELETE FROM users WHERE user_id = 2");
    let server = store.serve(&[]);
    assert_eq!(server.client(&tokens[1]).get("/plants").error(), 40101);
    let left = || store.rows("SELECT user_id FROM plants UNION ALL SELECT -user_id FROM departed_users");
    crate::support::wait_until("the rows of the deleted user to be removed", || left() == [1]);
    assert_eq!(server.client(&tokens[0]).ids(), [0], "plants of other users stay");
});

engine_test!(command_creates_no_store_without_the_option, |engine: &Engine| {
    let store = &Store::empty(*engine);
    let commands: &[&[&str]] = &[
        &["token", "create", "--user", "ada"],
        &["token", "list"],
        &["token", "revoke", "1"],
        &["import"],
        &["user", "list"],
        &["user", "delete", "--yes", "ada"],
        &["share", "list"],
        &["export"],
    ];
    for command in commands {
        let stderr = store.run(command).failure(1);
        assert!(stderr.starts_with("error: there is no store at "), "{command:?}: {stderr}");
        assert!(stderr.contains("name yours with --store") && stderr.contains("--create"), "{command:?}: {stderr}");
        assert_eq!(std::fs::read_dir(store.directory()).unwrap().count(), 0, "{command:?}");
    }
    if matches!(store.engine, Engine::Postgres) {
        let (schemas, none) = ("SELECT count(*) FROM pg_namespace WHERE nspname = 'plantstore'", [0]);
        assert_eq!(store.rows(schemas), none);
    }
    let made = store.run(&["token", "create", "--create", "--user", "ada"]);
    assert!(made.stderr_text().contains("created a new store"), "{made:?}");
    assert!(store.run(&["import"]).status.success(), "the store exists now");
});

// Ten concurrent processes that find no store create one store.
engine_test!(concurrent_starts_on_a_new_store_succeed, |store: &Store| {
    std::thread::scope(|scope| {
        for number in 0..10 {
            scope.spawn(move || store.token(&format!("user-{number}"), &[]));
        }
    });
    let users = store.run(&["user", "list", "--json"]).json();
    assert_eq!(users.as_array().map(Vec::len), Some(10));
});
