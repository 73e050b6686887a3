//! Unusual settings of the database.

use super::{succeeded, works};
use crate::support::{CommandOutput, Engine, Service, Store, assert_contains, postgres_test, wait_until};

/// Sets defaults for every session on the database of this store.
fn set_for_all(store: &Store, settings: &[&str]) {
    for setting in settings {
        let setting = setting.replace('\'', "''");
        store.execute(&format!(
            "DO $do$ BEGIN EXECUTE format('ALTER DATABASE %I SET {setting}', current_database()); END $do$"
        ));
    }
}

/// Settings that an administrator may have changed. The server must work with any of them.
const UNUSUAL: &[&str] = &[
    "default_transaction_isolation = 'serializable'",
    "default_transaction_deferrable = on",
    "search_path = ''",
    "standard_conforming_strings = off",
    "backslash_quote = off",
    "bytea_output = 'escape'",
    "datestyle = 'German'",
    "timezone = 'NPT-5:45'",
    "client_encoding = 'LATIN1'",
    "client_min_messages = 'debug1'",
    "transform_null_equals = on",
    "enable_indexscan = off",
    "statement_timeout = '5s'",
    "lock_timeout = '5s'",
    "idle_in_transaction_session_timeout = '5s'",
    "idle_session_timeout = '1s'",
    "synchronous_commit = off",
];

postgres_test!(unusual_database_defaults_do_no_harm, |store: &Store| {
    set_for_all(store, UNUSUAL);
    let token = store.token("ada", &[]);
    let servers = [store.serve(&[]), store.serve(&[])];
    std::thread::scope(|scope| {
        for (number, server) in (0..).zip(&servers) {
            let token = &token;
            scope.spawn(move || (0..20).for_each(|id| server.client(token).plant(number * 20 + id, "Ångström 🌵")));
        }
    });
    for server in &servers {
        assert_eq!(server.client(&token).ids(), (0..40).collect::<Vec<_>>());
        works(server, &token);
    }
    // The server overrides the idle timeout, so idle connections stay open.
    wait_until("connections that have been idle for 2 s", || {
        let idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                    AND application_name = 'plantstore' AND state_change < now() - interval '2s'";
        store.rows_of_servers(idle).iter().sum::<i64>() >= 4
    });
    assert!(servers.iter().all(|server| !server.log().contains("was lost")), "{}", servers[0].log());
    store.run(&["user", "delete", "--yes", "ada"]).success();
    assert_eq!(store.rows("SELECT count(*) FROM plants"), [0]);
});

/// At the level `serializable`, a transaction that has waited for a lock still sees the data from before the wait.
#[test]
fn concurrent_starts_on_a_new_serializable_database_succeed() {
    let store = Store::empty(Engine::Postgres);
    set_for_all(&store, &["default_transaction_isolation = 'serializable'"]);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let store = &store;
            scope.spawn(move || store.token(&format!("user-{number}"), &[]));
        }
    });
    assert_eq!(store.rows("SELECT count(*) FROM users"), [8]);
}

postgres_test!(times_do_not_depend_on_the_time_zone_of_the_database, |store: &Store| {
    store.token("ada", &[]);
    store.execute("UPDATE tokens SET created_at = 1700000000, expires_at = 4102444799, revoked_at = 1700000001");
    let list = || String::from_utf8(store.run(&["token", "list", "--json"]).stdout).unwrap();
    let before = list();
    for time in ["2023-11-14T22:13:20Z", "2099-12-31T23:59:59Z", "2023-11-14T22:13:21Z"] {
        assert_contains(&before, time);
    }
    set_for_all(store, &["timezone = 'NPT-5:45'", "datestyle = 'German'"]);
    assert_eq!(list(), before);
});

/// Acknowledged writes are durable, whatever the database's default. A trigger records the setting of each session.
#[test]
fn commits_are_durable_whatever_the_default() {
    for (default, expected) in [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply"), ("on", "on")] {
        let store = Store::new(Engine::Postgres);
        store.run(&["migrate"]).success();
        set_for_all(&store, &[&format!("synchronous_commit = {default}"), "statement_timeout = '9s'"]);
        store.execute(RECORD_SETTINGS);
        let server = store.serve(&["--store-timeout", "20s"]);
        works(&server, &store.token("ada", &[]));
        let seen = format!(
            "SELECT count(*) FROM public.seen WHERE synchronous_commit = '{expected}'
               AND statement_timeout = '0' AND level = 'read committed'
               AND waits = CASE place WHEN 'plants' THEN '16s 2s' ELSE '1min 1min' END"
        );
        assert_eq!(store.rows("SELECT count(DISTINCT place) FROM public.seen"), [2], "{default}");
        assert_eq!(store.rows(&seen), store.rows("SELECT count(*) FROM public.seen"), "{default}");
    }
}

