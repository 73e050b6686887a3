//! `plantstore backup`, `restore` and `copy`: consistent snapshots of whole stores, complete or not at all.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use rstest::rstest;

use crate::support::transfer::{export, import, lines};
use crate::support::{
    Client, Cluster, CommandOutput, Engine, JSON, Response, StopOnDrop, Store, TcpProxy, assert_contains, engine_test,
    engine_tool_test, runs_on_citus, sqlite_test, tool_test, wait_for, wait_until,
};

fn other(engine: Engine) -> Engine {
    match engine {
        Engine::Sqlite => Engine::Postgres,
        Engine::Postgres => Engine::Sqlite,
    }
}

/// Returns the table that a successful copy prints, with a digest for each kind of row.
#[track_caller]
fn table(output: &Output) -> String {
    assert_contains(output.notes(), "; read back, and nothing differs\n");
    output.stdout_text()
}

#[track_caller]
fn copy(from: &Store, to: &Store) -> String {
    table(&from.run(&["copy", "--from", &from.url(), "--to", &to.url()]))
}

#[track_caller]
fn error_of(output: &Output) -> String {
    assert!(output.stdout.is_empty());
    output.failure(1)
}

fn create_with_key(client: &Client) -> Response {
    let body = br#"{"id":77,"name":"with a key"}"#;
    client.call("POST", "/plants", &[JSON, ("Idempotency-Key", "k-1")], Some(body))
}

