//! Connections to the database: TLS, several hosts, sockets and passwords.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use serde_json::json;

use super::{Operator, PASSWORD, error_of, succeeded, works};
use crate::access::{holds, secret_of};
use crate::support::issuer::{Issuer, SigningKey};
use crate::support::{
    CLOSED_ADDRESS, Cluster, CommandOutput, Engine, JSON, Server, Store, assert_contains, wait_until,
};
use crate::tokens::{ALL_SCOPES, created, revoke};

/// Returns the error of a command that must fail without a retry.
#[track_caller]
fn error_without_retry(operator: &Operator, arguments: &[&str]) -> String {
    let output = operator.command(arguments).output().unwrap();
    assert!(!output.stderr_text().contains("retrying"), "{}", output.stderr_text());
    error_of(&output)
}

#[test]
fn permanent_database_errors_are_reported_at_once() {
    let store = Store::empty(Engine::Postgres);
    let right = store.url();
    let database = right.rsplit('/').next().unwrap();
    let wrong = [
        (right.replace(PASSWORD, "wr0ng"), "password authentication failed for user \"plantstore\" (28P01)"),
        (right.replace("plantstore:", "stranger:"), "password authentication failed for user \"stranger\" (28P01)"),
        (right.replace(database, "no_such_one"), "database \"no_such_one\" does not exist (3D000)"),
        (right.replace(&format!(":{PASSWORD}"), ""), "password missing"),
        (format!("{right}?sslmode=require"), "server does not support TLS"),
        (format!("{right}?sslmode=verify-full&sslrootcert=missing.pem"), "cannot use the certificates in missing.pem"),
    ];
    for (url, expected) in wrong {
        let node = Operator::at(url);
        for words in [
            error_without_retry(&node, &["serve", "--listen", "127.0.0.1:0"]),
            error_without_retry(&node, &["migrate"]),
        ] {
            assert_contains(&words, expected);
            assert!(!words.contains("wr0ng"), "{words}");
        }
    }
    assert_eq!(store.rows("SELECT count(*) FROM pg_namespace WHERE nspname = 'plantstore'"), [0]);
}

#[test]
fn unreachable_database_is_retried_until_the_timeout() {
    let cluster = Cluster::shared();
    let words = Operator::at(cluster.url_at(CLOSED_ADDRESS, "plants")).serve_error(&[]);
    assert_contains(&words, "cannot connect to postgres://plantstore@127.0.0.1:");
    assert_contains(&words, "Connection refused");
}

/// Lists the encryption of the nodes' connections to this database: `t` for each encrypted one, `f` for others.
fn encrypted(cluster: &Cluster, database: &str) -> String {
    let sql = "SELECT string_agg(DISTINCT ssl::text, ' ') FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
               WHERE application_name = 'plantstore' AND datname = ";
    cluster.psql("postgres", &format!("{sql}'{database}'"))
}

/// Creates an authority that has not issued the certificate of the database.
fn another_authority(directory: &Path) -> String {
    let file = directory.join("other.crt").display().to_string();
    let arguments =
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=other -days 2 -keyout other.key";
    let made = Command::new("openssl")
        .args(arguments.split(' '))
        .args(["-out", &file])
        .current_dir(directory)
        .stderr(Stdio::null())
        .status();
    assert!(made.unwrap().success());
    file
}

