//! Many hostile clients at a time: each is disconnected or costs little, and another user is served meanwhile.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::fairness::raise_file_limit;
use crate::support::http2::{
    CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, HEADERS, PING, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, field, frame, head,
};
use crate::support::{
    Client, Engine, Events, Fault, Garden, JSON, StopOnDrop, campaign_factor, engine_test, wait_until,
};

/// Clients of each kind in the suite.
const CLIENTS: usize = 100;
const STREAMS_OF_USER: usize = 10;
/// Bound on the memory of the server for each client, in KiB.
const MEMORY_MAX: u64 = 256;

/// Returns the result of `attack`, during which requests of this user must succeed, and counts them.
fn served_during<T>(fault: &Fault, polite: &Client, attack: impl FnOnce() -> T) -> T {
    let (ended, writes) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for (method, path, body) in [
                    ("POST", "/plants", Some(&br#"{"id":-1,"name":"Rose"}"#[..])),
                    ("GET", "/plants/-1", None),
                    ("DELETE", "/plants/-1", None),
                ] {
                    let response = polite.call(method, path, &[JSON], body);
                    assert!(response.status < 300, "{}", response.wire());
                }
                writes.fetch_add(2, Ordering::Relaxed);
            }
        });
        let stop = StopOnDrop(&ended);
        wait_until("the first request", || writes.load(Ordering::Relaxed) > 0);
        let result = attack();
        drop(stop);
        let writes = writes.load(Ordering::Relaxed);
        fault.count(writes + writes / 2, writes);
        result
    })
}

/// Sends the beginning of a request.
fn begin(client: &Client, request: &[u8]) -> TcpStream {
    let mut connection = client.connect();
    connection.send(request);
    connection.into_stream()
}

engine_test!(slow_clients_are_disconnected_while_others_are_served, |engine: &Engine| {
    const OPTIONS: [&str; 8] =
        ["--header-timeout", "5s", "--request-timeout", "5s", "--write-timeout", "5s", "--idle-timeout", "5s"];
    raise_file_limit();
    let fault = Fault::on(*engine, "thousands of slow heads, bodies and readers", 1);
    let clients = CLIENTS * campaign_factor();
    let options = [&OPTIONS[..], &["--max-connections", "40000", "--metrics-listen", "0"]].concat();
    let Garden { server, store, ada } = &Garden::new(*engine, &options);
    store.insert_plants(20_000, "a plant of this name and number ");
    let polite = server.client(&store.token("polite", &[]));
    let metrics = server.metrics();
    fault.begin_round();
    served_during(&fault, &polite, || {
        let before = server.resident();
        let body = ada.bytes("POST", "/plants", &[JSON], Some(br#"{"id":-7,"name":"slow"}"#));
        let idle = ada.bytes("GET", "/me", &[], None);
        let slow: Vec<_> = (0..clients)
            .flat_map(|_| {
                let beginnings = [&body[..30], &body[..body.len() - 1], &idle].map(|bytes| begin(ada, bytes));
                beginnings.into_iter().chain([ada.unread_list(&[])])
            })
            .collect();
        let each = server.resident().saturating_sub(before) / slow.len() as u64;
        assert!(each <= MEMORY_MAX, "{each} KiB each");
        // One connection may be that of the polite user.
        wait_until("the server to disconnect", || metrics.value("plantstore_http_connections", &[]) <= 1);
    });
    assert_eq!(ada.get("/plants/-7").error(), 40400, "an incomplete request has no effect");
});

engine_test!(idle_connections_and_event_streams_cost_little, |engine: &Engine| {
    raise_file_limit();
    let fault = Fault::on(*engine, "thousands of idle connections and event streams", 1);
    let clients = CLIENTS * campaign_factor();
    let options = ["--max-connections", "40000", "--metrics-listen", "0", "--idle-timeout", "1h"];
    let Garden { server, store, ada } = &Garden::new(*engine, &options);
    let users: Vec<_> = (0..clients / STREAMS_OF_USER)
        .map(|number| server.client(&store.token(&format!("user-{number}"), &["--expires", "never"])))
        .collect();
    fault.begin_round();
    served_during(&fault, ada, || {
        let before = server.resident();
        let idle: Vec<_> = (0..clients)
            .map(|_| {
                let mut connection = ada.connect();
                assert_eq!(connection.ask(ada.bytes("GET", "/me", &[], None)).status, 200);
                connection
            })
            .collect();
        let mut streams: Vec<_> =
            users.iter().flat_map(|user| std::iter::repeat_with(|| Events::of(user)).take(STREAMS_OF_USER)).collect();
        let each = server.resident().saturating_sub(before) / (idle.len() + streams.len()) as u64;
        assert!(each <= MEMORY_MAX, "{each} KiB each");
        for (number, user) in users.iter().enumerate() {
            user.plant(1, "Fern");
            for (stream, tag) in &mut streams[number * STREAMS_OF_USER..][..STREAMS_OF_USER] {
                *tag = stream.wait_for_current(user, "/plants", tag);
            }
        }
        fault.count(clients * 2, 0);
        for mut connection in idle {
            assert_eq!(connection.ask(ada.bytes("GET", "/me", &[], None)).status, 200);
        }
    });
});

#[test]
fn floods_of_frames_end_the_connection_while_others_are_served() {
    let Garden { server, store, ada } = &Garden::new(Engine::Sqlite, &["--log-level", "error"]);
    let polite = server.client(&store.token("polite", &[]));
    let fault = Fault::new("flood of frames of HTTP/2", 12);
    let list = head(ada, "GET", "/plants", &[]);
    let post = frame(HEADERS, END_HEADERS, 1, &head(ada, "POST", "/plants", &[JSON]));
    let flood = |kind: usize, number: u32| match kind {
        0 => {
            let stream = 2 * number + 1;
            let request = frame(HEADERS, END_HEADERS | END_STREAM, stream, &list);
            [request, frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())].concat()
        }
        1 if number == 0 => frame(HEADERS, END_STREAM, 1, &list),
        1 => frame(CONTINUATION, 0, 1, &field("x-more", "and more")),
        2 if number == 0 => post.clone(),
        2 => frame(DATA, 0, 1, b""),
        3 => frame(PING, 0, 0, b"eightful"),
        4 => frame(SETTINGS, 0, 0, &[]),
        _ => frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
    };
    served_during(&fault, &polite, || {
        for round in 0..fault.rounds {
            fault.begin_round();
            let kind = round % 6;
            let mut connection = Frames::open(server.address(), &[]);
            // The server may disconnect before everything is sent.
            let _ = connection.try_send(&(0..10_000).flat_map(|number| flood(kind, number)).collect::<Vec<_>>());
            // The reason is lost if the server closes the connection before it has read everything.
            assert!(matches!(connection.ending(), None | Some(ENHANCE_YOUR_CALM)), "flood {kind}");
            fault.count(1, 0);
        }
    });
    assert_eq!(server.log(), "");
}
