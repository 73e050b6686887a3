//! HTTP/2 clients that do not read their responses, or send frames without end: other clients are served meanwhile.

use crate::support::http2::{
    DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, HEADERS, Http2, INITIAL_WINDOW, PING, PRIORITY,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, head, setting,
};
use crate::support::{Engine, JSON, Server, Store, engine_test, wait_for};

/// The head of a request without a body.
const WHOLE: u8 = END_HEADERS | END_STREAM;
/// A window that is larger than all responses of these tests.
const LARGE_WINDOW: u32 = 1 << 30;
/// A frame type that no standard defines.
const UNKNOWN: u8 = 0xfa;

fn store() -> Store<'static> {
    Store::new(Engine::Sqlite)
}

/// Opens a connection with this many requests and a window of zero, so that no response body can be sent.
fn blocked(server: &Server, path: &str, token: Option<&str>, streams: u32) -> Frames<std::net::TcpStream> {
    let client = token.map_or_else(|| server.anonymous(), |token| server.client(token));
    let mut connection = Frames::open(server.address(), &[(INITIAL_WINDOW, 0)]);
    let block = head(&client, "GET", path, &[]);
    for number in 0..streams {
        connection.send(HEADERS, WHOLE, 2 * number + 1, &block);
        assert_eq!(connection.next_of(HEADERS).flags & END_STREAM, 0);
    }
    connection
}

/// Opens the window of a stream.
fn open_window(connection: &mut Frames<std::net::TcpStream>, stream: u32) {
    connection.send(WINDOW_UPDATE, 0, stream, &LARGE_WINDOW.to_be_bytes());
}

engine_test!(streams_blocked_on_their_window_do_not_block_other_clients, |store: &Store| {
    let server = store.serve(&["--max-connections", "8", "--metrics-listen", "0"]);
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &[]));
    let _attack = [blocked(&server, "/", None, 20), blocked(&server, "/", None, 20)];
    let mut other = Http2::open(&ada);
    assert_eq!(other.get("/livez").status, 200);
    assert_eq!(other.get("/plants").status, 200);
    let paths = vec!["/plants".to_owned(); 6];
    let statuses = other.all_at_once("POST", &paths, |id| format!(r#"{{"id":{id},"name":"n"}}"#));
    assert_eq!(statuses, [200; 6], "concurrent requests are served, too");
    assert!(metrics.value("plantstore_http2_streams_blocked", &[]) > 0);
});

engine_test!(probes_are_served_while_no_request_slot_is_free, |store: &Store| {
    let server = store.serve(&["--max-connections", "4", "--metrics-listen", "0"]);
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &[]));
    let mut connection = Frames::open(server.address(), &[]);
    // The client sends no bodies, so the requests stay in flight.
    for number in 0..4 {
        connection.send(HEADERS, END_HEADERS, 2 * number + 1, &head(&ada, "POST", "/plants", &[JSON]));
    }
    metrics.wait_for("plantstore_http_requests_in_flight", &[], 4);
    let mut ask = |stream, path| {
        connection.send(HEADERS, WHOLE, stream, &head(&ada, "GET", path, &[]));
        connection.body(stream)
    };
    assert!(ask(9, "/plants").contains("50300"));
    assert!(ask(11, "/livez").contains("live"));
    assert!(ask(13, "/readyz").contains("ready"));
});

engine_test!(a_list_that_is_not_read_holds_no_page, |store: &Store| {
    const CONNECTIONS: u64 = 4;
    const STREAMS: u32 = 100;
    let token = store.token("ada", &[]);
    store.insert_plants(50_000, "a plant of this name and number ");
    // On a busy machine the last list may be blocked long after the first.
    let server = store.serve(&["--list-cache-bytes", "0", "--metrics-listen", "0", "--write-timeout", "10m"]);
    let metrics = server.metrics();
    let ada = server.client(&token);
    let whole = ada.get("/plants?include=id").body;
    let before = server.resident();
    let mut unread: Vec<_> =
        (0..CONNECTIONS).map(|_| blocked(&server, "/plants?include=id", Some(&token), STREAMS)).collect();
    let lists = CONNECTIONS * u64::from(STREAMS);
    metrics.wait_for("plantstore_http2_streams_blocked", &[], i64::try_from(lists).unwrap());
    metrics.wait_for("plantstore_lists_streaming", &[], i64::try_from(lists).unwrap());
    let each = server.resident().saturating_sub(before) / lists;
    assert!(each < 32, "{each} KiB each");
    // The first list of a connection holds a page in memory. The last one is read from the store again.
    for stream in [1, 2 * STREAMS - 1] {
        open_window(&mut unread[0], stream);
    }
    open_window(&mut unread[0], 0);
    let bodies = bodies(&mut unread[0], 2);
    assert!(bodies.iter().all(|body| *body == whole), "the same list");
});