#[test]
fn sslmode_of_the_url_is_enforced() {
    let cluster = Cluster::start(&["ssl=on", "listen_addresses=127.0.0.1,127.0.0.2"]);
    let database = cluster.create_database();
    let directory = tempfile::tempdir().unwrap();
    let other = another_authority(directory.path());
    let root = cluster.data_directory().join("root.crt").display().to_string();
    let url = cluster.url(&database);
    // The certificate is for 127.0.0.1.
    let elsewhere = cluster.url_at(([127, 0, 0, 2], cluster.port()).into(), &database);

    let accepted = [
        (format!("{url}?sslmode=disable"), "false"),
        (url.clone(), "true"),
        (format!("{url}?sslmode=prefer"), "true"),
        (format!("{url}?sslmode=require"), "true"),
        (format!("{url}?sslmode=require&channel_binding=require"), "true"),
        (format!("{url}?sslmode=require&sslrootcert={root}"), "true"),
        (format!("{url}?sslrootcert={root}"), "true"),
        (format!("{url}?sslmode=verify-ca&sslrootcert={root}"), "true"),
        (format!("{url}?sslmode=verify-full&sslrootcert={root}"), "true"),
        (format!("{elsewhere}?sslmode=require"), "true"),
        (format!("{elsewhere}?sslmode=verify-ca&sslrootcert={root}"), "true"),
    ];
    for (url, expected) in accepted {
        let node = Operator::at(url);
        let server = node.serve(&[]);
        works(&server, &node.run(&["token", "create", "--user", "ada"]));
        assert_eq!(encrypted(&cluster, &database), expected, "{}", node.url);
        assert_eq!(server.stop().code(), Some(0));
        wait_until("the connections to be closed", || encrypted(&cluster, &database).is_empty());
    }

    let unknown = "invalid peer certificate: UnknownIssuer";
    let rejected = [
        (format!("{url}?sslmode=require&sslrootcert={other}"), unknown),
        (format!("{url}?sslmode=verify-ca&sslrootcert={other}"), unknown),
        (format!("{url}?sslmode=verify-full&sslrootcert={other}"), unknown),
        // The system does not trust the authority of the tests.
        (format!("{url}?sslmode=verify-full"), "certificate"),
        (format!("{elsewhere}?sslmode=verify-full&sslrootcert={root}"), "certificate not valid for name \"127.0.0.2\""),
        (format!("{elsewhere}?sslrootcert={root}"), "certificate not valid for name \"127.0.0.2\""),
        (format!("{url}?sslmode=disable&channel_binding=require"), "channel binding"),
    ];
    for (url, expected) in rejected {
        let words = error_without_retry(&Operator::at(url), &["token", "list"]);
        assert_contains(&words, expected);
    }
}

/// Lets clients authenticate with this method only.
fn set_authentication(cluster: &Cluster, method: &str) {
    let rules = format!("local all postgres trust\nhost all all 127.0.0.1/32 {method}\n");
    fs::write(cluster.data_directory().join("pg_hba.conf"), rules).unwrap();
    cluster.psql("postgres", "SELECT pg_reload_conf()");
    let current = format!("SELECT count(*) FROM pg_hba_file_rules WHERE auth_method = '{method}'");
    wait_until("the rules", || cluster.psql("postgres", &current) == "1");
}

#[test]
fn password_is_sent_in_clear_text_only_over_tls_or_if_allowed() {
    let [plain, encrypted] = [&["fsync=off"][..], &["fsync=off", "ssl=on"]].map(Cluster::start);
    let root = encrypted.data_directory().join("root.crt").display().to_string();
    let [plain_url, encrypted_url] = [&plain, &encrypted].map(|cluster| cluster.url(&cluster.create_database()));
    // Before the method is changed, SCRAM works without TLS.
    Operator::at(&plain_url).run(&["migrate"]);
    for cluster in [&plain, &encrypted] {
        set_authentication(cluster, "password");
    }
    let clear = "the server asks for the password in clear text without TLS, and did not get it";
    let rejected = [
        (plain_url.clone(), clear),
        (format!("{plain_url}?sslmode=prefer"), clear),
        (format!("{plain_url}?sslrootcert={root}"), "server does not support TLS"),
    ];
    for (url, expected) in rejected {
        let node = Operator::at(url);
        for arguments in [&["serve", "--listen", "127.0.0.1:0"][..], &["migrate"], &["backup", "new.db"]] {
            let words = error_without_retry(&node, arguments);
            assert_contains(&words, expected);
        }
    }
    let accepted = [
        format!("{plain_url}?sslmode=disable"),
        encrypted_url.clone(),
        format!("{encrypted_url}?sslmode=verify-full&sslrootcert={root}"),
    ];
    for url in accepted {
        let node = Operator::at(url);
        let server = node.serve(&[]);
        works(&server, &node.run(&["token", "create", "--user", "ada"]));
    }
}

