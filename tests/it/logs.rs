//! The log: one line for each request, and no secrets.

use serde_json::Value;

use crate::support::{Connection, Server, Store, engine_test, sqlite_test, wait_for};

// No process reads the log, and its pipe is full: the server continues, also after errors, and stops on a signal.
engine_test!(log_that_is_not_read_does_not_block_the_service, |store: &Store| {
    let token = store.token("ada", &[]);
    let server = Server::start_unread(store.command(&["serve", "--listen", "127.0.0.1:0", "--log-level", "trace"]));
    let ada = server.client(&token);
    let mut connection = ada.connect();
    // The log is several times larger than the buffer of the pipe.
    for _ in 0..2_000 {
        assert_eq!(connection.ask(ada.bytes("GET", "/plants", &[], None)).status, 200);
    }
    store.execute("ALTER TABLE plants RENAME TO gone");
    for limit in 1..=20 {
        // None of these lists is in the cache.
        assert_eq!(ada.get(&format!("/plants?limit={limit}")).error(), 50000);
        assert_eq!(ada.post(r#"{"id":1,"name":"n"}"#).error(), 50000);
    }
    store.execute("ALTER TABLE gone RENAME TO plants");
    ada.plant(1, "Rose");
    assert_eq!(ada.ids(), [1]);
    assert_eq!(server.stop().code(), Some(0));
});

engine_test!(every_request_is_one_line, |store: &Store| {
    let server = store.serve(&["--log-level", "debug", "--metrics-listen", "0"]);
    let ada = server.client(&store.token("ada", &[]));
    let scraped = server.metrics();
    // Successful probes, scrapes and files of the console are details; their errors are not.
    let cases = [
        ("GET", "/plants?limit=1", "/plants", 200_u16, true, "INFO"),
        ("DELETE", "/plants/5", "/plants/{id}", 404, true, "INFO"),
        ("GET", "/livez", "/livez", 200, false, "DEBUG"),
        ("GET", "/", "/", 200, false, "DEBUG"),
        ("GET", "/console/app.js", "/console/{file}", 200, false, "DEBUG"),
        ("GET", "/console/nothing.js", "/console/{file}", 404, true, "INFO"),
        ("GET", "/openapi.json", "/openapi.json", 200, false, "INFO"),
        ("PUT", "/somewhere/else", "-", 404, true, "INFO"),
        ("GET", "/metrics", "/metrics", 200, false, "DEBUG"),
    ];
    for (number, (method, path, route, status, known, level)) in cases.into_iter().enumerate() {
        let client = if path == "/metrics" { scraped.client() } else { &ada };
        let id = format!("case-{number}");
        assert_eq!(client.call(method, path, &[("X-Request-Id", &id)], None).status, status);
        let line = wait_for("the log line of the request", || {
            server
                .log()
                .lines()
                .find(|line| line.contains(&id))
                .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        });
        assert_eq!(
            (&line["message"], &line["request_id"], &line["method"], &line["route"], &line["status"]),
            (&"request".into(), &id.clone().into(), &method.into(), &route.into(), &status.into())
        );
        assert!(line["duration_us"].is_u64() && line["time"].is_string() && line["level"] == level, "{line}");
        assert_eq!(
            line["error"].as_i64().map(|number| number / 100),
            (status >= 400).then_some(status.into()),
            "{line}"
        );
        let (user, token) = if known { ("ada".into(), 1.into()) } else { (Value::Null, Value::Null) };
        assert_eq!((&line["user"], &line["token_id"]), (&user, &token), "{line}");
        assert_eq!(server.log().lines().filter(|line| line.contains(&id)).count(), 1);
    }
});

sqlite_test!(requests_are_logged_with_the_label_of_their_route, |store: &Store| {
    let server = store.serve(&[]);
    for (path, label) in [
        ("/plants/", "-"),
        ("/plants/1/2", "-"),
        ("/plants/x", "/plants/{id}"),
        ("/tokens/1", "/tokens/{id}"),
        ("/shares/ada", "/shares/{user}"),
        ("/shares/received", "/shares/{user}"),
        ("/shares/received/ada", "/shares/received/{owner}"),
        ("/docs/", "/docs"),
        ("/docs/page.css", "/docs/{file}"),
        ("/console/app.js", "/console/{file}"),
        ("/console/a/b", "-"),
        ("/nothing", "-"),
    ] {
        let id = format!("at{}", path.replace('/', ":"));
        // Rejected, so that it is logged whatever it asks for.
        assert_eq!(server.anonymous().call("POST", path, &[("X-Request-Id", &id)], None).error(), 40100);
        let field = format!(r#""request_id":"{id}""#);
        let line = wait_for("its line", || server.log().lines().find(|line| line.contains(&field)).map(str::to_owned));
        assert!(line.contains(&format!(r#""route":"{label}""#)), "{path}: {line}");
    }
});

engine_test!(secrets_reach_neither_the_log_at_any_level_nor_the_metrics, |store: &Store| {
    let server = store.serve(&["--log-level", "trace", "--metrics-listen", "127.0.0.1:0"]);
    let token = store.token("ada", &[]);
    let ada = server.client(&token);
    let secret_body = r#"{"id":1,"name":"a secret name","tag":"a secret tag"}"#;
    let json = ("Content-Type", "application/json");
    assert_eq!(
        ada.call("POST", "/plants", &[json, ("X-Odd", "secret-header")], Some(secret_body.as_bytes())).status,
        200
    );
    assert_eq!(ada.post(secret_body).status, 409);
    assert_eq!(ada.post(r#"{"id":1,"name":"a secret name","#).status, 400);
    assert_eq!(ada.get("/plants").status, 200);
    assert_eq!(ada.get(&format!("/plants?token={token}&limit=secret-limit")).status, 400);
    let wrong = format!("{}{}", &token[..41], if token.ends_with('x') { 'y' } else { 'x' });
    assert_eq!(server.client(&wrong).get("/plants").status, 401);
    assert_eq!(
        ada.call("GET", "/plants", &[("Cookie", "secret-cookie"), ("X-Request-Id", "secret id")], None).status,
        200
    );
    let mut broken = Connection::open(server.address());
    let invalid = format!("GET /secret-path HTTP/1.1\r\nAuthorization: Bearer {token}\r\nsecret header\r\n\r\n");
    assert_eq!(broken.ask(invalid).status, 400);
    let metrics = server.metrics().scrape().text;
    server.stop();
    // The metrics must not have them, either.
    let log = server.log() + &metrics;
    assert!(log.lines().filter(|line| line.contains(r#""message":"request""#)).count() >= 7, "{log}");
    assert!(!log.contains("pst_") && !log.contains(&token[4..12]), "{log}");
    assert!(!log.contains("secret"), "{log}");
});

engine_test!(log_level_and_format_are_options, |store: &Store| {
    let quiet = store.serve(&["--log-level", "warn"]);
    quiet.anonymous().get("/openapi.json");
    quiet.stop();
    assert_eq!(quiet.log(), "");
    let human = store.serve(&["--log-format", "human"]);
    human.anonymous().call("GET", "/openapi.json", &[("X-Request-Id", "seen-by-people")], None);
    human.stop();
    let log = human.log();
    let line = log.lines().find(|line| line.contains("seen-by-people")).expect("the log line of the request");
    assert!(line.contains(" INFO request request_id=\"seen-by-people\"") && line.contains("status=200"), "{line}");
});
