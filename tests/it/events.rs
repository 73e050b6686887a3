//! `GET /events`: a stream reports every change of the caller's list, whichever process makes it, and ends with its token.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::http2::{
    CANCEL, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, Http2, INITIAL_WINDOW, RST_STREAM, head,
};
use crate::support::transfer::{import, lines};
use crate::support::{
    Action, Client, Cluster, Engine, Events, Garden, History, JSON, Operation, Service, Stopwatch, Store, TcpProxy,
    Workload, assert_snapshot, engine_test, postgres_test, wait_for, wait_until,
};
use crate::tokens::{EFFECT_LIMIT, manager};

/// The head of a request without a body.
const WHOLE: u8 = END_HEADERS | END_STREAM;

#[track_caller]
fn tag(client: &Client, path: &str) -> String {
    client.get(path).header("etag").expect("a tag").to_owned()
}

#[track_caller]
fn succeed(store: &Store, arguments: &[&str]) {
    let output = store.run(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[track_caller]
fn change(client: &Client, method: &str, path: &str, body: Option<&str>) {
    let headers: &[_] = if body.is_some() { &[JSON] } else { &[] };
    let response = client.call(method, path, headers, body.map(str::as_bytes));
    assert!(response.status < 300, "{}", response.text());
}

engine_test!(first_event_has_the_tag_of_the_list_unless_the_client_has_it, |Garden { ada, .. }: &Garden| {
    ada.plant(1, "Rose");
    let (events, first) = Events::of(ada);
    assert_eq!(first, tag(ada, "/plants"));
    assert_snapshot!(events.head.wire(), @r"
    200 OK
    content-type: text/event-stream
    cache-control: no-store
    x-accel-buffering: no
    transfer-encoding: chunked

    ");
    let (mut events, none) = Events::open(ada, "/events", &[("Last-Event-ID", &first)]);
    assert_eq!(none, None);
    ada.plant(2, "Fern");
    events.wait_for_current(ada, "/plants", &first);
    let (_, again) = Events::open(ada, "/events", &[("Last-Event-ID", &first)]);
    assert_eq!(again, Some(tag(ada, "/plants")));
});

engine_test!(requests_for_events_are_checked_as_others, |Garden { store, server, ada }: &Garden| {
    let response = ada.call("HEAD", "/events", &[], None);
    assert_eq!((response.status, response.header("content-type")), (200, Some("text/event-stream")));
    let wrong = ada.call("POST", "/events", &[], None);
    assert_eq!((wrong.error(), wrong.header("allow")), (40500, Some("GET,HEAD")));
    assert_eq!(server.anonymous().get("/events").error(), 40100);
    let writer = server.client(&store.token("ada", &["--scope", "plants:write"]));
    assert_eq!(writer.get("/events").error(), 40300);
    assert_eq!(ada.get("/events?owner=bob").error(), 40400);
    assert_eq!(ada.get("/events?owner=ada&owner=ada").error(), 40007);
    assert_eq!(ada.get("/events/").error(), 40401);
});

engine_test!(changes_by_any_process_are_reported, |Garden { store, ada, .. }: &Garden| {
    let node = store.serve(&[]);
    let other = node.client(ada.token.as_deref().unwrap());
    let (mut events, mut last) = Events::of(ada);
    for client in [ada, &other] {
        for (method, path, body) in [
            ("POST", "/plants", Some(r#"{"id":1,"name":"Rose"}"#)),
            ("PUT", "/plants/1", Some(r#"{"name":"Fern"}"#)),
            ("DELETE", "/plants/1", None),
        ] {
            change(client, method, path, body);
            last = events.wait_for_current(ada, "/plants", &last);
        }
    }
    import(store, &[], &lines(&["ada"], 3));
    events.wait_for_current(ada, "/plants", &last);
    assert_eq!(ada.ids().len(), 3);
});

engine_test!(changes_of_shares_are_reported_by_every_node, |Service { store, server }: &Service| {
    let (ada, bob) = (manager(store, server, "ada"), manager(store, server, "bob"));
    let node = store.serve(&[]);
    let elsewhere = |client: &Client| Client { address: node.address(), token: client.token.clone() };
    ada.plant(1, "Rose");
    let (mut events, mut last) = Events::of(&bob);
    let mut own = Events::open(&bob, "/events?owner=bob", &[]).0;
    for [ada, bob_here] in [[&ada, &bob], [&elsewhere(&ada), &elsewhere(&bob)]] {
        change(ada, "PUT", "/shares/bob", Some(r#"{"role":"reader"}"#));
        change(bob_here, "PUT", "/shares/received/ada", None);
        last = events.wait_for_current(&bob, "/plants", &last);
        let (mut of_ada, first) = Events::open(&bob, "/events?owner=ada", &[]);
        let first = first.expect("a first event");
        assert_eq!(bob.get("/plants").json(), json!([{"name": "Rose"}]));
        change(ada, "PUT", "/plants/1", Some(r#"{"name":"Rose"}"#));
        last = events.wait_for_current(&bob, "/plants", &last);
        of_ada.wait_for_current(&bob, "/plants?owner=ada", &first);
        change(ada, "DELETE", "/shares/bob", None);
        last = events.wait_for_current(&bob, "/plants", &last);
        assert_eq!(bob.get("/plants").json(), json!([]));
        assert_eq!(of_ada.next(), None, "the collection is not shared any more");
        // Left instead of revoked.
        change(ada, "PUT", "/shares/bob", Some(r#"{"role":"reader"}"#));
        change(bob_here, "PUT", "/shares/received/ada", None);
        last = events.wait_for_current(&bob, "/plants", &last);
        change(bob_here, "DELETE", "/shares/received/ada", None);
        last = events.wait_for_current(&bob, "/plants", &last);
    }
    // By the operator.
    succeed(store, &["share", "grant", "--owner", "ada", "--to", "bob", "--role", "reader"]);
    last = events.wait_for_current(&bob, "/plants", &last);
    succeed(store, &["share", "revoke", "--owner", "ada", "--to", "bob"]);
    last = events.wait_for_current(&bob, "/plants", &last);
    succeed(store, &["share", "grant", "--owner", "ada", "--to", "bob", "--role", "reader"]);
    last = events.wait_for_current(&bob, "/plants", &last);
    succeed(store, &["user", "delete", "--yes", "ada"]);
    events.wait_for_current(&bob, "/plants", &last);
    bob.plant(2, "Fern");
    wait_for("the own plant in the own list", || {
        let tag = own.next().expect("an event");
        (bob.call("GET", "/plants?owner=bob", &[("If-None-Match", &tag)], None).status == 304).then_some(())
    });
});

engine_test!(stream_ends_with_its_token, |Service { store, server }: &Service| {
    let revoked_by_operator = server.client(&store.token("ada", &[]));
    let ada = manager(store, server, "ada");
    let own = ada.get("/me").json()["token"]["id"].as_i64().unwrap();
    let bob = server.client(&store.token("bob", &[]));
    let [mut of_operator, mut of_ada, mut of_bob] =
        [&revoked_by_operator, &ada, &bob].map(|client| Events::of(client).0);
    let (expiring, mut of_expiring) = wait_for("a stream that is opened before its token expires", || {
        let expiring = server.client(&store.token("ada", &["--expires", "6s"]));
        Events::try_of(&expiring).map(|events| (expiring, events))
    });
    let end = |events: &mut Events, what: &str| {
        let since = Stopwatch::start();
        // Other changes of the user may be reported before.
        while events.next().is_some() {}
        assert!(since.elapsed() < EFFECT_LIMIT, "{what}: {:?}", since.elapsed());
    };
    succeed(store, &["token", "revoke", "1"]);
    end(&mut of_operator, "revoked by the operator");
    change(&ada, "DELETE", &format!("/tokens/{own}"), None);
    end(&mut of_ada, "revoked by its user");
    end(&mut of_expiring, "expired");
    assert_eq!(expiring.get("/plants").error(), 40101);
    succeed(store, &["user", "delete", "--yes", "bob"]);
    end(&mut of_bob, "the user is deleted");
});

engine_test!(shutdown_ends_streams, |store: &Store| {
    let server = store.serve(&["--shutdown-grace", "100d"]);
    let ada = server.client(&store.token("ada", &[]));
    let (mut events, _) = Events::of(&ada);
    let mut connection = Frames::open(server.address(), &[]);
    connection.send(HEADERS, WHOLE, 1, &head(&ada, "GET", "/events", &[]));
    connection.next_of(DATA);
    assert_eq!(server.stop().code(), Some(0));
    assert_eq!(events.next(), None);
    assert_ne!(connection.next_of(DATA).flags & END_STREAM, 0);
    let log = server.log();
    let lines = log.lines().filter(|line| line.contains(r#""route":"/events""#));
    assert_eq!(lines.filter(|line| line.contains(r#""complete":true"#)).count(), 2, "{log}");
});

engine_test!(streams_are_limited_per_user, |store: &Store| {
    let server = store.serve(&["--metrics-listen", "0"]);
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &[]));
    let mut open: Vec<Events> = (0..10).map(|_| Events::of(&ada).0).collect();
    metrics.wait_for("plantstore_event_streams", &[], 10);
    let rejected = ada.get("/events");
    assert_eq!((rejected.error(), rejected.header("retry-after")), (42900, Some("1")));
    let bob = server.client(&store.token("bob", &[]));
    let _other = Events::of(&bob);
    // A client that disconnects is noticed although nothing is sent.
    open.pop();
    metrics.wait_for("plantstore_event_streams", &[], 10);
    open.push(Events::of(&ada).0);
    assert_eq!(Http2::open(&ada).get("/events").error(), 42900);
    drop(open);
    metrics.wait_for("plantstore_event_streams", &[], 1);
    let mut connection = Frames::open(server.address(), &[]);
    connection.send(HEADERS, WHOLE, 1, &head(&ada, "GET", "/events", &[]));
    connection.next_of(DATA);
    metrics.wait_for("plantstore_event_streams", &[], 2);
    connection.send(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
    metrics.wait_for("plantstore_event_streams", &[], 1);
    assert_eq!(metrics.value("plantstore_http_responses_incomplete_total", &[]), 1, "only the one that was reset");
});

engine_test!(streams_are_limited_in_total, |store: &Store| {
    let [ada, bob] = ["ada", "bob"].map(|user| store.token(user, &[]));
    for limit in [["--max-event-streams", "2"], ["--max-connections", "4"]] {
        let server = store.serve(&limit);
        let bob = server.client(&bob);
        let _open = [Events::of(&server.client(&ada)), Events::of(&bob)];
        let rejected = bob.get("/events");
        assert_eq!((rejected.error(), rejected.header("retry-after")), (50300, Some("1")), "{limit:?}");
        assert_eq!(bob.get("/plants").status, 200);
    }
});

engine_test!(streams_hold_no_slots_of_other_requests, |store: &Store| {
    let limits = ["--max-connections", "4", "--max-event-streams", "8", "--max-in-flight", "1", "--max-waiting", "0"];
    let server = store.serve(&limits);
    let ada = server.client(&store.token("ada", &[]));
    let mut connection = Frames::open(server.address(), &[]);
    for number in 0..8 {
        connection.send(HEADERS, WHOLE, 2 * number + 1, &head(&ada, "GET", "/events", &[]));
        connection.next_of(DATA);
    }
    connection.send(HEADERS, WHOLE, 17, &head(&ada, "GET", "/plants", &[]));
    assert_eq!(connection.body(17), "[]");
    let mut other = Http2::open(&ada);
    assert_eq!(other.get("/plants").status, 200);
    assert_eq!(other.get("/readyz").status, 200);
});

engine_test!(changes_are_merged, |Garden { ada, .. }: &Garden| {
    const CHANGES: i64 = 100;
    let (mut events, mut last) = Events::of(ada);
    let since = Stopwatch::start();
    let client = ada.clone();
    let writer = std::thread::spawn(move || (1..=CHANGES).for_each(|id| client.plant(id, "Rose")));
    let mut count = 0;
    while ada.ids().len() < 100 || tag(ada, "/plants") != last {
        last = events.next().expect("an event");
        count += 1;
    }
    writer.join().unwrap();
    assert!(count <= 1 + since.elapsed().as_millis() / 100, "{count} events in {:?}", since.elapsed());
});

engine_test!(http2_stream_that_is_not_read_is_cut, |store: &Store| {
    let server = store.serve(&["--write-timeout", "1s"]);
    let ada = server.client(&store.token("ada", &[]));
    // Room for the first event, and a part of the second.
    let mut connection = Frames::open(server.address(), &[(INITIAL_WINDOW, 200)]);
    connection.send(HEADERS, WHOLE, 1, &head(&ada, "GET", "/events", &[]));
    let first = connection.next_of(DATA);
    assert!(first.payload.starts_with(b"retry: 2000\n\nevent: plants\nid: W/"), "{first:?}");
    ada.plant(1, "Rose");
    assert_eq!(connection.next_of(RST_STREAM).reason(), CANCEL);
    wait_until("the stream in the log", || {
        server.log().lines().any(|line| line.contains(r#""route":"/events""#) && line.contains(r#""complete":false"#))
    });
});

postgres_test!(stream_outlives_an_interruption_of_the_database, |_: &Engine| {
    // On Citus the node connects to the workers through the proxy, too.
    let store = &Store::on(Cluster::shared());
    let proxy = TcpProxy::start(Cluster::shared().address());
    let away = store.through(&proxy).serve(&["--store-timeout", "1s"]);
    let here = store.serve(&[]);
    let token = store.token("ada", &[]);
    let (mut events, last) = Events::of(&away.client(&token));
    proxy.cut();
    here.client(&token).plant(1, "Rose");
    wait_until("the node to notice", || away.client(&token).get("/plants").status == 503);
    proxy.heal();
    let current = tag(&here.client(&token), "/plants");
    assert_eq!(events.next(), Some(current.clone()));
    assert_ne!(current, last);
});

// The condition of the second list is the tag of the event. The last change is reported, too.
engine_test!(list_that_an_event_reports_includes_every_change_before_it, |store: &Store| {
    let token = store.token("ada", &[]);
    let [one, other] = [(); 2].map(|()| store.serve(&["--log-level", "warn"]));
    let ada = one.client(&token);
    let (mut events, mut last) = Events::of(&ada);
    let history = History::new();
    let nodes = vec![one.address(), other.address()];
    let workload = Workload {
        nodes,
        tokens: vec![token],
        writers: 2,
        listers: 0,
        watchers: 0,
        ids: 4,
        pause: Duration::from_millis(50),
        uses_all_operations: true,
    };
    let mut conditional = 0;
    let conditional_list = |condition: &[(&str, &str)]| {
        let called = history.now();
        let response = ada.call("GET", "/plants?include=id", condition, None);
        (called, response, history.now())
    };
    workload.run(&history, || {
        while conditional < 20 || history.acknowledged() < 100 {
            last = events.next().expect("an event");
            let (called, response, returned) = conditional_list(&[]);
            let plants = response.json();
            let named = |plant: &Value| (plant["id"].as_i64().unwrap(), plant["name"].as_str().unwrap().to_owned());
            let plants: BTreeMap<i64, String> = plants.as_array().unwrap().iter().map(named).collect();
            let action = Action::List(Some(plants));
            history.record(Operation { user: 0, called, returned, action: action.clone() });
            let is_reported = response.header("etag") == Some(&last);
            let (called, response, returned) = conditional_list(&[("If-None-Match", &last)]);
            if response.status == 304 && is_reported {
                conditional += 1;
                history.record(Operation { user: 0, called, returned, action });
            }
        }
    });
    workload.record_final_lists(&history);
    history.check().unwrap();
    let current = tag(&ada, "/plants");
    while last != current {
        last = events.next().expect("an event");
    }
});
