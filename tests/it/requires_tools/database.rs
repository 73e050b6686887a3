//! PostgreSQL databases: privileges, connections and settings.

mod connections;
mod settings;

use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use serde_json::Value;

use crate::support::{
    Cluster, CommandOutput, Engine, Garden, Server, Service, StopOnDrop, Store, assert_contains, engine_test,
    postgres_test, wait_for, wait_until,
};

/// Password of the role `plantstore` on every PostgreSQL server of the tests.
const PASSWORD: &str = "only-for-tests";

/// Runs commands with a store URL of the test's choice, in a separate directory.
struct Operator {
    store: Store<'static>,
    url: String,
}

impl Operator {
    fn at(url: impl Into<String>) -> Self {
        Self { store: Store::new(Engine::Sqlite), url: url.into() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.store.command(arguments);
        // Ignores the password file of the user who runs the tests.
        command.env("PLANTSTORE_STORE", &self.url).env("HOME", self.store.directory()).stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        succeeded(&self.command(arguments).output().unwrap())
    }

    #[track_caller]
    fn serve(&self, arguments: &[&str]) -> Server {
        let fixed = ["serve", "--listen", "127.0.0.1:0", "--no-first-token"];
        Server::start(self.command(&[&fixed, arguments].concat()))
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Runs a command that must fail, and returns its error.
    #[track_caller]
    fn error_of(&self, arguments: &[&str]) -> String {
        error_of(&self.command(arguments).output().unwrap())
    }

    /// Returns the error of `serve`. A timeout ends a server that starts unexpectedly.
    #[track_caller]
    fn serve_error(&self, arguments: &[&str]) -> String {
        let fixed = ["serve", "--listen", "127.0.0.1:0"];
        let mut command = self.store.command_through(&["timeout", "60"], &[&fixed, arguments].concat());
        error_of(&command.env("PLANTSTORE_STORE", &self.url).env("HOME", self.store.directory()).output().unwrap())
    }
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", output.stderr_text());
    output.stdout_text().trim_end().to_owned()
}

/// Returns the error of a command that has failed: its last line, after log lines about retries.
#[track_caller]
fn error_of(output: &Output) -> String {
    let words = output.stderr_text();
    assert_eq!(output.status.code(), Some(1), "{words}");
    let (retries, last): (Vec<&str>, Vec<&str>) = words.lines().partition(|line| line.contains("retrying"));
    assert_eq!(last.len(), 1, "{words}");
    assert!(last[0].starts_with("error: ") && retries.len() <= 1, "{words}");
    assert!(!words.contains(PASSWORD), "{words}");
    last[0].to_owned()
}

fn database_url(cluster: &Cluster, role: &str, password: &str, database: &str) -> String {
    format!("postgres://{role}:{password}@{}/{database}", cluster.address())
}

/// Creates a database with this name and these options on the shared server.
fn create_database(name: &str, options: &str) -> Operator {
    let cluster = Cluster::shared();
    cluster.psql("postgres", &format!("CREATE DATABASE {name} {options}"));
    Operator::at(cluster.url(name))
}

/// Runs the three operations, each once with success and once with an error.
#[track_caller]
fn works(server: &Server, token: &str) {
    let ada = server.client(token);
    let before = ada.ids();
    ada.plant(77, "Rose");
    assert_eq!(ada.post(r#"{"id":77,"name":"Fern"}"#).error(), 40900);
    assert!(ada.get("/plants?include=id").text().contains(r#"{"id":77,"name":"Rose"}"#));
    assert_eq!(ada.delete(77).status, 204);
    assert_eq!(ada.delete(77).error(), 40400);
    assert_eq!(ada.ids(), before);
}

/// Returns the SQL statements that docs/how-to/postgresql.md gives to administrators.
fn statements_of_the_document() -> String {
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/how-to/postgresql.md")).unwrap();
    let block = document.split("```sql\n").nth(1).and_then(|rest| rest.split("```").next());
    block.expect("a block of SQL").to_owned()
}

/// Runs a statement as the role of the URL and returns its output or error.
fn try_as(cluster: &Cluster, url: &str, sql: &str) -> Result<String, String> {
    let output = cluster.tool("psql").args(["-X", "-A", "-t", "-q", "-c", sql, url]).output().unwrap();
    if output.status.success() { Ok(succeeded(&output)) } else { Err(output.stderr_text()) }
}

/// Runs the operations of the server and the commands of operators.
fn everything_works(node: &Operator, cluster: &Cluster, database: &str, arguments: &[&str]) {
    let count = |table: &str| cluster.psql(database, &format!("SELECT count(*) FROM plantstore.{table}"));
    // The rows that an interrupted deletion of a user and nodes of earlier releases leave.
    cluster.psql(
        database,
        "INSERT INTO plantstore.departed_users VALUES (999);
         INSERT INTO plantstore.plants (user_id, plant_id, name, version) VALUES (999, 1, 'left', 1);
         INSERT INTO plantstore.collections (user_id, version)
         SELECT -hours, extract(epoch FROM now() - hours * interval '1 hour') * 1000000 FROM unnest(ARRAY[23, 25]) AS hours
         ON CONFLICT (user_id) DO NOTHING",
    );
    let server = node.serve(arguments);
    let token = node.run(&["token", "create", "--user", "ada"]);
    works(&server, &token);
    let ada = server.client(&token);
    ada.plant(1, "Monstera");
    wait_for("the stored last use of the token", || node.json(&["token", "list"])[0]["last_used"].as_str().map(drop));
    wait_until("these rows to be removed", || {
        count("plants") == "1"
            && count("departed_users") == "0"
            && cluster.psql(database, "SELECT user_id FROM plantstore.collections WHERE user_id IN (-23, -25)") == "-23"
    });
    let tokens = node.json(&["token", "list"]);
    assert_eq!((&tokens[0]["user"], &tokens[0]["state"]), (&"ada".into(), &"active".into()));
    node.run(&["token", "revoke", &tokens[0]["id"].to_string()]);
    wait_until("the revoked token to be rejected", || ada.get("/plants").status == 401);
    assert_eq!(node.json(&["user", "list"])[0]["plants"], 1);
    node.run(&["user", "delete", "--yes", "ada"]);
    assert_eq!(["users", "tokens", "plants", "departed_users"].map(count), ["0"; 4]);
}

#[test]
fn documented_roles_have_exactly_the_privileges_needed() {
    let cluster = Cluster::start(&[]);
    cluster.psql("postgres", "CREATE DATABASE plants");
    cluster.psql("plants", &statements_of_the_document());
    for role in ["owner", "service"] {
        cluster.psql("postgres", &format!("ALTER ROLE plantstore_{role} PASSWORD '{role}-{PASSWORD}'"));
    }
    let url =
        |role: &str| database_url(&cluster, &format!("plantstore_{role}"), &format!("{role}-{PASSWORD}"), "plants");
    let (owner, service) = (Operator::at(url("owner")), Operator::at(url("service")));

    let words = service.serve_error(&[]);
    assert_contains(&words, "permission denied for schema plantstore (42501): run `plantstore migrate`");
    owner.run(&["migrate"]);
    everything_works(&service, &cluster, "plants", &["--no-migrate"]);
    everything_works(&service, &cluster, "plants", &[]);

    let forbidden = [
        "CREATE TABLE plantstore.mine (id bigint)",
        "DROP TABLE plantstore.plants",
        "ALTER TABLE plantstore.plants ADD COLUMN mine bigint",
        "CREATE INDEX ON plantstore.plants (name)",
        "TRUNCATE plantstore.plants",
        "DROP SCHEMA plantstore CASCADE",
        "CREATE SCHEMA mine",
    ];
    for statement in forbidden {
        let words = try_as(&cluster, &url("service"), statement).expect_err(statement);
        assert!(words.contains("permission denied") || words.contains("must be owner"), "{statement}: {words}");
    }
    // The service may also use tables that a later migration adds.
    try_as(&cluster, &url("owner"), "CREATE TABLE plantstore.later (id bigint)").unwrap();
    try_as(&cluster, &url("service"), "INSERT INTO plantstore.later VALUES (1)").unwrap();
    let granted = "SELECT string_agg(DISTINCT privilege_type, ' ' ORDER BY privilege_type)
                   FROM information_schema.role_table_grants WHERE grantee = 'plantstore_service'";
    assert_eq!(cluster.psql("plants", granted), "DELETE INSERT SELECT UPDATE");
}

#[test]
fn role_without_create_privilege_gets_a_clear_error() {
    let node = create_database("of_another_role", "");
    let create = ["token", "create", "--create", "--user", "a"];
    for words in [node.serve_error(&[]), node.error_of(&["migrate"]), node.error_of(&create)] {
        assert_contains(&words, "permission denied for database of_another_role (42501): run `plantstore migrate`");
    }
}

#[test]
fn commands_that_only_read_create_no_schema() {
    let store = Store::empty(Engine::Postgres);
    let node = Operator::at(store.url());
    let words = node.serve_error(&["--no-migrate"]);
    assert!(words.contains("there is no store at") && words.contains("`plantstore migrate` create"), "{words}");
    for command in
        [&["token", "list"][..], &["token", "revoke", "1"], &["user", "list"], &["user", "delete", "--yes", "a"]]
    {
        let words = node.error_of(command);
        assert_contains(&words, "there is no store at postgres://plantstore@127.0.0.1:");
    }
    assert_eq!(store.rows("SELECT count(*) FROM pg_namespace WHERE nspname = 'plantstore'"), [0]);
    node.run(&["migrate"]);
    let server = node.serve(&["--no-migrate"]);
    works(&server, &store.token("ada", &[]));
}

engine_test!(migration_of_a_current_schema_changes_nothing, |engine: &Engine| {
    let store = &Store::empty(*engine);
    let reported = store.run(&["migrate"]).notes();
    assert!(reported.starts_with("created a new store: "), "{reported}");
    let token = store.token("ada", &[]);
    let server = store.serve(&[]);
    server.client(&token).plant(1, "Rose");
    for _ in 0..2 {
        assert_eq!(store.run(&["migrate"]).notes(), "the schema is up to date\n");
    }
    works(&server, &token);
    assert_eq!(server.client(&token).ids(), [1]);
});

// Names are stored byte by byte, and ids are ordered as numbers, in any locale.
engine_test!(stored_text_is_listed_unchanged, |Service { store, server }: &Service| {
    let ada = server.client(&store.token("ада🌵", &["--label", "Ünïcödé"]));
    let plants = [
        (i64::MIN, "Ångström", Some("")),
        (-1, "A\u{30a}ngstro\u{308}m", None),
        (0, "'; DROP TABLE plants; --", Some("\\x00 $1 %s \"")),
        (1, "\u{10ffff}\u{fffd}", Some("日本語")),
        (i64::MAX, "🌵👩‍🌾", Some(" ")),
    ];
    for (id, name, tag) in plants.iter().rev() {
        let mut plant = serde_json::json!({ "id": id, "name": name });
        if let Some(tag) = tag {
            plant["tag"] = (*tag).into();
        }
        let response = ada.post(plant.to_string());
        assert_eq!(response.status, 200, "{plant}: {}", response.text());
    }
    let listed = ada.get("/plants?include=id").json();
    let listed: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|plant| (plant["id"].as_i64().unwrap(), plant["name"].as_str().unwrap(), plant["tag"].as_str()))
        .collect();
    assert_eq!(listed, plants);
    assert_eq!(ada.delete(i64::MIN).status, 204);
    assert_eq!(ada.delete(i64::MAX).status, 204);
    assert_eq!(ada.ids(), [-1, 0, 1]);
});

engine_test!(users_are_listed_in_the_order_of_bytes, |store: &Store| {
    for user in ["zoe", "Ada", "émile", "_x", "ada", "Zoe"] {
        store.token(user, &[]);
    }
    assert_eq!(listed_users(&store.run(&["user", "list", "--json"])), ["Ada", "Zoe", "_x", "ada", "zoe", "émile"]);
});

fn listed_users(output: &Output) -> Vec<String> {
    let users: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    users.iter().map(|user| user["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn users_are_listed_in_the_order_of_bytes_in_any_collation() {
    let options =
        "OWNER plantstore ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C' TEMPLATE template0";
    let node = create_database("with_icu_collation", options);
    let sorted = "SELECT string_agg(name, ' ' ORDER BY name) FROM (VALUES ('Zoe'), ('ada')) AS names (name)";
    // The collation of the database is not that of bytes.
    assert_eq!(Cluster::shared().psql("with_icu_collation", sorted), "ada Zoe");
    for user in ["zoe", "Ada", "émile", "_x", "ada", "Zoe"] {
        node.run(&["token", "create", "--create", "--user", user]);
    }
    let listed = node.command(&["user", "list", "--json"]).output().unwrap();
    assert_eq!(listed_users(&listed), ["Ada", "Zoe", "_x", "ada", "zoe", "émile"]);
}

#[test]
fn newer_schema_is_accepted_only_if_it_is_compatible() {
    let store = Store::new(Engine::Postgres);
    let node = Operator::at(store.url());
    let token = store.token("ada", &[]);
    store.execute(
        "ALTER TABLE plants ADD COLUMN planted_at bigint; ALTER TABLE users ADD COLUMN email text;
         ALTER TABLE tokens ADD COLUMN note text NOT NULL DEFAULT ''; CREATE TABLE pots (pot_id bigint PRIMARY KEY);
         INSERT INTO schema_versions VALUES (5, 1)",
    );
    for arguments in [&[][..], &["--no-migrate"]] {
        let server = node.serve(arguments);
        works(&server, &token);
        works(&server, &node.run(&["token", "create", "--user", "bob"]));
    }
    node.run(&["migrate"]);
    assert_eq!(store.rows("SELECT version FROM schema_versions ORDER BY version"), [1, 2, 3, 4, 5]);

    store.execute("ALTER TABLE plants DROP COLUMN name; INSERT INTO schema_versions VALUES (6, 6)");
    for words in [node.serve_error(&[]), node.error_of(&["token", "list"]), node.error_of(&["migrate"])] {
        let newer = "was written by a newer plantstore (schema 6, this one knows 4): use that release or a later one";
        assert_contains(&words, newer);
    }
}

/// A database of 0.2.0 is migrated with all of its data.
#[test]
fn database_of_the_previous_release_is_migrated() {
    let store = Store::new(Engine::Postgres);
    let token = store.token("ada", &[]);
    store.token("bob", &[]);
    // Later migrations only add tables and columns. Without them, the schema is that of 0.2.0, whose list versions start
    // at 1.
    store.execute(
        "DROP TABLE shares, shares_by_name, idempotency_keys; ALTER TABLE tokens DROP COLUMN created_by;
         DELETE FROM schema_versions WHERE version > 1;
         UPDATE collections SET version = 1 WHERE user_id = 1;
         INSERT INTO plants (user_id, plant_id, name, version) VALUES (1, 1, 'Rose', 1)",
    );
    assert!(Operator::at(store.url()).serve_error(&["--no-migrate"]).contains("is at version 1"));
    let server = store.serve(&[]);
    let ada = server.client(&token);
    assert_eq!(ada.ids(), [1]);
    ada.plant(2, "Fern");
    assert_eq!(ada.ids(), [1, 2]);
    store.share("ada", "bob", "reader");
    assert_eq!(store.rows("SELECT version FROM schema_versions ORDER BY version"), [1, 2, 3, 4]);
}

/// The database of 0.6.0 has two tables of shares.
#[test]
fn shares_of_the_previous_release_are_migrated() {
    let store = Store::new(Engine::Postgres);
    let tokens = ["ada", "bob", "cyd"].map(|user| store.token(user, &[]));
    store.execute(
        "ALTER TABLE shares_by_name DROP COLUMN grantee_id, DROP COLUMN declined_at;
         DELETE FROM schema_versions WHERE version > 3;
         INSERT INTO shares (grantee_id, owner_id, role, created_at) VALUES (2, 1, 'editor', 1), (3, 1, 'reader', 2);
         INSERT INTO shares_by_name (grantee_name, owner_id, role, created_at)
         VALUES ('bob', 1, 'reader', 3), ('ada', 3, 'editor', 4), ('absent', 1, 'reader', 5)",
    );
    let server = store.serve(&[]);
    let listed = Operator::at(store.url()).json(&["share", "list"]);
    let words = ["owner", "to", "role", "state"];
    let line = |share: &serde_json::Value| words.map(|word| share[word].as_str().expect("text").to_owned()).join(" ");
    let lines: Vec<String> = listed.as_array().expect("an array").iter().map(line).collect();
    let expected =
        ["ada absent reader offered", "ada bob reader accepted", "ada cyd reader accepted", "cyd ada editor accepted"];
    assert_eq!(lines, expected);
    let [ada, bob, cyd] = tokens.map(|token| server.client(&token));
    assert_eq!([&bob, &cyd].map(|client| client.get("/plants?owner=ada").status), [200; 2]);
    assert_eq!(ada.get("/plants?owner=cyd").status, 200);
}

// An upgrade first adds columns while nodes of the previous release run.
postgres_test!(running_node_keeps_serving_during_an_additive_migration, |Garden { store, ada, .. }: &Garden| {
    let (stopped, made) = (AtomicBool::new(false), AtomicI64::new(0));
    std::thread::scope(|scope| {
        let stop = StopOnDrop(&stopped);
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                let id = made.load(Ordering::Relaxed);
                ada.plant(id, "Rose");
                assert_eq!(ada.ids().len(), usize::from(id > 0) + 1);
                if id > 0 {
                    assert_eq!(ada.delete(id - 1).status, 204);
                }
                made.store(id + 1, Ordering::Relaxed);
            }
        });
        for number in 0..5 {
            let before = made.load(Ordering::Relaxed);
            for table in ["plants", "collections", "tokens", "users", "writers", "idempotency_keys"] {
                store.execute(&format!("ALTER TABLE {table} ADD COLUMN added_{number} bigint"));
            }
            wait_until("more plants", || made.load(Ordering::Relaxed) > before + 5);
        }
        drop(stop);
    });
});

#[test]
fn schema_of_another_program_is_rejected_and_unchanged() {
    let tables = [
        "CREATE TABLE plantstore.users (mine text)",
        "CREATE VIEW plantstore.plants AS SELECT 1 AS mine",
        "CREATE TABLE plantstore.schema_versions (mine text)",
        "CREATE TABLE plantstore.schema_versions (version text, oldest text)",
    ];
    for table in tables {
        let store = Store::empty(Engine::Postgres);
        store.execute(&format!("CREATE SCHEMA plantstore AUTHORIZATION plantstore; SET ROLE plantstore; {table}"));
        let words = Operator::at(store.url()).serve_error(&[]);
        assert!(words.starts_with("error: cannot use postgres://plantstore@127.0.0.1:"), "{words}");
        assert!(words.contains("its schema `plantstore` belongs to another program ("), "{words}");
        let left = "SELECT count(*) FROM pg_class WHERE relnamespace = 'plantstore'::regnamespace";
        assert_eq!(store.rows(left), [1], "{table}");
    }
}

#[test]
fn database_with_another_encoding_is_rejected() {
    let node = create_database("latin", "OWNER plantstore ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
    let words = node.serve_error(&[]);
    assert_contains(&words, "its encoding is LATIN1, which cannot store every name: create one with ENCODING 'UTF8'");
    assert_eq!(Cluster::shared().psql("latin", "SELECT count(*) FROM pg_namespace WHERE nspname = 'plantstore'"), "0");
}