const RECORD_SETTINGS: &str = "
    CREATE TABLE public.seen (place text, synchronous_commit text, statement_timeout text, level text, waits text);
    CREATE FUNCTION public.see() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql AS $see$ BEGIN
      INSERT INTO public.seen VALUES (TG_TABLE_NAME, current_setting('synchronous_commit'),
        current_setting('statement_timeout'), current_setting('transaction_isolation'),
        current_setting('lock_timeout') || ' ' || current_setting('idle_in_transaction_session_timeout'));
      RETURN NULL;
    END $see$;
    CREATE TRIGGER see AFTER INSERT ON plants EXECUTE FUNCTION public.see();
    CREATE TRIGGER see AFTER INSERT ON tokens EXECUTE FUNCTION public.see()";

/// The option allows more than the settings of PostgreSQL.
#[test]
fn longest_store_timeout_is_accepted() {
    let Service { store, server } = &Service::new(Engine::Postgres, &["--store-timeout", "365000d"]);
    works(server, &store.token("ada", &[]));
}

/// Objects that a role with the privilege to create in `public` can plant. The types of each operator and function match a call
/// of the service better than those of PostgreSQL's own, and every table has the name of one of the service.
const HOSTILE: &str = "
    CREATE TABLE public.ran (name text);
    GRANT INSERT ON public.ran TO PUBLIC;
    CREATE FUNCTION public.run(name text) RETURNS void LANGUAGE sql AS 'INSERT INTO public.ran VALUES ($1)';
    CREATE FUNCTION public.multiply(numeric, integer) RETURNS numeric LANGUAGE plpgsql AS
      $$ BEGIN PERFORM public.run('*'); RETURN $1; END $$;
    CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = public.multiply);
    CREATE FUNCTION public.nextval(text) RETURNS bigint LANGUAGE plpgsql AS
      $$ BEGIN PERFORM public.run('nextval'); RETURN 1; END $$;
    CREATE FUNCTION public.setval(text, bigint) RETURNS bigint LANGUAGE plpgsql AS
      $$ BEGIN PERFORM public.run('setval'); RETURN $2; END $$;
    CREATE TABLE public.schema_versions (version integer, oldest integer);
    INSERT INTO public.schema_versions VALUES (1000, 1000);
    CREATE TABLE public.users (hostile text);
    CREATE TABLE public.tokens (hostile text);
    CREATE TABLE public.collections (hostile text);
    CREATE TABLE public.plants (hostile text);
    CREATE TABLE public.shares (hostile text);
    CREATE TABLE public.writers (hostile text)";

#[test]
fn objects_of_other_roles_in_the_public_schema_are_never_used() {
    let [store, restored, copied] = [(); 3].map(|()| Store::empty(Engine::Postgres));
    for store in [&store, &restored, &copied] {
        store.execute(HOSTILE);
    }
    let run = |store: &Store, arguments: &[&str]| succeeded(&store.run(arguments));
    run(&store, &["migrate"]);
    let [ada, bob] = ["ada", "bob"].map(|user| store.token(user, &[]));
    let server = store.serve(&[]);
    works(&server, &ada);
    let bob = server.client(&bob);
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", "1")];
    assert_eq!(bob.call("POST", "/plants", &headers, Some(br#"{"id":1,"name":"Rose"}"#)).status, 200);
    run(&store, &["share", "grant", "--owner", "bob", "--to", "ada", "--role", "reader"]);
    run(&store, &["user", "delete", "--yes", "ada"]);
    assert_eq!(bob.ids(), [1]);
    server.stop();
    run(&store, &["backup", "backup.db"]);
    run(&restored, &["restore", store.directory().join("backup.db").to_str().unwrap()]);
    run(&store, &["copy", "--from", &store.url(), "--to", &copied.url()]);
    for store in [&store, &restored, &copied] {
        assert_eq!(run(store, &["export"]), r#"{"owner":"bob","id":1,"name":"Rose"}"#);
        assert_eq!(store.texts("SELECT name FROM public.ran"), [""; 0]);
        // The default of a column keeps the operator that was found when the table was created.
        assert_eq!(
            store.rows("SELECT count(*) FROM pg_attrdef WHERE pg_get_expr(adbin, adrelid) LIKE '%public.%'"),
            [0]
        );
    }
    assert!(!server.log().contains(r#""level":"ERROR""#), "{}", server.log());
}