// The page of a list is held for two responses of a connection; others are read in smaller steps.
engine_test!(lists_requested_together_are_the_same_as_one_by_one, |store: &Store| {
    let token = store.token("ada", &[]);
    store.insert_plants(3_000, "a plant of this name and number ");
    let server = store.serve(&["--list-cache-bytes", "0"]);
    let ada = server.client(&token);
    for query in ["?limit=900&include=id", "?limit=2500&include=id", "?include=id,owner", "?limit=20"] {
        let path = format!("/plants{query}");
        let expected = ada.get(&path);
        let mut connection = blocked(&server, &path, Some(&token), 8);
        for stream in (0..16).filter(|stream| *stream == 0 || stream % 2 == 1) {
            open_window(&mut connection, stream);
        }
        let bodies = bodies(&mut connection, 8);
        assert!(bodies.iter().all(|body| *body == expected.body), "{query}");
    }
});

/// Returns the bodies of this many responses, in the order in which they end.
fn bodies(connection: &mut Frames<std::net::TcpStream>, count: usize) -> Vec<Vec<u8>> {
    let mut growing = std::collections::BTreeMap::<u32, Vec<u8>>::new();
    let mut ended = Vec::new();
    while ended.len() < count {
        let frame = connection.next_of(DATA);
        growing.entry(frame.stream).or_default().extend(&frame.payload);
        if frame.flags & END_STREAM != 0 {
            ended.extend(growing.remove(&frame.stream));
        }
    }
    ended
}

#[test]
fn blocked_streams_beyond_an_equal_share_are_reset() {
    let server = store().serve(&["--max-connections", "8", "--metrics-listen", "0"]);
    let metrics = server.metrics();
    let mut modest = blocked(&server, "/", None, 4);
    let mut greedy = blocked(&server, "/", None, 20);
    assert_eq!(greedy.next_of(RST_STREAM).reason(), ENHANCE_YOUR_CALM);
    metrics.wait_for("plantstore_http2_streams_blocked", &[], 8);
    for stream in [0, 1, 3, 5, 7] {
        open_window(&mut modest, stream);
    }
    assert_eq!(bodies(&mut modest, 4).len(), 4, "streams within the share are served");
}

#[test]
fn response_to_a_client_that_opens_its_window_byte_by_byte_is_reset() {
    let server = store().serve(&["--write-timeout", "1s"]);
    let mut slow = blocked(&server, "/", None, 1);
    let mut attempts = 0;
    wait_for("the response to be reset", || {
        attempts += 1;
        // Each byte arrives within the timeout.
        if attempts % 20 != 0 {
            return None;
        }
        slow.send(WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes());
        let frame = slow.next().expect("the connection stays open");
        assert!(frame.kind == RST_STREAM || frame.payload.len() == 1, "{frame:?}");
        (frame.kind == RST_STREAM).then_some(())
    });
    slow.send(HEADERS, WHOLE, 3, &head(&server.anonymous(), "GET", "/livez", &[]));
    slow.next_of(HEADERS);
}

#[test]
fn floods_of_control_frames_close_the_connection() {
    let server = store().serve(&["--metrics-listen", "0"]);
    let metrics = server.metrics();
    let floods = [
        frame(PING, 0, 0, b"eightful"),
        frame(SETTINGS, 0, 0, &setting(INITIAL_WINDOW, 1)),
        frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16]),
        frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
        frame(UNKNOWN, 0, 0, b"anything"),
    ];
    for (cut, flood) in (1..).zip(floods) {
        let mut connection = Frames::open(server.address(), &[]);
        // The server may disconnect before everything is sent.
        let _ = connection.try_send(&flood.repeat(5_000));
        assert_eq!(connection.ending(), Some(ENHANCE_YOUR_CALM), "type {}", flood[3]);
        metrics.wait_for("plantstore_http_connections_aborted_total", &[("reason", "protocol_violation")], cut);
    }
}

#[test]
fn client_that_acknowledges_every_frame_is_served() {
    let store = store();
    let token = store.token("ada", &[]);
    store.insert_plants(100_000, "a plant of this name and number ");
    let server = store.serve(&[]);
    let mut connection = Frames::open(server.address(), &[]);
    connection.send(HEADERS, WHOLE, 1, &head(&server.client(&token), "GET", "/plants", &[]));
    let (mut frames, mut ended) = (0, false);
    while !ended {
        let frame = connection.next_of(DATA);
        (frames, ended) = (frames + 1, frame.flags & END_STREAM != 0);
        let length = u32::try_from(frame.payload.len()).unwrap().max(1).to_be_bytes();
        let updates = [self::frame(WINDOW_UPDATE, 0, 0, &length), self::frame(WINDOW_UPDATE, 0, 1, &length)].concat();
        // The window of a stream that has ended is ignored.
        connection.try_send(&updates).unwrap();
    }
    assert!(frames > 1_000, "{frames}");
}