/// Fills a store with rows of every kind. Returns the tokens of ada and bob.
fn fill(store: &Store) -> [String; 2] {
    let tokens = ["ada", "bob"].map(|user| store.token(user, &["--label", "balcony 🌵"]));
    store.token("gone", &[]);
    store.token("ada", &["--scope", "plants:read", "--expires", "never"]);
    store.run(&["token", "revoke", "4"]).success();
    store.share("ada", "bob", "editor");
    store.execute(
        "INSERT INTO shares_by_name (grantee_name, owner_id, role, created_at)
         SELECT 'absent-user', user_id, 'reader', 5 FROM users WHERE name = 'ada';
         INSERT INTO shares_by_name (grantee_name, owner_id, role, created_at, declined_at)
         SELECT 'ada', user_id, 'reader', 5, 6 FROM users WHERE name = 'bob';
         UPDATE tokens SET created_by = 'token 1' WHERE token_id = 2",
    );
    let server = store.serve(&[]);
    let [ada, bob] = tokens.each_ref().map(|token| server.client(token));
    assert_eq!(create_with_key(&ada).status, 200);
    for id in [i64::MIN, -1, 0, 1, i64::MAX] {
        ada.plant(id, "Röse \\ \"🌵\"");
    }
    assert_eq!(
        bob.call("POST", "/plants?owner=ada", &[JSON], Some(br#"{"id":5,"name":"bob's","tag":""}"#)).status,
        200
    );
    assert_eq!(ada.delete(0).status, 204);
    assert_eq!(server.stop().code(), Some(0));
    // The rows of a deleted user stay until the next cleanup.
    store.execute("INSERT INTO plants VALUES (3, 1, 'left behind', NULL, 1)");
    store.execute("INSERT INTO departed_users (user_id) VALUES (3); DELETE FROM users WHERE user_id = 3");
    if matches!(store.engine, Engine::Postgres) {
        store.execute("DELETE FROM collections WHERE user_id = 3");
    }
    tokens
}

/// Returns all rows of the tables and columns that both engines have.
fn rows(store: &Store) -> Vec<String> {
    // Citus supports the join, but no subquery for each user.
    let [users, hash, key] = match store.engine {
        Engine::Sqlite => ["users", "hex(hash)", "hex(key)"],
        Engine::Postgres => {
            ["users JOIN collections USING (user_id)", "upper(encode(hash, 'hex'))", "upper(encode(key, 'hex'))"]
        }
    };
    let text = |what: &str| format!("coalesce(CAST({what} AS text), 'none')");
    let queries = [
        (users, "user_id || name || version || users.created_at".to_owned(), "user_id"),
        (
            "tokens",
            format!(
                "token_id || {hash} || user_id || label || scopes || created_by || created_at || {} || {} || {}",
                text("expires_at"),
                text("revoked_at"),
                text("last_used_at")
            ),
            "token_id",
        ),
        (
            "shares_by_name",
            format!(
                "grantee_name || owner_id || role || created_at || {} || {}",
                text("grantee_id"),
                text("declined_at")
            ),
            "grantee_name, owner_id",
        ),
        (
            "idempotency_keys",
            format!("user_id || {key} || outcome || {} || expires_at", text("message")),
            "user_id, key",
        ),
        ("plants", format!("user_id || ' ' || plant_id || name || {} || version", text("tag")), "user_id, plant_id"),
    ];
    queries
        .iter()
        .flat_map(|(table, row, order)| store.texts(&format!("SELECT {row} FROM {table} ORDER BY {order}")))
        .collect()
}

/// Asserts that a server on the copy accepts entity tags, idempotency keys and tokens of the source, has its shares, and
/// gives a new user an id that no copied user has.
#[track_caller]
fn assert_serves(store: &Store, [ada, bob]: &[String; 2], tag: &str) {
    let server = store.serve(&[]);
    let (ada, bob) = (server.client(ada), server.client(bob));
    // The entity tag of the source is valid.
    assert_eq!(ada.call("GET", "/plants", &[("If-None-Match", tag)], None).status, 304);
    assert_eq!(ada.ids(), [i64::MIN, -1, 1, 5, 77, i64::MAX]);
    assert_eq!(create_with_key(&ada).header("idempotency-replayed"), Some("true"), "the stored response is replayed");
    assert_eq!(bob.get("/plants?owner=ada").json().as_array().map(Vec::len), Some(6), "the share is copied");
    ada.plant(100, "new");
    assert_eq!(ada.call("GET", "/plants", &[("If-None-Match", tag)], None).status, 200);
    let newcomer = server.client(&store.token("newcomer", &[]));
    assert_eq!(newcomer.ids(), [0_i64; 0], "the new user has an id of their own");
}

engine_tool_test!(a_store_moves_to_the_other_engine_and_back, requires_postgres, |store: &Store| {
    let tokens = fill(store);
    let server = store.serve(&[]);
    let tag = server.client(&tokens[0]).get("/plants").header("etag").unwrap().to_owned();
    // The server runs during the copy, and may clean up the rows of the deleted user meanwhile.
    let there = Store::new(other(store.engine));
    let first = copy(store, &there);
    drop(server);
    for (kind, count) in
        [("users", "2 "), ("tokens", "3 "), ("shares", "3 "), ("idempotency keys", "1 "), ("plants", "6 ")]
    {
        assert!(first.lines().any(|line| line.starts_with(kind) && line.contains(count)), "{first}");
    }
    let back = Store::new(store.engine);
    assert_eq!(copy(&there, &back), first, "the same digests");
    assert_eq!(rows(&there), rows(&back), "the same rows");
    assert!(rows(&back).iter().all(|row| !row.contains("left behind")));
    assert_eq!(export(store), export(&back));
    for copied in [&there, &back] {
        assert_serves(copied, &tokens, &tag);
    }
});

engine_tool_test!(a_backup_is_a_store_in_one_file, requires_postgres, |store: &Store| {
    let tokens = fill(store);
    let server = store.serve(&[]);
    let tag = server.client(&tokens[0]).get("/plants").header("etag").unwrap().to_owned();
    let made = table(&store.run(&["backup", "b.db"]));
    let file = store.directory().join("b.db");
    // Only the owner may read plants and token hashes.
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let beside = |ending: &str| store.directory().join(format!("b.db{ending}")).exists();
    assert!(!["-wal", "-shm", "-journal"].into_iter().any(beside));
    let bytes = std::fs::read(&file).unwrap();
    let again = error_of(&store.run(&["backup", "b.db"]));
    assert_contains(&again, "there is a file b.db already: name another, or move it away");
    for engine in [Engine::Sqlite, Engine::Postgres] {
        let restored = Store::new(engine);
        assert_eq!(table(&restored.run(&["restore", file.to_str().unwrap()])), made);
        assert_serves(&restored, &tokens, &tag);
    }
    assert_eq!(std::fs::read(&file).unwrap(), bytes, "a restore does not change the backup");
    assert!(!["-wal", "-shm", "-journal"].into_iter().any(beside));
    std::fs::rename(&file, store.directory().join("plants2.db")).unwrap();
    // A backup can be opened as a store.
    assert!(store.run(&["export", "--store", "sqlite:plants2.db"]).status.success());
});

engine_tool_test!(
    numbers_of_deleted_users_and_tokens_are_not_given_out_again_after_a_copy,
    requires_postgres,
    |store: &Store| {
        for user in ["ada", "bob", "gone"] {
            store.token(user, &[]);
        }
        store.run(&["user", "delete", "gone", "--yes"]).success();
        table(&store.run(&["backup", "b.db"]));
        let backup = store.directory().join("b.db");
        for engine in [Engine::Sqlite, Engine::Postgres] {
            let [copied, restored, further] = std::array::from_fn(|_| Store::new(engine));
            copy(store, &copied);
            table(&restored.run(&["restore", backup.to_str().unwrap()]));
            copy(&restored, &further);
            for target in [copied, restored, further] {
                target.token("new", &[]);
                let new = target
                    .rows("SELECT user_id FROM users WHERE name = 'new' UNION ALL SELECT max(token_id) FROM tokens");
                assert!(new.iter().all(|number| *number > 3), "user and token: {new:?}");
            }
        }
    }
);

// A restore never mixes the rows of the backup with existing rows.
engine_test!(target_that_is_not_empty_is_not_overwritten, |store: &Store| {
    import(store, &[], &lines(&["ada"], 3));
    let source = Store::new(Engine::Sqlite);
    import(&source, &[], &lines(&["bob"], 3));
    let before = export(store);
    let reported = error_of(&store.run(&["restore", source.file().to_str().unwrap()]));
    let expected = match store.engine {
        Engine::Sqlite => "already: name another, or move it away",
        Engine::Postgres => "holds users already, and is left as it is: name a store that is new or empty",
    };
    assert_contains(&reported, expected);
    assert_eq!(export(store), before);
    let reported = error_of(&store.run(&["copy", "--from", "sqlite:nowhere.db", "--to", "sqlite:new.db"]));
    assert_eq!(reported, "error: there is no store at sqlite:nowhere.db: name one that exists with --from\n");
    let reported = store.run(&["copy", "--from", "plants.db", "--to", "sqlite:new.db"]).failure(2);
    assert_contains(reported, "--from: a store is written as sqlite:PATH");
    assert!(!store.directory().join("new.db").exists());
});

// One worker writes for two users in turn, so in every snapshot the first has as many plants as the second, or one more.
// The copy holds all writes that were acknowledged before it began, and none that began after it ended.
engine_test!(copy_under_load_is_a_consistent_snapshot, |store: &Store| {
    let server = store.serve(&["--log-level", "warn"]);
    import(store, &[], &lines(&["much"], 5_000));
    store_many_keys(store);
    let [ada, bob] = ["ada", "bob"].map(|user| server.client(&store.token(user, &[])));
    let (stop, done, begun) = (AtomicBool::new(false), AtomicI64::new(0), AtomicI64::new(0));
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            for id in 0.. {
                begun.store(id + 1, Ordering::SeqCst);
                ada.plant(id, "a");
                bob.plant(id, "b");
                done.store(id + 1, Ordering::SeqCst);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for round in 0..2 {
            let before = done.load(Ordering::SeqCst);
            wait_until("more writes", || done.load(Ordering::SeqCst) > before + 5);
            let least = done.load(Ordering::SeqCst);
            let name = format!("b{round}.db");
            table(&store.run(&["backup", &name]));
            let url = format!("sqlite:{name}");
            let plants = |user| {
                let output = store.run(&["export", "--user", user, "--store", &url]);
                let text = output.stdout_text();
                let ids = text
                    .lines()
                    .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].as_i64().unwrap());
                i64::try_from(ids.enumerate().map(|(place, id)| assert_eq!(i64::try_from(place), Ok(id))).count())
                    .unwrap()
            };
            let (first, second) = (plants("ada"), plants("bob"));
            // Citus has no snapshot across the workers of two users.
            assert!(first == second || first == second + 1 || runs_on_citus(), "{first} and {second}");
            let ahead = "SELECT count(*) FROM users WHERE version IS NOT (SELECT max(version) FROM plants WHERE plants.user_id = users.user_id)";
            let file = rusqlite::Connection::open_with_flags(
                store.directory().join(&name),
                rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY,
            )
            .unwrap();
            // Users and plants are from one snapshot.
            assert_eq!(file.query_row(ahead, [], |row| row.get::<_, i64>(0)), Ok(0));
            for count in [first, second] {
                assert!((least..=begun.load(Ordering::SeqCst)).contains(&count), "{count}, at least {least}");
            }
        }
    });
    // PostgreSQL may end a session that a busy machine has stopped for seconds.
    let log = server.log();
    assert!(log.lines().all(|line| line.contains("database connection lost")), "{log}");
});

