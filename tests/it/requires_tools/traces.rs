//! Traces: a client's trace is continued, spans are exported, and a failing collector affects no request.

mod variables;

use std::net::TcpStream;
use std::process::{Child, Stdio};

use rstest::rstest;
use serde_json::{Value, json};

use crate::access::{holds, secret_of};
use crate::support::collector::Collector;
use crate::support::http2::Http2;
use crate::support::issuer::{Authority, Issuer, SigningKey};
use crate::support::tools::python_tool;
use crate::support::{
    CommandOutput, Engine, Garden, JSON, Server, Service, Store, engine_test, free_port, sqlite_test, wait_for,
    wait_until,
};
use crate::tokens::{created, manager};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn line(server: &Server, id: &str) -> Value {
    let mark = format!(r#""request_id":"{id}""#);
    wait_for("the log line of the request", || {
        let log = server.log();
        log.lines().find(|line| line.contains(&mark)).map(|line| serde_json::from_str(line).expect("JSON"))
    })
}

engine_test!(request_is_a_span_of_the_clients_trace, |store: &Store| {
    let collector = Collector::start();
    let server = store.serve(&["--otlp-endpoint", &collector.url()]);
    let ada = server.client(&store.token("ada", &[]));
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let id = |id| ("X-Request-Id", id);
    let body = br#"{"id":1,"name":"Rose"}"#;
    let headers =
        [JSON, id("create"), ("traceparent", &parent), ("tracestate", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")];
    assert_eq!(ada.call("POST", "/plants", &headers, Some(body)).status, 200);
    let (span, children) = collector.wait_for_request("create");
    assert_eq!((span.text("traceId"), span.text("parentSpanId"), span.text("name")), (TRACE, SPAN, "POST /plants"));
    assert_eq!(span.text("traceState"), "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
    assert_eq!((&span.0["kind"], &span.0["flags"]), (&2.into(), &0x301.into()));
    assert!(span.0["status"]["code"].is_null());
    assert!(collector.requests().iter().all(|request| request.head.starts_with("POST /v1/traces HTTP/1.1\r\n")));
    let attributes = span.attributes();
    let attribute = |name: &str| attributes.get(name).map(String::as_str);
    assert_eq!(attribute("http.request.method"), Some("POST"));
    assert_eq!(attribute("http.route"), Some("/plants"));
    assert_eq!(attribute("http.response.status_code"), Some("200"));
    assert_eq!(attribute("network.protocol.version"), Some("1.1"));
    assert_eq!(attribute("user.id"), Some("1"));
    assert_eq!(attribute("error.type"), None);
    let time = |span: &crate::support::collector::Span, field: &str| span.text(field).parse::<u64>().expect("a time");
    let (begun, ended) = (time(&span, "startTimeUnixNano"), time(&span, "endTimeUnixNano"));
    assert!(begun > 1_600_000_000_000_000_000 && begun < ended);
    for name in ["authenticate", "read", "wait for the writer", "commit"] {
        let child = children.iter().find(|child| child.text("name") == name);
        let child = child.unwrap_or_else(|| panic!("{name} is not among {children:?}"));
        assert_eq!((child.text("traceId"), &child.0["kind"]), (TRACE, &1.into()));
        let (from, to) = (time(child, "startTimeUnixNano"), time(child, "endTimeUnixNano"));
        assert!(begun <= from && from <= to && to <= ended, "{name} is within its request");
    }
    assert_eq!(line(&server, "create")["trace_id"], TRACE);

    assert_eq!(ada.call("DELETE", "/plants/7", &[id("missing")], None).status, 404);
    let (span, _) = collector.wait_for_request("missing");
    assert_ne!(span.text("traceId"), TRACE, "a request without a parent starts a new trace");
    assert_eq!((span.text("parentSpanId"), span.text("name")), ("", "DELETE /plants/{id}"));
    assert_eq!(line(&server, "missing")["trace_id"], span.text("traceId"));
    assert!(span.0["status"]["code"].is_null(), "a 4xx response is no error of the span");
    assert_eq!(span.attributes().get("plantstore.error_code").map(String::as_str), Some("40400"));

    let manager = server.client(&store.token("ada", &["--scope", "plants:read,shares:manage"]));
    assert_eq!(manager.call("PUT", "/shares/ben", &[JSON, id("share")], Some(br#"{"role":"reader"}"#)).status, 204);
    assert_eq!(collector.wait_for_request("share").0.text("name"), "PUT /shares/{user}");

    store.execute("ALTER TABLE plants RENAME TO gone");
    assert_eq!(ada.call("GET", "/plants", &[id("broken")], None).status, 500);
    let (span, _) = collector.wait_for_request("broken");
    assert_eq!(span.0["status"]["code"], 2);
    assert_eq!(span.attributes().get("error.type").map(String::as_str), Some("50000"));
});

engine_test!(request_over_http2_is_a_span, |store: &Store| {
    let collector = Collector::start();
    let server = store.serve(&["--otlp-endpoint", &collector.url()]);
    let mut connection = Http2::open(&server.client(&store.token("ada", &[])));
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let mut ask = |id: &str, method: &str, more: &[(&str, &str)], body: Option<&[u8]>| {
        let headers = [&[("X-Request-Id", id), ("traceparent", &parent), ("tracestate", "a=1")], more].concat();
        let response = connection.call(method, "/plants", &headers, body);
        let (span, children) = collector.wait_for_request(id);
        let continued = (span.text("traceId"), span.text("parentSpanId"), span.text("traceState"));
        assert_eq!(continued, (TRACE, SPAN, "a=1"), "{id}");
        assert_eq!((span.text("name"), &span.0["kind"]), (&*format!("{method} /plants"), &2.into()));
        assert!(span.0["status"]["code"].is_null(), "{id} did not fail: {span:?}");
        let attributes = span.attributes();
        let expected = [
            ("http.request.method", Some(method.to_owned())),
            ("http.route", Some("/plants".to_owned())),
            ("http.response.status_code", Some(response.status.to_string())),
            ("http.response.body.size", Some(response.body.len().to_string())),
            ("network.protocol.version", Some("2".to_owned())),
            ("error.type", None),
        ];
        for (name, value) in expected {
            assert_eq!(attributes.get(name), value.as_ref(), "{name} of {id}");
        }
        assert_eq!(line(&server, id)["trace_id"], TRACE);
        (response.status, attributes, children)
    };
    let (status, attributes, children) = ask("create", "POST", &[JSON], Some(br#"{"id":1,"name":"Rose"}"#));
    assert_eq!((status, attributes.get("user.id").map(String::as_str)), (200, Some("1")));
    for name in ["authenticate", "read", "wait for the writer", "commit"] {
        assert!(children.iter().any(|child| child.text("name") == name), "{name} is not among {children:?}");
    }
    assert_eq!(ask("list", "GET", &[], None).0, 200);
    assert_eq!(ask("head", "HEAD", &[], None).0, 200);
    // This request is rejected before it reaches a handler.
    let (status, attributes, _) = ask("refused", "HEAD", &[("X-Filler", &"x".repeat(16_384))], None);
    assert_eq!((status, attributes.get("plantstore.error_code").map(String::as_str)), (431, Some("43100")));
});

engine_test!(spans_have_no_secrets, |store: &Store| {
    let collector = Collector::start();
    let key = SigningKey::p256("e");
    let issuer = Issuer::start(&[&key]);
    let server = store.serve(&[&["--otlp-endpoint", &collector.url()][..], &issuer.options()].concat());
    let client = manager(store, &server, "wilhelmina");
    let token = client.token.clone().unwrap();
    let (_, other) = created(&client, &json!({"label": "hidden"}));
    let jwts = [&key, &SigningKey::p256("e")].map(|key| server.client(&key.token(&issuer.claims("wilhelmina"))));
    for (client, status) in [(&other, 200), (&jwts[0], 200), (&jwts[1], 401)] {
        assert_eq!(client.get("/plants").status, status);
    }
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let headers = [
        JSON,
        ("Cookie", "hidden"),
        ("traceparent", &parent),
        ("tracestate", &format!("a={token}")),
        ("X-Request-Id", &token),
        ("Idempotency-Key", "hidden"),
    ];
    let created = client.call("POST", "/plants", &headers, Some(br#"{"id":98765,"name":"hidden","tag":"hidden"}"#));
    assert_eq!(created.status, 200);
    assert_eq!(client.get("/plants?limit=1&hidden=1").status, 200);
    assert_eq!(client.get("/hidden/path").status, 404);
    assert_eq!(client.call("HIDDEN", "/plants", &[], None).status, 405);
    assert_eq!(client.delete(98_765).status, 204);
    assert_eq!(server.client(&token.replace("pst_", "pst_x")).get("/plants").status, 401);
    server.stop();
    let reported = collector.text();
    assert_eq!(collector.spans().iter().filter(|span| span.0["kind"] == 2).count(), 10, "{reported}");
    assert!(holds(reported.as_bytes(), TRACE), "the search finds the client's trace");
    let hidden = ["wilhelmina", "hidden", "HIDDEN", "98765", "pst_", "only-for-tests"];
    for hidden in hidden.into_iter().chain([&client, &other, &jwts[0], &jwts[1]].map(secret_of)) {
        assert!(!holds(reported.as_bytes(), hidden), "{hidden} in {reported}");
    }
});

engine_test!(sampling_follows_the_parent_or_the_ratio, |store: &Store| {
    let collector = Collector::start();
    let server = store.serve(&["--otlp-endpoint", &collector.url(), "--otlp-sample", "0"]);
    let ada = server.client(&store.token("ada", &[]));
    let get = |id: &str, parent: &str| {
        let headers = [("X-Request-Id", id), ("traceparent", parent)];
        let headers = if parent.is_empty() { &headers[..1] } else { &headers[..] };
        assert_eq!(ada.call("GET", "/plants", headers, None).status, 200);
    };
    get("root", "");
    get("not-recorded", &format!("00-{TRACE}-{SPAN}-00"));
    get("recorded", &format!("00-{TRACE}-{SPAN}-01"));
    assert_eq!(line(&server, "root")["trace_id"], Value::Null, "a trace that is not exported is not logged");
    assert_eq!(line(&server, "not-recorded")["trace_id"], TRACE, "the trace id of the client is logged");
    assert_eq!(server.stop().code(), Some(0));
    let reported: Vec<bool> = ["root", "not-recorded", "recorded"].map(|id| collector.request(id).is_some()).into();
    assert_eq!(reported, [false, false, true]);
});

/// A request with an invalid `traceparent` is not rejected; it starts a new trace.
#[test]
fn only_valid_traceparent_headers_are_parents() {
    let collector = Collector::start();
    let store = Store::new(Engine::Sqlite);
    let server = store.serve(&["--otlp-endpoint", &collector.url()]);
    let client = server.anonymous();
    let good = [
        format!("00-{TRACE}-{SPAN}-01"),
        format!("00-{TRACE}-{SPAN}-03"),
        format!("00-{TRACE}-{SPAN}-ff"),
        format!("cc-{TRACE}-{SPAN}-01"),
        format!("cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like"),
        format!("01-{TRACE}-{SPAN}-09-"),
    ];
    let bad = [
        String::new(),
        "nonsense".to_owned(),
        format!("00-{TRACE}-{SPAN}"),
        format!("00-{TRACE}-{SPAN}-1"),
        format!("00-{TRACE}-{SPAN}-01-"),
        format!("00-{TRACE}-{SPAN}-01-more"),
        format!("00-{TRACE}-{SPAN}-011"),
        format!("cc-{TRACE}-{SPAN}-01.more"),
        format!("ff-{TRACE}-{SPAN}-01"),
        format!("0-{TRACE}-{SPAN}-01"),
        format!("0x-{TRACE}-{SPAN}-01"),
        format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
        format!("00-{TRACE}-{}-01", SPAN.to_uppercase()),
        format!("00-{TRACE}-{SPAN}-0G"),
        format!("00-{}-{SPAN}-01", "0".repeat(32)),
        format!("00-{TRACE}-{}-01", "0".repeat(16)),
        format!("00-{}-{SPAN}-01", &TRACE[1..]),
        format!("00_{TRACE}_{SPAN}_01"),
        format!("00-{TRACE}-{SPAN}-+1"),
        format!("00-{TRACE}-{SPAN}- 1"),
        format!("00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01"),
    ];
    let ask = |number: usize, headers: &[(&str, &str)]| {
        let id = format!("case-{number}");
        let headers = [&[("X-Request-Id", id.as_str())], headers].concat();
        assert_eq!(client.call("GET", "/livez", &headers, None).status, 200);
    };
    let cases: Vec<&String> = good.iter().chain(&bad).collect();
    for (number, parent) in cases.iter().enumerate() {
        ask(number, &[("traceparent", parent), ("tracestate", "a=1")]);
    }
    let twice = cases.len();
    ask(twice, &[("traceparent", &good[0]), ("traceparent", &good[0])]);
    assert_eq!(server.stop().code(), Some(0));
    for number in 0..=twice {
        let (span, _) = collector.request(&format!("case-{number}")).expect("the span of the request");
        let continued = (span.text("traceId"), span.text("parentSpanId"), span.text("traceState"));
        let parent = cases.get(number).map_or("twice", |parent| parent.as_str());
        if number < good.len() {
            assert_eq!(continued, (TRACE, SPAN, "a=1"), "{parent}");
        } else {
            assert!(continued.0 != TRACE && continued.0.len() == 32, "{parent}");
            assert_eq!((continued.1, continued.2), ("", ""), "{parent}: `tracestate` is ignored, too");
        }
    }
}

sqlite_test!(trace_id_of_the_client_is_logged_without_a_collector, |Service { server, .. }: &Service| {
    let get = |id: &str, headers: &[(&str, &str)]| {
        let headers = [&[("X-Request-Id", id)], headers].concat();
        assert_eq!(server.anonymous().call("GET", "/openapi.json", &headers, None).status, 200);
        line(server, id)["trace_id"].clone()
    };
    assert_eq!(get("with", &[("traceparent", &format!("00-{TRACE}-{SPAN}-01"))]), TRACE);
    assert_eq!(get("without", &[]), Value::Null);
    assert_eq!(get("malformed", &[("traceparent", "nonsense")]), Value::Null);
});

/// A collector that is down, silent or rejects exports does not affect requests. Retryable exports are retried.
#[test]
fn failing_collector_loses_only_spans() {
    let mut collector = Collector::start();
    let store = Store::new(Engine::Sqlite);
    let url = collector.url();
    let server = store.serve(&["--otlp-endpoint", &url, "--metrics-listen", "0"]);
    let metrics = server.metrics();
    let spans = |outcome| metrics.value("plantstore_trace_spans_total", &[("outcome", outcome)]);
    let get = |id: &str| {
        assert_eq!(server.anonymous().call("GET", "/livez", &[("X-Request-Id", id)], None).status, 200);
    };
    get("taken");
    collector.wait_for_request("taken");
    metrics.wait_for("plantstore_trace_spans_total", &[("outcome", "exported")], 1);

    collector.respond_with(Some("503 Service Unavailable\r\nRetry-After: 1"));
    get("later");
    server.wait_for_log("the collector does not accept spans");
    assert!(spans("exported") == 1 && spans("dropped") == 0 && spans("rejected") == 0);
    collector.respond_with(None);
    collector.wait_for_request("later");
    server.wait_for_log("the collector accepts spans again");

    collector.server.stop();
    get("while-unreachable");
    collector.server.restart();
    collector.wait_for_request("while-unreachable");

    collector.respond_with(Some("400 Bad Request"));
    get("refused");
    metrics.wait_for("plantstore_trace_spans_total", &[("outcome", "rejected")], 1);
    collector.respond_with(None);
    get("after");
    collector.wait_for_request("after");
    assert!(collector.request("refused").is_none(), "a rejected export is not sent again");

    // A silent collector blocks one batch. Spans that do not fit into the queue are dropped.
    collector.server.be_silent(true);
    let attempts = collector.server.connections();
    get("unheard");
    wait_until("the export to begin", || collector.server.connections() > attempts);
    let batch = server.anonymous().bytes("GET", "/livez", &[], None).repeat(100);
    wait_until("dropped spans", || {
        let mut connection = server.anonymous().connect();
        connection.send(&batch);
        (0..100).for_each(|_| assert_eq!(connection.read_response(false).status, 200));
        spans("dropped") > 0
    });
}

/// A collector that requests an immediate retry still gets a pause.
#[test]
fn retry_after_0_of_a_collector_does_not_cause_a_busy_loop() {
    let collector = Collector::start();
    let (store, url) = (Store::new(Engine::Sqlite), collector.url());
    for status in ["429 Too Many Requests", "503 Service Unavailable"] {
        collector.respond_with(Some(&format!("{status}\r\nRetry-After: 0")));
        let server = store.serve(&["--otlp-endpoint", &url, "--header-timeout", "2s"]);
        let before = collector.server.connections();
        let id = &status[..3];
        assert_eq!(server.anonymous().call("GET", "/livez", &[("X-Request-Id", id)], None).status, 200);
        wait_until("the first attempt", || collector.server.connections() > before);
        // Waits 2 s, until the server closes a silent connection.
        assert!(server.anonymous().connect().is_closed_by_server());
        let attempts = collector.server.connections() - before;
        assert!(attempts < 20, "{attempts} attempts after {status}");
        collector.respond_with(None);
        assert_eq!(server.anonymous().call("GET", "/livez", &[("X-Request-Id", "after")], None).status, 200);
        collector.wait_for_request("after");
    }
}

#[test]
fn shutdown_waits_for_the_collector_with_a_limit() {
    let collector = Collector::start();
    let store = Store::new(Engine::Sqlite);
    let url = collector.url();
    let server = store.serve(&["--otlp-endpoint", &url]);
    assert_eq!(server.anonymous().call("GET", "/livez", &[("X-Request-Id", "last")], None).status, 200);
    assert_eq!(server.stop().code(), Some(0));
    assert!(collector.request("last").is_some(), "the last span is exported during the shutdown");
    drop(collector);

    let unreachable = store.serve(&["--otlp-endpoint", &url, "--shutdown-grace", "100d"]);
    assert_eq!(unreachable.anonymous().get("/livez").status, 200);
    assert_eq!(unreachable.stop().code(), Some(0), "the shutdown does not wait for an unreachable collector");

    let silent = Collector::start();
    silent.server.be_silent(true);
    let server = store.serve(&["--otlp-endpoint", &silent.url(), "--shutdown-grace", "300ms"]);
    assert_eq!(server.anonymous().get("/livez").status, 200);
    assert_eq!(server.stop().code(), Some(0));
    assert!(server.log().contains("the collector did not accept the last spans"), "{}", server.log());
}

#[rstest]
#[case::requires_openssl()]
fn certificate_of_the_collector_is_verified() {
    let authority = Authority::new();
    let collector = Collector::start_with_tls(&authority);
    let store = Store::new(Engine::Sqlite);
    let (url, file) = (collector.url(), authority.file());
    let server = store.serve(&["--otlp-endpoint", &url, "--otlp-ca", file.to_str().unwrap()]);
    assert_eq!(server.anonymous().call("GET", "/livez", &[("X-Request-Id", "trusted")], None).status, 200);
    assert_eq!(server.stop().code(), Some(0));
    assert!(collector.request("trusted").is_some());
    let stranger = Authority::new();
    let file = stranger.file();
    let server = store.serve(&["--otlp-endpoint", &url, "--otlp-ca", file.to_str().unwrap()]);
    assert_eq!(server.anonymous().call("GET", "/livez", &[("X-Request-Id", "not-trusted")], None).status, 200);
    assert_eq!(server.stop().code(), Some(0));
    assert!(collector.request("not-trusted").is_none());
}

sqlite_test!(invalid_trace_options_get_a_clear_error, |store: &Store| {
    let endpoint = "for example http://127.0.0.1:4318";
    let cases: [(&[&str], &str); 9] = [
        (&["--otlp-endpoint", "127.0.0.1:4318"], endpoint),
        (&["--otlp-endpoint", "ftp://127.0.0.1"], endpoint),
        (&["--otlp-endpoint", "http://user:password@127.0.0.1:4318"], endpoint),
        (&["--otlp-endpoint", "http://127.0.0.1:4318?a=b"], endpoint),
        (&["--otlp-endpoint", "http://127.0.0.1:4318#a"], endpoint),
        (&["--otlp-endpoint", "http://127.0.0.1:4318", "--otlp-sample", "2"], "write a share from 0 (none) to 1 (all)"),
        (
            &["--otlp-endpoint", "http://127.0.0.1:4318", "--otlp-sample", "NaN"],
            "write a share from 0 (none) to 1 (all)",
        ),
        (&["--otlp-sample", "0.5"], "--otlp-endpoint"),
        (
            &["--otlp-endpoint", "https://127.0.0.1:4318", "--otlp-ca", "missing.pem"],
            "--otlp-ca: cannot use the certificates in",
        ),
    ];
    for (options, words) in cases {
        let output = store.run(&[&["serve", "--listen", "127.0.0.1:0"], options].concat());
        let errors = output.stderr_text();
        assert_eq!((output.status.code(), errors.contains(words)), (Some(2), true), "{options:?}: {errors}");
    }
});

/// The collector of the Python package `rotel`.
struct Rotel {
    process: Child,
    url: String,
}

impl Rotel {
    /// Starts a collector that sends on to another one what it has received.
    fn start(target: &Collector) -> Self {
        const RUN: &str = "import importlib.util, os, sys
directory = importlib.util.find_spec('rotel').submodule_search_locations[0]
os.execv(directory + '/rotel-agent', ['rotel', *sys.argv[1:]])";
        let [http, grpc] = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
        let mut command = python_tool("python");
        command.args(["-c", RUN, "start", "--otlp-http-endpoint", &http, "--otlp-grpc-endpoint", &grpc]);
        command.args(["--exporter", "otlp", "--otlp-exporter-protocol", "http", "--batch-timeout", "100ms"]);
        command.args(["--otlp-exporter-endpoint", &target.url()]);
        let process = command.stdout(Stdio::null()).spawn().unwrap();
        wait_for("the collector", || TcpStream::connect(&http).ok());
        Self { process, url: format!("http://{http}") }
    }
}

impl Drop for Rotel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn another_collector_accepts_the_spans_and_sends_them_on_unchanged() {
    let collector = Collector::start();
    let rotel = Rotel::start(&collector);
    let Garden { ada, .. } = &Garden::new(Engine::Sqlite, &["--otlp-endpoint", &rotel.url]);
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let headers = [("X-Request-Id", "forwarded"), ("traceparent", &parent)];
    assert_eq!(ada.call("GET", "/plants", &headers, None).status, 200);
    let (span, children) = collector.wait_for_request("forwarded");
    assert_eq!((span.text("traceId"), span.text("parentSpanId"), span.text("name")), (TRACE, SPAN, "GET /plants"));
    assert_eq!(span.attributes().get("http.response.status_code").map(String::as_str), Some("200"));
    assert!(children.iter().any(|child| child.text("name") == "authenticate"), "{children:?}");
    assert_eq!(collector.resource().get("service.name").map(String::as_str), Some("plantstore"));
}