#[test]
fn database_on_another_machine_that_is_not_verified_logs_one_warning() {
    let cluster = Cluster::shared();
    let database = cluster.create_database();
    let warnings = |log: &str| log.matches("the database is not verified").count();
    // Linux connects to this machine, but the address is no loopback address.
    let elsewhere = cluster.url_at(([0, 0, 0, 0], cluster.port()).into(), &database);
    for (url, expected) in [(&elsewhere, 1), (&cluster.url(&database), 0)] {
        let node = Operator::at(url);
        let server = node.serve(&[]);
        works(&server, &node.run(&["token", "create", "--user", "ada"]));
        server.stop();
        assert_eq!(warnings(&server.log()), expected, "{}", server.log());
        let output = node.command(&["user", "list"]).output().unwrap();
        assert_eq!(warnings(&output.stderr_text()), expected, "{}", output.stderr_text());
    }
    let verified =
        Operator::at(format!("{elsewhere}?sslmode=verify-full")).command(&["user", "list"]).output().unwrap();
    assert_eq!(warnings(&verified.stderr_text()), 0, "{}", verified.stderr_text());
}

#[test]
fn writable_host_of_several_is_used() {
    let (primary, standby) = (Cluster::shared(), Cluster::start(&[]));
    let name = "on_several_hosts";
    for cluster in [primary, &standby] {
        cluster.psql("postgres", &format!("CREATE DATABASE {name} OWNER plantstore"));
    }
    // A read-only server takes the place of a standby; nothing is replicated.
    standby.psql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf()");
    wait_until("the server to be read-only", || standby.psql("postgres", "SHOW default_transaction_read_only") == "on");
    let url = |hosts: &[std::net::SocketAddr]| {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        format!("postgres://plantstore:{PASSWORD}@{}/{name}?target_session_attrs=read-write", hosts.join(","))
    };
    let urls = [
        url(&[CLOSED_ADDRESS, primary.address()]),
        url(&[standby.address(), primary.address()]),
        url(&[primary.address(), standby.address(), CLOSED_ADDRESS]),
    ];
    for url in urls {
        let node = Operator::at(url);
        let server = node.serve(&[]);
        works(&server, &node.run(&["token", "create", "--user", "ada"]));
    }
    assert_eq!(primary.psql(name, "SELECT count(*) FROM plantstore.tokens"), "3");
    let words = Operator::at(url(&[standby.address()])).serve_error(&[]);
    assert_contains(&words, "database does not allow writes");
    assert_eq!(standby.psql(name, "SELECT count(*) FROM pg_namespace WHERE nspname = 'plantstore'"), "0");
}

#[test]
fn unix_socket_is_accepted_as_host() {
    let cluster = Cluster::shared();
    let (database, directory) = (cluster.create_database(), cluster.data_directory().parent().unwrap().display());
    let node = Operator::at(format!("postgres:///{database}?host={directory}&port={}&user=postgres", cluster.port()));
    let server = node.serve(&[]);
    works(&server, &node.run(&["token", "create", "--user", "ada"]));
}