engine_test!(killed_backup_leaves_only_a_partial_file, |store: &Store| {
    import(store, &[], &lines(&["ada", "bob"], 20_000));
    let file = store.directory().join("b.db");
    let partial = || {
        let names = std::fs::read_dir(store.directory()).unwrap().map(|file| file.unwrap().file_name());
        let mut names = names.map(|name| name.into_string().unwrap());
        names.find(|name| name.starts_with("b.db.") && name.ends_with(".partial"))
    };
    // Repeated, because the backup may be complete before it is killed.
    wait_for("a backup that is killed before it is complete", || {
        let _ = std::fs::remove_file(&file);
        let mut child = spawn_silently(store, &["backup", "b.db"]);
        wait_until("the backup to begin", || partial().is_some() || file.exists());
        child.kill().unwrap();
        child.wait().unwrap();
        (!file.exists()).then_some(())
    });
    let left = partial();
    assert!(left.is_some(), "the leftover file has the name of a partial file");
    table(&store.run(&["backup", "b.db"]));
    assert_eq!(partial(), left, "later commands do not change it");
    let restored = Store::new(Engine::Sqlite);
    table(&restored.run(&["restore", file.to_str().unwrap()]));
    assert_eq!(export(&restored), lines(&["ada", "bob"], 20_000));
});

