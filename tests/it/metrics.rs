//! Metrics: correct counts, no user names, and a separate listener.

mod listener;

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;

use rstest::rstest;

use crate::support::http2::Http2;
use crate::support::issuer::{Issuer, SigningKey, now};
use crate::support::{
    Cluster, Connection, Engine, Garden, JSON, Scrape, Server, Service, Store, engine_test, postgres_test,
    retry_while_unavailable, sqlite_test, wait_until,
};

pub(crate) const LISTEN: [&str; 2] = ["--metrics-listen", "0"];

engine_test!(counters_match_the_requests, &LISTEN, |Garden { store, server, ada }: &Garden| {
    let metrics = server.metrics();
    let start = metrics.scrape();
    assert_eq!(start.value("plantstore_http_requests_total", &[]), 0, "{}", start.text);
    for number in ["50000", "50300", "50301", "50700"] {
        let line = format!("plantstore_http_errors_total{{code=\"{number}\"}} 0\n");
        assert!(
            start.text.contains(&line),
            "counters start at 0, so that the first error is an increase: {}",
            start.text
        );
    }
    ada.plant(1, "Rose");
    ada.plant(2, "Tulip");
    assert_eq!(ada.post(r#"{"id":2,"name":"again"}"#).status, 409);
    assert_eq!(ada.delete(2).status, 204);
    assert_eq!(ada.delete(2).status, 404);
    assert_eq!(ada.call("HEAD", "/plants", &[], None).status, 200);
    assert_eq!(ada.get("/plants").text(), r#"[{"name":"Rose"}]"#);
    assert_eq!(ada.get("/plants?limit=x").status, 400);
    assert_eq!(ada.call("BREW", "/teapot", &[], None).status, 404);
    assert_eq!(server.anonymous().get("/plants").status, 401);
    assert_eq!(server.anonymous().get("/livez").status, 200);
    let mut broken = Connection::open(server.address());
    assert_eq!(broken.ask("nonsense\r\n\r\n").status, 400);
    metrics.wait_for("plantstore_http_requests_total", &[], 11);
    metrics.wait_for("plantstore_http_connections_aborted_total", &[("reason", "malformed")], 1);
    let scrape = metrics.scrape();
    let requests = |method, route, status| {
        scrape.value("plantstore_http_requests_total", &[("method", method), ("route", route), ("status", status)])
    };
    let expected = [
        ("POST", "/plants", "200", 2),
        ("POST", "/plants", "409", 1),
        ("DELETE", "/plants/{id}", "204", 1),
        ("DELETE", "/plants/{id}", "404", 1),
        ("HEAD", "/plants", "200", 1),
        ("GET", "/plants", "200", 1),
        ("GET", "/plants", "400", 1),
        ("_OTHER", "-", "404", 1),
        ("GET", "/plants", "401", 1),
        ("GET", "/livez", "200", 1),
    ];
    for (method, route, status, count) in expected {
        assert_eq!(requests(method, route, status), count, "{method} {route} {status}: {}", scrape.text);
    }
    let is = |name: &str, labels: &[(&str, &str)], expected: i64| {
        let found = scrape.value(name, labels);
        assert_eq!(found, expected, "{name} {labels:?} is {found}, not {expected}: {}", scrape.text);
    };
    is("plantstore_http_request_duration_seconds_count", &[], 11);
    is("plantstore_http_request_duration_seconds_count", &[("method", "POST"), ("route", "/plants")], 3);
    for (number, count) in [("40900", 1), ("40400", 1), ("40004", 1), ("40401", 1), ("40100", 1)] {
        is("plantstore_http_errors_total", &[("code", number)], count);
    }
    is("plantstore_http_connections_accepted_total", &[], 12);
    is("plantstore_http_connections_aborted_total", &[("reason", "malformed")], 1);
    is("plantstore_http_responses_incomplete_total", &[], 0);
    is("plantstore_requests_shed_total", &[], 0);
    is("plantstore_commits_total", &[("outcome", "failed")], 0);
    is("plantstore_store_up", &[], 1);
    is("plantstore_draining", &[], 0);
    // One commit for each write. With one engine, storing the last use of the token is another commit.
    let commits = scrape.value("plantstore_commits_total", &[("outcome", "ok")]);
    assert!((5..=6).contains(&commits), "{}", scrape.text);
    is("plantstore_commit_duration_seconds_count", &[], commits);
    is("plantstore_write_batch_size_count", &[], commits);
    assert!(scrape.value("plantstore_http_response_bytes_total", &[]) > 100);
    let engine = match store.engine {
        Engine::Sqlite => "sqlite",
        Engine::Postgres => "postgres",
    };
    is("plantstore_store_info", &[("engine", engine)], 1);
    is("plantstore_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    assert!(scrape.value("process_resident_memory_bytes", &[]) > 1_000_000);
    assert!(scrape.value("process_open_fds", &[]) > 3);
});

engine_test!(requests_over_http2_are_counted, &LISTEN, |Garden { server, ada, .. }: &Garden| {
    let metrics = server.metrics();
    let mut connection = Http2::open(ada);
    let too_large = [("X-Filler", &*"x".repeat(16_384))];
    let created = connection.call("POST", "/plants", &[JSON], Some(br#"{"id":1,"name":"Rose"}"#));
    let listed = connection.get("/plants");
    let rejected = connection.call("GET", "/plants", &too_large, None);
    assert_eq!((created.status, listed.status, rejected.error()), (200, 200, 43100));
    for (headers, whole) in [(&[][..], &listed), (&too_large[..], &rejected)] {
        let head = connection.call("HEAD", "/plants", headers, None);
        let length = whole.body.len().to_string();
        assert_eq!((head.status, head.header("content-length"), head.text()), (whole.status, Some(&*length), ""));
    }
    assert_eq!(connection.call("HEAD", "/nothing", &[], None).status, 404);
    assert_eq!(connection.call("DELETE", "/plants/1", &[], None).status, 204);
    metrics.wait_for("plantstore_http_requests_total", &[], 7);
    let scrape = metrics.scrape();
    let is = |name: &str, labels: &[(&str, &str)], expected: usize| {
        let found = scrape.value(name, labels);
        assert_eq!(usize::try_from(found), Ok(expected), "{name} {labels:?}: {}", scrape.text);
    };
    let expected = [
        ("POST", "/plants", "200"),
        ("GET", "/plants", "200"),
        ("GET", "/plants", "431"),
        ("HEAD", "/plants", "200"),
        ("HEAD", "/plants", "431"),
        ("HEAD", "-", "404"),
        ("DELETE", "/plants/{id}", "204"),
    ];
    for (method, route, status) in expected {
        is("plantstore_http_requests_total", &[("method", method), ("route", route), ("status", status)], 1);
    }
    is("plantstore_http_request_duration_seconds_count", &[], 7);
    is("plantstore_http_request_duration_seconds_count", &[("method", "HEAD"), ("route", "/plants")], 2);
    is("plantstore_http_errors_total", &[("code", "43100")], 2);
    is("plantstore_http_errors_total", &[("code", "40401")], 1);
    is("plantstore_http_responses_incomplete_total", &[], 0);
    is(
        "plantstore_http_response_bytes_total",
        &[],
        [created, listed, rejected].iter().map(|response| response.body.len()).sum(),
    );
    is("plantstore_http_connections_accepted_total", &[], 1);
});

engine_test!(writes_that_share_a_commit_are_one_batch, &LISTEN, |Garden { store, server, ada }: &Garden| {
    let metrics = server.metrics();
    ada.plant(0, "first");
    store.wait_for_stored_token_use();
    let before = metrics.scrape();
    let held = store.hold_writes();
    thread::scope(|scope| {
        let write = |id: i64| {
            scope.spawn(move || ada.plant(id, "n"));
        };
        write(1);
        // The first write is with the writer; the others wait in the queue.
        let name = "plantstore_http_requests_in_flight";
        metrics.wait_for(name, &[], 1);
        metrics.wait_for("plantstore_write_queue_depth", &[], 0);
        (2..=9).for_each(write);
        metrics.wait_for("plantstore_write_queue_depth", &[], 8);
        metrics.wait_for(name, &[], 9);
        let scrape = metrics.scrape();
        assert_eq!(scrape.value("plantstore_http_connections", &[]), 9, "{}", scrape.text);
        drop(held);
    });
    metrics.wait_for("plantstore_http_requests_in_flight", &[], 0);
    metrics.wait_for("plantstore_http_connections", &[], 0);
    let after = metrics.scrape();
    let more = |name, labels: &[(&str, &str)]| after.value(name, labels) - before.value(name, labels);
    assert_eq!(more("plantstore_write_batch_size_sum", &[]), 9, "{}", after.text);
    assert_eq!(more("plantstore_write_batch_size_count", &[]), 2, "{}", after.text);
    assert_eq!(more("plantstore_write_batch_size_bucket", &[("le", "1.0")]), 1, "{}", after.text);
    assert_eq!(more("plantstore_write_batch_size_bucket", &[("le", "4.0")]), 1, "{}", after.text);
    assert_eq!(more("plantstore_write_batch_size_bucket", &[("le", "8.0")]), 2, "{}", after.text);
});

engine_test!(rejected_requests_are_counted_by_reason, |store: &Store| {
    let options =
        ["--rate-limit", "3/h", "--auth-failure-burst", "2", "--auth-failure-rate", "1", "--max-connections", "4"];
    let server = store.serve(&[&LISTEN[..], &options].concat());
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &[]));
    let statuses: Vec<u16> = (0..5).map(|_| ada.get("/plants").status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    metrics.wait_for("plantstore_requests_rate_limited_total", &[("limit", "user")], 2);
    assert_eq!(metrics.value("plantstore_token_cache_lookups_total", &[]), 5);
    let wrong = server.client("nonsense");
    let statuses: BTreeSet<u16> = (0..4).map(|_| wrong.get("/plants").status).collect();
    assert_eq!(statuses, BTreeSet::from([401, 429]));
    metrics.wait_for("plantstore_http_requests_total", &[], 9);
    let scrape = metrics.scrape();
    let failures = scrape.value("plantstore_auth_failures_total", &[]);
    let limited = scrape.value("plantstore_requests_rate_limited_total", &[("limit", "auth_failures")]);
    assert!(failures >= 2 && limited >= 1 && failures + limited == 4, "{}", scrape.text);
    metrics.wait_for("plantstore_http_connections", &[], 0);
    let open: Vec<Connection> = (0..4).map(|_| Connection::open(server.address())).collect();
    metrics.wait_for("plantstore_http_connections", &[], 4);
    assert_eq!(Connection::open(server.address()).read_response(false).status, 503);
    metrics.wait_for("plantstore_http_connections_rejected_total", &[], 1);
    drop(open);
    metrics.wait_for("plantstore_http_connections", &[], 0);
});

engine_test!(writes_without_capacity_are_counted_as_shed, |store: &Store| {
    let limits = ["--write-queue", "1"];
    let server = store.serve(&[&LISTEN[..], &limits].concat());
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &[]));
    // Storing the last use of the token takes the only place in the queue for a moment.
    assert_eq!(ada.ids(), [0_i64; 0]);
    store.wait_for_stored_token_use();
    let held = store.hold_writes();
    thread::scope(|scope| {
        scope.spawn(|| ada.plant(1, "with the writer"));
        metrics.wait_for("plantstore_http_requests_in_flight", &[], 1);
        metrics.wait_for("plantstore_write_queue_depth", &[], 0);
        scope.spawn(|| ada.plant(2, "in the queue"));
        metrics.wait_for("plantstore_write_queue_depth", &[], 1);
        assert_eq!(ada.post(r#"{"id":3,"name":"n"}"#).error(), 50300);
        metrics.wait_for("plantstore_requests_shed_total", &[("kind", "write")], 1);
        assert_eq!(metrics.value("plantstore_requests_shed_total", &[("kind", "read")]), 0);
        drop(held);
    });
    metrics.wait_for("plantstore_write_queue_depth", &[], 0);
});

engine_test!(metrics_name_no_user_and_no_secret, &LISTEN, |Service { store, server }: &Service| {
    let metrics = server.metrics();
    let token = store.token("wilhelmina", &[]);
    let client = server.client(&token);
    client.plant(98_765, "a secret name");
    client.get("/plants?limit=1&secret=1");
    client.get("/a/secret/path");
    client.call("SECRET", "/plants", &[("X-Request-Id", "secret"), ("traceparent", "secret")], None);
    client.call("DELETE", "/plants/98765", &[("Idempotency-Key", "secret")], None);
    metrics.wait_for("plantstore_http_requests_total", &[], 5);
    let text = metrics.scrape().text;
    for hidden in ["wilhelmina", "secret", "SECRET", "98765", "pst_", &token] {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }
});

engine_test!(cached_list_is_counted_as_a_hit, &LISTEN, |Garden { store, server, ada }: &Garden| {
    let metrics = server.metrics();
    ada.plant(1, "Rose");
    store.wait_for_stored_token_use();
    let lookups = |result| metrics.value("plantstore_list_cache_lookups_total", &[("result", result)]);
    // The version of the list may not be cached for the first requests.
    wait_until("a list from the cache", || {
        ada.get("/plants");
        lookups("hit") == 1
    });
    let misses = lookups("miss");
    for _ in 0..5 {
        ada.get("/plants");
    }
    assert!((lookups("hit"), lookups("miss")) == (6, misses));
    assert!(metrics.value("plantstore_list_cache_bytes", &[]) > 0);
    ada.plant(2, "Tulip");
    wait_until("the new list from the cache", || {
        ada.get("/plants");
        lookups("hit") == 7
    });
    assert!(lookups("miss") > misses);
});

engine_test!(changed_list_leaves_the_cache_even_if_it_is_now_too_long, |store: &Store| {
    let server = store.serve(&LISTEN);
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &[]));
    let cached = || metrics.value("plantstore_list_cache_bytes", &[]);
    ada.plant(0, "Rose");
    assert_eq!(ada.ids(), [0]);
    assert!(cached() > 0);
    store.insert_plants(10_000, "Fern ");
    ada.plant(-1, "Iris");
    assert_eq!(ada.ids().len(), 10_002);
    assert_eq!(cached(), 0);
});

engine_test!(long_lists_of_several_users_are_cached_together, &LISTEN, |Garden { store, server, ada }: &Garden| {
    let metrics = server.metrics();
    let bob = server.client(&store.token("bob", &[]));
    for client in [ada, &bob] {
        (1..=20).for_each(|id| client.plant(id, &"x".repeat(1_000)));
    }
    wait_until("both lists in the cache", || {
        assert_eq!([ada, &bob].map(|client| client.ids().len()), [20, 20]);
        metrics.value("plantstore_list_cache_bytes", &[]) > 40_000
    });
});

sqlite_test!(wal_size_is_reported, &LISTEN, |Garden { store, server, ada }: &Garden| {
    let metrics = server.metrics();
    let mut connection = ada.connect();
    let (mut largest, mut checkpoints, mut pending) = (0, 0, 0);
    for id in 0..4_000 {
        let body = serde_json::json!({ "id": id * 1_000_003 % 7_919, "name": "x".repeat(1_000) }).to_string();
        assert_eq!(connection.ask(ada.bytes("POST", "/plants", &[JSON], Some(body.as_bytes()))).status, 200);
        if id % 50 == 49 {
            let scrape = metrics.scrape();
            let wal = scrape.value("plantstore_wal_bytes", &[]);
            checkpoints = scrape.value("plantstore_checkpoint_duration_seconds_count", &[("mode", "passive")]);
            pending = scrape.value("plantstore_wal_pending_bytes", &[]);
            assert!(pending <= wal, "{}", scrape.text);
            largest = largest.max(wal);
        }
        if checkpoints > 0 {
            break;
        }
    }
    assert!(checkpoints > 0);
    let file = std::fs::metadata(store.file().with_extension("db-wal")).unwrap().len();
    assert!(largest > 1_000_000 && largest.unsigned_abs() <= file, "{largest} {file}");
    assert!(pending < largest, "pages that are already in the database file are not pending: {pending} {largest}");
});

#[rstest]
#[case::requires_postgres()]
fn unreachable_database_is_reported() {
    let cluster = Cluster::start(&[]);
    let store = Store::on(&cluster);
    let server = store.serve(&[&LISTEN[..], &["--store-timeout", "5s"]].concat());
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &[]));
    assert_eq!(retry_while_unavailable(|| ada.post(r#"{"id":1,"name":"Rose"}"#)).status, 200);
    metrics.wait_for("plantstore_store_up", &[], 1);
    let open = |role| metrics.value("plantstore_database_connections", &[("role", role)]);
    // On Citus there is a writer for each worker.
    assert!(open("read") >= 1 && open("write") >= 1);
    assert!(metrics.value("plantstore_database_query_duration_seconds_count", &[]) >= 1);
    cluster.stop();
    metrics.wait_for("plantstore_store_up", &[], 0);
    metrics.wait_for("plantstore_database_connections", &[], 0);
    assert_eq!(ada.post(r#"{"id":2,"name":"n"}"#).error(), 50300);
    metrics.wait_for("plantstore_http_errors_total", &[("code", "50300")], 1);
    wait_until("failed connection attempts", || {
        metrics.value("plantstore_database_connection_failures_total", &[("role", "write")]) >= 1
    });
    cluster.restart();
    metrics.wait_for("plantstore_store_up", &[], 1);
    wait_until("the store to be available", || ada.post(r#"{"id":3,"name":"n"}"#).status != 503);
    assert!(metrics.value("plantstore_database_connections_opened_total", &[("role", "write")]) >= 2);
}

#[test]
fn key_fetches_of_an_issuer_are_reported() {
    let key = SigningKey::ed25519("key");
    let mut issuer = Issuer::start(&[&key]);
    let store = Store::new(Engine::Sqlite);
    let server = store.serve(&[&LISTEN[..], &issuer.options()].concat());
    let metrics = server.metrics();
    let fetches = |outcome| metrics.value("plantstore_oidc_key_fetches_total", &[("outcome", outcome)]);
    wait_until("a successful fetch", || fetches("ok") >= 1);
    let last = metrics.value("plantstore_oidc_keys_last_fetch_timestamp_seconds", &[]);
    #[expect(clippy::cast_possible_truncation, reason = "seconds of this century")]
    let now = now() as i64;
    assert!((now - 120..=now).contains(&last), "{last} is not now, {now}");
    issuer.server.stop();
    // A token with an unknown key id makes the service fetch the keys.
    let other = SigningKey::ed25519("another key");
    wait_until("a fetch that fails", || {
        server.client(&other.token(&issuer.claims("ada"))).get("/plants");
        fetches("failed") >= 1
    });
    assert!(metrics.value("plantstore_oidc_keys_last_fetch_timestamp_seconds", &[]) >= last);
}

/// A timestamp of 0 would mean that keys were fetched in 1970.
#[test]
fn keys_that_were_never_fetched_have_no_timestamp() {
    let mut issuer = Issuer::start(&[&SigningKey::ed25519("key")]);
    issuer.server.stop();
    let store = Store::new(Engine::Sqlite);
    let server = store.serve(&[&LISTEN[..], &issuer.options()].concat());
    let metrics = server.metrics();
    let fetches = |outcome| metrics.value("plantstore_oidc_key_fetches_total", &[("outcome", outcome)]);
    wait_until("a fetch that fails", || fetches("failed") >= 1);
    let scrape = metrics.scrape();
    assert!(!scrape.text.contains("plantstore_oidc_keys_last_fetch_timestamp_seconds"), "{}", scrape.text);
}

// The start time is that of the process, before the program is loaded.
sqlite_test!(process_start_time_is_correct, |store: &Store| {
    let wrapper = ["sh", "-c", "date +%s.%N > begun && exec \"$@\"", "sh"];
    let earliest = now();
    let server = store.serve_through(&wrapper, &LISTEN);
    let begun: f64 = std::fs::read_to_string(store.directory().join("begun")).unwrap().trim_end().parse().unwrap();
    let scrape = server.metrics().scrape();
    let started = scrape.samples.iter().find(|sample| sample.name == "process_start_time_seconds").unwrap().value;
    // The kernel reports its own start in whole seconds.
    assert!((earliest - 2.0..=begun).contains(&started), "{earliest}, {started}, {begun}");
});

sqlite_test!(dropped_log_lines_are_counted, |store: &Store| {
    let options = ["--no-first-token", "--log-level", "debug", "--metrics-listen", "0"];
    let server = Server::start_unread(store.command(&[&["serve", "--listen", "127.0.0.1:0"], &options[..]].concat()));
    let metrics = server.metrics();
    let client = server.anonymous();
    let request = client.bytes("GET", "/livez", &[("X-Request-Id", &"x".repeat(128))], None);
    let batch = request.repeat(100);
    wait_until("dropped log lines", || {
        let mut connection = client.connect();
        for _ in 0..20 {
            connection.send(&batch);
            (0..100).for_each(|_| assert_eq!(connection.read_response(false).status, 200));
        }
        metrics.value("plantstore_log_lines_dropped_total", &[]) > 0
    });
});

#[test]
fn every_page_is_well_formed() {
    // The parser of the tests must reject malformed pages.
    let whole = "# HELP a Text.\n# TYPE a counter\na_total{x=\"1\"} 1\n# EOF\n";
    Scrape::parse(whole);
    for broken in [
        whole.replace("# EOF\n", ""),
        whole.replace("_total", ""),
        whole.replace("a_total", "b_total"),
        whole.replace("} 1", "} x"),
        whole.replace("# EOF\n", "a_total{x=\"1\"} 2\n# EOF\n"),
        whole.replace("# EOF\n", "# TYPE a counter\n# EOF\n"),
    ] {
        let outcome = std::panic::catch_unwind(|| drop(Scrape::parse(&broken)));
        assert!(outcome.is_err(), "{broken}");
    }
}

// Only with PostgreSQL do lists wait for a slot; the embedded store reads them immediately.
postgres_test!(lists_without_a_slot_are_rejected_and_counted_as_shed, |store: &Store| {
    let limits = ["--max-in-flight", "1", "--max-waiting", "1", "--waiting-timeout", "30s"];
    let server = store.serve(&[&LISTEN[..], &limits].concat());
    let metrics = server.metrics();
    let [first, ada] = [(); 2].map(|()| server.client(&store.token("ada", &[])));
    first.plant(0, "first");
    let held = store.hold("BEGIN; LOCK TABLE plantstore.plants");
    assert_eq!(ada.get("/me").status, 200);
    // Sent concurrently, before the cached token expires: a token lookup needs a connection, and lists block them all.
    let (sender, statuses) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..4 {
            let (ada, sender) = (&ada, sender.clone());
            scope.spawn(move || sender.send(ada.get("/plants").status).expect("a receiver"));
        }
        let rejected: Vec<_> = statuses.iter().take(2).collect();
        drop(held);
        let listed: Vec<_> = statuses.iter().take(2).collect();
        assert_eq!((rejected, listed), (vec![503; 2], vec![200; 2]));
    });
    metrics.wait_for("plantstore_requests_shed_total", &[("kind", "read")], 2);
    metrics.wait_for("plantstore_reads_waiting", &[], 0);
    metrics.wait_for("plantstore_reads_in_flight", &[], 0);
});

/// The first two statements may have one request each. The others wait for a statement, and share the next.
#[rstest]
#[case::requires_postgres()]
fn concurrent_requests_for_an_unchanged_list_share_queries() {
    const LISTS: i64 = 200;
    let store = Store::new(Engine::Postgres);
    let server = store.serve(&[&LISTEN[..], &["--store-timeout", "60s"]].concat());
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &[]));
    ada.plant(1, "Rose");
    assert_eq!(ada.get("/plants").status, 200);
    let queries = || metrics.value("plantstore_database_query_duration_seconds_count", &[]);
    let before = queries();
    let held = store.hold_versions("ACCESS EXCLUSIVE MODE");
    // The token is looked up now, so that the lists do not wait for it.
    assert_eq!(ada.get("/me").status, 200);
    thread::scope(|scope| {
        let lists: Vec<_> = (0..LISTS).map(|_| scope.spawn(|| ada.get("/plants").status)).collect();
        metrics.wait_for("plantstore_reads_in_flight", &[], LISTS);
        drop(held);
        for list in lists {
            assert_eq!(list.join().expect("a status"), 200);
        }
    });
    metrics.wait_for("plantstore_list_cache_lookups_total", &[("result", "hit")], LISTS);
    // Scrapes and look-ups of the token are queries, too.
    let sent = queries() - before;
    assert!(sent < LISTS, "{sent} queries");
}