#[test]
fn password_is_read_from_the_usual_places() {
    let store = Store::new(Engine::Postgres);
    let token = store.token("ada", &[]);
    let bare = Operator::at(store.url().replace(&format!(":{PASSWORD}"), ""));
    let whole = Operator::at(store.url());
    let list = |operator: &Operator, variables: &[(&str, &str)]| {
        operator.command(&["token", "list"]).envs(variables.iter().copied()).output().unwrap()
    };
    let files = bare.store.directory();
    let write = |name: &str, mode: u32, password: &str| {
        let file = files.join(name);
        // A backslash escapes the next character.
        let escaped: String = password.chars().flat_map(|letter| ['\\', letter]).collect();
        let line = format!("# of the tests\n127.0.0.1:1:*:*:other\n127.0.0.1:*\n127.0.0.1:*:*:plantstore:{escaped}\n");
        fs::write(&file, line).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        file.display().to_string()
    };
    let (private, open) = (write("private", 0o600, PASSWORD), write("open", 0o644, PASSWORD));
    let wrong = write("wrong", 0o600, "wr0ng");

    succeeded(&list(&bare, &[("PGPASSWORD", PASSWORD)]));
    succeeded(&list(&bare, &[("PGPASSFILE", &private)]));
    succeeded(&list(&bare, &[("PGPASSWORD", PASSWORD), ("PGPASSFILE", &wrong)]));
    succeeded(&list(&whole, &[("PGPASSWORD", "wr0ng"), ("PGPASSFILE", &wrong)]));
    let rejected = [
        (list(&bare, &[]), "password missing"),
        (list(&bare, &[("PGPASSWORD", "wr0ng"), ("PGPASSFILE", &private)]), "password authentication failed"),
        (list(&bare, &[("PGPASSFILE", &wrong)]), "password authentication failed"),
        (list(&bare, &[("PGPASSFILE", &open)]), "make it private with chmod 600"),
        (list(&bare, &[("PGPASSFILE", "missing")]), "cannot read the password file missing"),
    ];
    for (output, expected) in rejected {
        let words = error_of(&output);
        assert!(words.contains(expected) && !words.contains("wr0ng"), "{words}");
    }
    write(".pgpass", 0o600, PASSWORD);
    let server = bare.serve(&[]);
    works(&server, &token);
}

#[test]
fn password_is_never_printed() {
    let store = Store::new(Engine::Postgres);
    let token = store.token("ada", &[]);
    let (url, bare) = (store.url(), store.url().replace(&format!(":{PASSWORD}"), ""));
    let by_parameter = format!("{bare}?password={PASSWORD}");
    let joined = format!("--store={url}");
    let warning = "is visible to all users of this machine";
    // The store in the environment, the arguments, and true if a warning about the arguments is expected.
    let cases: [(&str, &[&str], bool); 5] = [
        (&url, &[], false),
        (&by_parameter, &[], false),
        (&bare, &["--store", &url], true),
        (&bare, &[&joined], true),
        (&bare, &["--store", &by_parameter], true),
    ];
    for (environment, arguments, warned) in cases {
        let node = Operator::at(environment);
        let server = node.serve(&[&["--log-level", "trace"], arguments].concat());
        works(&server, &token);
        server.stop();
        assert!(server.log().contains("listening"), "{}", server.log());
        assert!(!server.log().contains(PASSWORD), "{}", server.log());
        assert_eq!(server.log().contains(warning), warned, "{}", server.log());
        let reported = node.command(&[&["token", "list"], arguments].concat()).output().unwrap().notes();
        assert!(!reported.contains(PASSWORD), "{reported}");
        assert_eq!(reported.contains(warning), warned, "{reported}");
    }
    let node = Operator::at(&bare);
    let mut command = node.command(&["serve", "--listen", "127.0.0.1:0", "--store", &bare]);
    command.env("PGPASSWORD", PASSWORD);
    let server = Server::start(command);
    works(&server, &token);
    assert!(!server.log().contains(warning), "{}", server.log());
}