/// Stores so many idempotency keys that a copy reads the plants noticeably later than the users.
fn store_many_keys(store: &Store) {
    let key = match store.engine {
        Engine::Sqlite => "randomblob(32), zeroblob(32)",
        Engine::Postgres => "sha256(n::text::bytea), sha256('')",
    };
    store.execute(&format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 25000)
         INSERT INTO idempotency_keys (user_id, key, fingerprint, outcome, message, expires_at)
         SELECT 1, {key}, 200, NULL, 9999999999 FROM numbers"
    ));
}

fn spawn_silently(store: &Store, arguments: &[&str]) -> Child {
    store.command(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn database_with_schema() -> Store<'static> {
    let store = Store::new(Engine::Postgres);
    store.run(&["migrate"]).success();
    store
}

/// A restore is one transaction, which is rolled back when the process is killed.
#[rstest]
#[case::requires_postgres()]
fn a_killed_restore_leaves_an_empty_database() {
    let source = Store::new(Engine::Sqlite);
    import(&source, &[], &lines(&["ada"], 5_000));
    let target = database_with_schema();
    let held = target.hold("BEGIN; LOCK TABLE plantstore.tokens IN ACCESS EXCLUSIVE MODE");
    let mut child = spawn_silently(&target, &["restore", source.file().to_str().unwrap()]);
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() AND query LIKE '%COPY%'";
    wait_until("the restore to wait for the lock on the tokens", || target.rows(waiting) == [1]);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(held);
    wait_until("the transaction to end", || target.rows(waiting) == [0]);
    assert_eq!(target.rows("SELECT count(*) FROM users"), [0]);
    table(&target.run(&["restore", source.file().to_str().unwrap()]));
    assert_eq!(export(&target), export(&source));
}

/// The source may need time to sort its rows, so the transaction on the target must have no idle timeout. The trigger
/// shortens the timeout if there is one.
#[rstest]
#[case::requires_postgres()]
fn transaction_of_a_copy_has_no_idle_timeout() {
    let source = Store::new(Engine::Postgres);
    import(&source, &[], &lines(&["ada"], 3));
    let target = database_with_schema();
    target.execute(
        "CREATE FUNCTION hurry() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           IF current_setting('idle_in_transaction_session_timeout') <> '0' THEN
             PERFORM set_config('idle_in_transaction_session_timeout', '100ms', true);
           END IF;
           RETURN NEW;
         END $$;
         CREATE TRIGGER hurry BEFORE INSERT ON users FOR EACH ROW EXECUTE FUNCTION hurry()",
    );
    let proxy = TcpProxy::start(Cluster::shared().address());
    // The copy has stored the users and reads the keys.
    proxy.freeze_at(b"ORDER BY idempotency_keys.user_id, key");
    let slow = source.through(&proxy);
    let mut copying = target.command(&["copy", "--from", &slow.url(), "--to", &target.url()]);
    let copying = copying.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                   AND state = 'idle in transaction' AND clock_timestamp() - state_change > interval '1 s'";
    wait_until("a transaction that has been idle for a second", || target.rows(waiting) == [1]);
    proxy.heal();
    table(&copying.wait_with_output().unwrap());
    assert_eq!(export(&target), export(&source));
}

/// A copy is read back: a database that stores other data than it was sent is detected.
#[rstest]
#[case::requires_postgres()]
fn copy_that_differs_from_its_source_is_rolled_back() {
    let source = Store::new(Engine::Sqlite);
    import(&source, &[], &lines(&["ada"], 3));
    let target = database_with_schema();
    target.execute(
        "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.tag := 'spoilt'; RETURN NEW; END $$;
         CREATE TRIGGER spoil BEFORE INSERT ON plants FOR EACH ROW WHEN (NEW.plant_id = 2) EXECUTE FUNCTION spoil()",
    );
    let reported = error_of(&target.run(&["restore", source.file().to_str().unwrap()]));
    assert_contains(&reported, "the copy differs from its source: sent 1 users");
    assert_eq!(target.rows("SELECT count(*) FROM users"), [0], "the transaction is rolled back");
    target.execute("DROP TRIGGER spoil ON plants");
    target.execute(
        "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.version := 0; RETURN NEW; END $$;
         CREATE TRIGGER forget BEFORE INSERT ON plants FOR EACH ROW EXECUTE FUNCTION forget()",
    );
    let reported = error_of(&target.run(&["restore", source.file().to_str().unwrap()]));
    assert_contains(reported, "the copy differs from its source");
}

// The WAL of a deleted file must not become part of a new file.
sqlite_test!(leftover_files_of_another_store_are_an_error, |store: &Store| {
    import(store, &[], &lines(&["ada"], 3));
    std::fs::write(store.directory().join("b.db-wal"), "left").unwrap();
    let reported = error_of(&store.run(&["backup", "b.db"]));
    assert_contains(&reported, "sqlite:b.db holds a write-ahead log or journal beside it already");
    assert!(!store.directory().join("b.db").exists());
});

tool_test!(backup_to_a_full_disk_leaves_no_file, requires_unshare, |store: &Store| {
    import(store, &[], &lines(&["ada"], 40_000));
    std::fs::create_dir(store.directory().join("small")).unwrap();
    let script = "mount -t tmpfs -o size=1m tmpfs small && \"$@\" backup small/b.db; echo $?; ls -A small";
    let wrapper = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh"];
    let output = store.command_through(&wrapper, &[]).output().unwrap();
    assert_eq!(output.stdout_text(), "1\n", "{}", output.stderr_text());
    assert!(output.stderr_text().starts_with("error: writing failed: storage is full: "), "{}", output.stderr_text());
    assert_eq!(output.stderr_text().matches("storage is full").count(), 1, "{}", output.stderr_text());
    assert_eq!(export(store), lines(&["ada"], 40_000));
});

#[rstest]
#[case::requires_postgres()]
fn files_of_earlier_releases_are_restored() {
    for release in ["0.1.0", "0.3.0", "0.6.0", "0.7.0"] {
        let store = Store::new(Engine::Sqlite);
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
        let file = files.join(format!("{release}.db"));
        std::fs::copy(&file, store.file()).unwrap();
        let token = std::fs::read_to_string(files.join(format!("{release}.token"))).unwrap();
        for engine in [Engine::Sqlite, Engine::Postgres] {
            let restored = Store::new(engine);
            table(&restored.run(&["restore", store.file().to_str().unwrap()]));
            let server = restored.serve(&[]);
            assert_eq!(server.client(token.trim_end()).ids(), [i64::MIN, 1, 2], "{release}");
        }
        assert_eq!(std::fs::read(store.file()).unwrap(), std::fs::read(&file).unwrap(), "{release}: it is unchanged");
    }
}