/// It logs every statement with its parameters, so it has the names of plants.
#[test]
fn log_of_the_database_has_no_secrets() {
    let cluster = Cluster::start(&["log_statement=all", "log_connections=on", "log_min_error_statement=debug1"]);
    let node = Operator::at(cluster.url(&cluster.create_database()));
    let key = SigningKey::p256("e");
    let issuer = Issuer::start(&[&key]);
    let server = node.serve(&issuer.options());
    let ada = server.client(&node.run(&["token", "create", "--user", "ada", "--scope", ALL_SCOPES]));
    let (_, other) = created(&ada, &json!({"label": "window"}));
    let (id, revoked) = created(&ada, &json!({}));
    assert_eq!(revoke(&ada, id).status, 204);
    let jim = server.client(&key.token(&issuer.claims("jim")));
    let clients = [&ada, &other, &jim, &revoked];
    for (id, client) in (1..).zip(clients) {
        let body = json!({"id": id, "name": "canary-name"}).to_string();
        let key = format!("canary-key-{id}");
        client.call("POST", "/plants", &[JSON, ("Idempotency-Key", &key)], Some(body.as_bytes()));
    }
    assert_eq!(ada.ids(), [1, 2]);
    node.run(&["token", "list"]);
    server.stop();
    let log = fs::read(cluster.data_directory().parent().unwrap().join("log")).unwrap();
    for shown in ["canary-name", "connection authorized: user=plantstore", "window"] {
        assert!(holds(&log, shown), "the search finds {shown} in {}", String::from_utf8_lossy(&log));
    }
    for secret in clients.map(secret_of).into_iter().chain([PASSWORD, "canary-key"]) {
        assert!(!holds(&log, secret), "{secret} is in {}", String::from_utf8_lossy(&log));
    }
}

/// A statement that the database does not support fails on every connection, so another connection would not help.
#[test]
fn unsupported_statement_fails_without_closing_the_connection() {
    const UNSUPPORTED: &str = "
        CREATE FUNCTION plantstore.unsupported() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
          RAISE EXCEPTION 'no plan' USING ERRCODE = 'feature_not_supported';
        END $$;
        ALTER TABLE plants RENAME TO stored_plants;
        CREATE VIEW plants AS SELECT user_id, plant_id, plantstore.unsupported() AS name, tag, version FROM stored_plants;
        GRANT SELECT ON plants TO plantstore";
    let store = Store::empty(Engine::Postgres);
    let server = store.serve(&[]);
    let ada = server.client(&store.token("ada", &[]));
    ada.plant(1, "Rose");
    assert_eq!(ada.ids(), [1]);
    store.execute(UNSUPPORTED);
    for _ in 0..4 {
        assert_eq!(ada.get("/plants").error(), 50000, "{}", server.log());
    }
    store.execute("DROP VIEW plants; ALTER TABLE stored_plants RENAME TO plants");
    assert_eq!(ada.ids(), [1]);
    assert!(!server.log().contains("database connection lost"), "{}", server.log());
}

/// Queries for versions have two connections. A list that waits for its plants blocks one of them.
#[test]
fn blocked_read_does_not_hold_up_cached_lists() {
    const WAITING: &str = "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
                           WHERE NOT granted AND datname = current_database()";
    let store = Store::new(Engine::Postgres);
    let server = store.serve(&["--store-timeout", "60s", "--metrics-listen", "0"]);
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &[]));
    ada.plant(1, "Rose");
    // A connection that is opened later would wait for the lock as well.
    let readers = thread::available_parallelism().unwrap().get().max(2);
    wait_until("all connections for reads", || {
        assert_eq!(ada.get("/plants?limit=1").status, 200);
        let open = metrics.value("plantstore_database_connections", &[("role", "read")]);
        usize::try_from(open) == Ok(readers)
    });
    let held = store.hold("BEGIN; LOCK TABLE plantstore.plants IN ACCESS EXCLUSIVE MODE");
    // The token is looked up now, so that the lists do not wait for it.
    assert_eq!(ada.get("/me").status, 200);
    let (listed, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let blocked = scope.spawn(|| ada.get("/plants?limit=2").status);
        wait_until("a blocked list", || store.rows(WAITING) == [1]);
        for _ in 0..8 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    assert_eq!(ada.get("/plants?limit=1").status, 200);
                    listed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        wait_until("lists from the cache", || listed.load(Ordering::Relaxed) >= 100);
        ended.store(true, Ordering::Relaxed);
        drop(held);
        assert_eq!(blocked.join().expect("a status"), 200);
    });
}
