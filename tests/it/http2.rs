//! HTTP/2: the same contract as HTTP/1.1, concurrent requests on a connection, and misuse.

mod misuse;

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::http2::{
    ACK, CANCEL, DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, Http2, INITIAL_WINDOW, NO_ERROR, PING,
    PREFACE, REFUSED_STREAM, RST_STREAM, SETTINGS, WINDOW_UPDATE, field, frame, head,
};
use crate::support::{Garden, JSON, Server, Store, assert_snapshot, engine_test, wait_for, wait_until};

/// The largest flow-control window, and the initial window of a connection.
const LARGEST_WINDOW: u32 = (1 << 31) - 1;
const FIRST_WINDOW: u32 = 65_535;
/// The whole head of a request without a body.
const WHOLE: u8 = END_HEADERS | END_STREAM;

/// Method, path, headers and body of a request.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], Option<&'a str>);

/// The number of requests that were logged.
fn logged(server: &Server) -> usize {
    server.log().lines().filter(|line| line.contains(r#""message":"request""#)).count()
}

/// Asserts that new connections of HTTP/1.1 and of HTTP/2 are served.
#[track_caller]
fn serves_others(server: &Server) {
    assert_eq!(server.anonymous().get("/livez").status, 200);
    assert_eq!(Http2::open(&server.anonymous()).get("/livez").status, 200);
}

engine_test!(three_operations_work_over_http2, |Garden { ada, .. }: &Garden| {
    let mut connection = Http2::open(ada);
    let created = connection.call("POST", "/plants", &[JSON], Some(br#"{"id":1,"name":"Rose","tag":"red"}"#));
    assert_snapshot!(created.wire(), @r#"
    200 (HTTP/2)
    content-type: application/json
    location: /plants/1
    content-length: 27

    {"name":"Rose","tag":"red"}
    "#);
    let listed = connection.call("GET", "/plants?include=id", &[], None);
    assert_snapshot!(listed.wire(), @r#"
    200 (HTTP/2)
    content-type: application/json
    etag: (a tag)
    cache-control: private, no-cache
    vary: Authorization
    content-length: 36

    [{"id":1,"name":"Rose","tag":"red"}]
    "#);
    let head = connection.call("HEAD", "/plants?include=id", &[], None);
    assert_eq!((head.header("content-length"), head.text()), (Some("36"), ""));
    let tag = listed.header("etag").expect("a tag");
    let same = connection.call("GET", "/plants?include=id", &[("If-None-Match", tag)], None);
    assert_eq!((same.status, same.text()), (304, ""));
    let gone = connection.call("DELETE", "/plants/1", &[], None);
    assert_eq!((gone.status, gone.text(), gone.header("content-length")), (204, "", None));
    assert_eq!(ada.ids(), [0_i64; 0]);
});

engine_test!(both_protocols_give_the_same_responses, |store: &Store| {
    let server = store.serve(&["--cors-origin", "https://app.example"]);
    let ada = server.client(&store.token("ada", &[]));
    let reader = server.client(&store.token("bob", &["--scope", "plants:read"]));
    let mut wrong = ada.clone();
    wrong.token = Some("pst_wrong".to_owned());
    ada.plant(1, "Rose");
    let preflight = [("Origin", "https://app.example"), ("Access-Control-Request-Method", "POST")];
    let large = format!(r#"{{"id":2,"name":"{}"}}"#, "x".repeat(20_000));
    let cases: &[Case] = &[
        ("GET", "/plants?limit=0", &[], None),
        ("GET", "/plants?limit=x", &[], None),
        ("GET", "/plants", &[("If-None-Match", "*")], None),
        ("POST", "/plants", &[JSON], Some(r#"{"id":1,"name":"Rose"}"#)),
        ("POST", "/plants", &[JSON], Some("{")),
        ("POST", "/plants", &[JSON], Some(&large)),
        ("POST", "/plants", &[JSON], None),
        ("POST", "/plants", &[], Some("{}")),
        ("DELETE", "/plants/7", &[], None),
        ("PUT", "/plants", &[], Some("not read")),
        ("GET", "/nothing", &[], None),
        ("HEAD", "/nothing", &[], None),
        ("OPTIONS", "/plants", &preflight, None),
        ("GET", "/livez", &[("X-Request-Id", "mine")], None),
    ];
    for client in [&ada, &reader, &wrong, &server.anonymous()] {
        for (method, path, headers, body) in cases {
            let body = body.map(str::as_bytes);
            let first = client.call(method, path, headers, body);
            let second = Http2::open(client).call(method, path, headers, body);
            let plain = |response: &crate::support::Response| {
                // HTTP/2 has no header fields about the connection.
                let mut headers = response.headers.clone();
                headers.retain(|(name, _)| {
                    !["date", "x-request-id", "connection", "transfer-encoding"].contains(&name.as_str())
                });
                headers
            };
            assert_eq!((second.status, plain(&second)), (first.status, plain(&first)), "{method} {path}");
            assert_eq!(second.text(), first.text(), "{method} {path}");
            for name in ["connection", "keep-alive", "transfer-encoding"] {
                assert_eq!(second.header(name), None, "{method} {path}");
            }
        }
    }
    assert_eq!(ada.ids(), [1]);
    let asked_first =
        Http2::open(&ada).call("POST", "/plants", &[JSON, ("Expect", "100-continue")], Some(br#"{"id":2,"name":"n"}"#));
    assert_eq!(asked_first.status, 200, "100-continue lets the client send");
});

engine_test!(many_requests_share_a_connection, |Garden { server, ada, .. }: &Garden| {
    let mut connection = Http2::open(ada);
    assert_eq!(connection.get("/livez").status, 200, "the client has received the limit of concurrent streams");
    let paths = vec!["/plants".to_owned(); 300];
    let statuses = connection.all_at_once("POST", &paths, |id| format!(r#"{{"id":{id},"name":"n"}}"#));
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    assert_eq!(ada.ids(), (0..300).collect::<Vec<i64>>());
    let logged = || server.log().contains(r#""http_version":"2","method":"POST""#).then_some(());
    wait_for("a request in the log", logged);
});

engine_test!(streams_beyond_the_limit_are_refused_and_can_be_retried, |Garden { server, ada, .. }: &Garden| {
    let mut connection = Frames::open(server.address(), &[]);
    // The client sends no bodies, so all requests stay in flight.
    for number in 0..101 {
        connection.send(HEADERS, END_HEADERS, 2 * number + 1, &head(ada, "POST", "/plants", &[JSON]));
    }
    let rejected = connection.next_of(RST_STREAM);
    assert_eq!((rejected.stream, rejected.reason()), (201, REFUSED_STREAM));
    connection.send(DATA, END_STREAM, 1, br#"{"id":1,"name":"n"}"#);
    assert_eq!(connection.body(1), r#"{"name":"n"}"#, "the other streams are served");
    connection.send(HEADERS, WHOLE, 203, &head(ada, "GET", "/plants", &[]));
    assert_eq!(connection.body(203), r#"[{"name":"n"}]"#, "a new stream is accepted");
});

// Over HTTP/1.1, a connection has one request in flight, so `--max-connections` also limits the requests. The same
// limit applies to the requests in flight on all HTTP/2 connections together.
engine_test!(requests_in_flight_are_bounded_over_all_connections, |store: &Store| {
    let server = store.serve(&["--max-connections", "4"]);
    let ada = server.client(&store.token("ada", &[]));
    let mut connection = Frames::open(server.address(), &[]);
    for number in 0..5 {
        connection.send(HEADERS, END_HEADERS, 2 * number + 1, &head(&ada, "POST", "/plants", &[JSON]));
    }
    let frame = connection.next_of(DATA);
    let body = String::from_utf8(frame.payload).expect("text");
    assert!(body.contains("50300"), "{body}");
    let done: u32 = (1..10).step_by(2).find(|stream| *stream != frame.stream).expect("another");
    connection.send(DATA, END_STREAM, done, br#"{"id":1,"name":"n"}"#);
    assert_eq!(connection.body(done), r#"{"name":"n"}"#);
});

engine_test!(heads_are_bounded_in_size_and_number, |Garden { store, ada, .. }: &Garden| {
    let of_size = |size: usize| Http2::open(ada).call("GET", "/plants", &[("X-Filler", &"x".repeat(size))], None);
    for (size, fits) in [(16_000, true), (16_384, false), (40_000, false), (60_000, false)] {
        let response = of_size(size);
        if fits {
            assert_eq!(response.status, 200, "{size}");
        } else {
            assert_eq!(response.error(), 43100, "{size}");
        }
    }
    let far_too_large = of_size(100_000);
    assert_eq!((far_too_large.status, far_too_large.text()), (431, ""), "the library responds without a body");
    let of_number = |number: usize| {
        // The request also has `:authority`, which counts as Host, and Authorization.
        let names: Vec<String> = (2..number).map(|number| format!("X-{number}")).collect();
        let headers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
        Http2::open(ada).call("GET", "/plants", &headers, None)
    };
    assert_eq!(of_number(100).status, 200);
    assert_eq!(of_number(101).error(), 43100);
    let fewer = store.serve(&["--max-headers", "10", "--max-header-bytes", "1024"]);
    let mut few = Http2::open(&fewer.client(ada.token.as_deref().expect("a token")));
    assert_eq!(few.get("/plants").status, 200);
    assert_eq!(few.call("GET", "/plants", &[("X-A", &"x".repeat(1_024))], None).error(), 43100);
});

engine_test!(slow_body_is_rejected_with_408_and_the_connection_stays_open, |store: &Store| {
    let server = store.serve(&["--request-timeout", "300ms"]);
    let ada = server.client(&store.token("ada", &[]));
    let mut connection = Frames::open(server.address(), &[]);
    connection.send(HEADERS, END_HEADERS, 1, &head(&ada, "POST", "/plants", &[JSON]));
    connection.send(DATA, 0, 1, br#"{"id""#);
    assert!(connection.body(1).contains("40800"));
    let reset = connection.next_of(RST_STREAM);
    assert_eq!((reset.stream, reset.reason()), (1, NO_ERROR), "the rest of the body is not needed");
    connection.send(HEADERS, WHOLE, 3, &head(&ada, "GET", "/plants", &[]));
    assert_eq!(connection.body(3), "[]");
});

engine_test!(reset_stream_is_cancelled, |Garden { store, server, ada }: &Garden| {
    let mut connection = Frames::open(server.address(), &[]);
    let held = store.hold_writes();
    connection.send(HEADERS, END_HEADERS, 1, &head(ada, "POST", "/plants", &[JSON]));
    connection.send(DATA, END_STREAM, 1, br#"{"id":1,"name":"Rose"}"#);
    connection.send(HEADERS, WHOLE, 3, &head(ada, "GET", "/livez", &[]));
    assert!(connection.body(3).contains("live"), "the first request is in flight by now");
    connection.send(RST_STREAM, 0, 1, &CANCEL.to_be_bytes());
    let line = wait_for("the log line of the request", || {
        server.log().lines().find(|line| line.contains(r#""method":"POST""#)).map(str::to_owned)
    });
    assert!(
        line.contains(r#""complete":false"#) && !line.contains("status"),
        "a cancelled request has no status: {line}"
    );
    drop(held);
    connection.send(HEADERS, WHOLE, 5, &head(ada, "GET", "/livez", &[]));
    assert!(connection.body(5).contains("live"), "the connection stays usable");
});

engine_test!(authority_is_used_as_host, |Garden { server, ada, .. }: &Garden| {
    let bearer = format!("Bearer {}", ada.token.as_deref().expect("a token"));
    let mut connection = Frames::open(server.address(), &[]);
    let mut stream = 1;
    let mut ask = |hosts: &[(&str, &str)]| {
        let fields = [
            &[(":method", "GET"), (":scheme", "http"), (":path", "/plants")],
            hosts,
            &[("authorization", bearer.as_str())],
        ]
        .concat();
        let block: Vec<u8> = fields.into_iter().flat_map(|(name, value)| field(name, value)).collect();
        connection.send(HEADERS, WHOLE, stream, &block);
        stream += 2;
        connection.body(stream - 2)
    };
    assert_eq!(ask(&[(":authority", "a")]), "[]");
    assert_eq!(ask(&[("host", "a")]), "[]");
    assert_eq!(ask(&[(":authority", "a"), ("host", "A")]), "[]");
    assert!(ask(&[(":authority", "a"), ("host", "b")]).contains("40007"));
    assert!(ask(&[("host", "a"), ("host", "a")]).contains("40007"));
    assert!(ask(&[]).contains("40007"));
});

// The list is read from the store only as far as the client's flow-control window allows, so unread lists use little
// memory.
engine_test!(long_list_follows_flow_control, |store: &Store| {
    let token = store.token("ada", &[]);
    store.insert_plants(100_000, "a plant of this name and number ");
    let server = store.serve(&[]);
    let ada = server.client(&token);
    let whole = ada.get("/plants").body;
    let before = server.resident();
    // Twenty lists whose bodies cannot be sent.
    let mut unread = Frames::open(server.address(), &[(INITIAL_WINDOW, 0)]);
    for number in 0..20 {
        unread.send(HEADERS, WHOLE, 2 * number + 1, &head(&ada, "GET", "/plants", &[]));
    }
    for _ in 0..20 {
        assert_eq!(unread.next_of(HEADERS).flags & END_STREAM, 0);
    }
    let listed = Http2::open(&ada).get("/plants");
    assert_eq!(listed.status, 200);
    assert!(listed.body == whole, "the same bytes");
    assert_eq!(listed.header("content-length"), None);
    let more = server.resident().saturating_sub(before);
    assert!(more < 16 * 1024, "{more} KiB more, of lists with {} KiB each", whole.len() / 1024);
});

// The client opens the largest flow-control window and reads nothing. The memory for its responses is bounded, and the
// connection is closed after `--write-timeout`.
engine_test!(client_that_reads_nothing_is_disconnected, |store: &Store| {
    let token = store.token("ada", &[]);
    store.insert_plants(10_000, &"x".repeat(990));
    let server = store.serve(&["--write-timeout", "2s", "--list-cache-bytes", "0", "--metrics-listen", "0"]);
    let metrics = server.metrics();
    let ada = server.client(&token);
    let whole = ada.get("/plants").body.len() / 1024;
    let before = server.peak();
    let mut unread = Frames::open(server.address(), &[(INITIAL_WINDOW, LARGEST_WINDOW)]);
    unread.send(WINDOW_UPDATE, 0, 0, &(LARGEST_WINDOW - FIRST_WINDOW).to_be_bytes());
    let block = head(&ada, "GET", "/plants", &[]);
    let requests: Vec<u8> = (0..20).flat_map(|number| frame(HEADERS, WHOLE, 2 * number + 1, &block)).collect();
    unread.try_send(&requests).expect("the requests are sent");
    let aborted = |reason| metrics.value("plantstore_http_connections_aborted_total", &[("reason", reason)]);
    wait_until("the connection to be aborted", || aborted("stalled") == 1);
    metrics.wait_for("plantstore_http_responses_incomplete_total", &[], 20);
    assert_eq!(aborted("header_timeout"), 0, "the connection is not counted under another reason");
    let more = server.peak() - before;
    // The server buffers one step of 64 KiB of each list.
    assert!(more < 6 * 1024, "{more} KiB more, of 20 lists with {whole} KiB each");
    while let Some(frame) = unread.next() {
        assert!(frame.kind != DATA || frame.flags & END_STREAM == 0, "a list is complete");
    }
    serves_others(&server);
});

engine_test!(response_blocked_by_flow_control_is_reset, |store: &Store| {
    let server = store.serve(&["--write-timeout", "1s"]);
    let ada = server.client(&store.token("ada", &[]));
    ada.plant(1, "Rose");
    let mut unread = Frames::open(server.address(), &[(INITIAL_WINDOW, 0)]);
    unread.send(HEADERS, WHOLE, 1, &head(&ada, "GET", "/plants", &[]));
    let reset = unread.next_of(RST_STREAM);
    assert_eq!((reset.stream, reset.reason()), (1, CANCEL));
    server.wait_for_log(r#""bytes":0,"complete":false"#);
    // A client that opens the window byte by byte gets the whole response.
    let patient = store.serve(&[]);
    let mut unread = Frames::open(patient.address(), &[(INITIAL_WINDOW, 0)]);
    unread.send(HEADERS, WHOLE, 3, &head(&ada, "GET", "/plants", &[]));
    let mut body = Vec::new();
    while body.len() < 17 {
        unread.send(WINDOW_UPDATE, 0, 3, &1_u32.to_be_bytes());
        body.extend(unread.next_of(DATA).payload);
    }
    assert_eq!(body, br#"[{"name":"Rose"}]"#);
});

engine_test!(http2_requests_in_flight_are_finished_at_shutdown, |Garden { store, server, ada }: &Garden| {
    let mut connection = Frames::open(server.address(), &[]);
    connection.send(HEADERS, END_HEADERS, 1, &head(ada, "POST", "/plants", &[JSON]));
    connection.send(DATA, 0, 1, br#"{"id":1,"#);
    connection.send(HEADERS, WHOLE, 3, &head(ada, "GET", "/readyz", &[]));
    assert!(connection.body(3).contains("ready"), "the first request is in flight by now");
    server.signal("TERM");
    assert_eq!(connection.next_of(GOAWAY).reason(), NO_ERROR, "the server accepts no new streams");
    let ping = connection.next_of(PING);
    // The client may send this before it receives GOAWAY, so it gets a response.
    connection.send(HEADERS, WHOLE, 5, &head(ada, "GET", "/readyz", &[]));
    assert!(connection.body(5).contains("50300"));
    connection.send(PING, ACK, 0, &ping.payload);
    let last = connection.next_of(GOAWAY);
    assert_eq!((last.reason(), &last.payload[..4]), (NO_ERROR, &5_u32.to_be_bytes()[..]), "the last processed stream");
    connection.send(HEADERS, WHOLE, 7, &head(ada, "GET", "/plants", &[]));
    assert!(server.ended().is_none(), "the server waits for the request in flight");
    connection.send(DATA, END_STREAM, 1, br#""name":"in flight"}"#);
    assert_eq!(connection.body(1), r#"{"name":"in flight"}"#);
    while let Some(frame) = connection.next() {
        assert_ne!(frame.stream, 7, "the stream is after the last one in GOAWAY, so it gets no response");
    }
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(store.serve(&[]).client(ada.token.as_deref().expect("a token")).ids(), [1]);
});

engine_test!(clients_that_ignore_goaway_do_not_delay_shutdown, |store: &Store| {
    let server = store.serve(&["--shutdown-grace", "100d"]);
    let mut ignoring = Frames::open(server.address(), &[]);
    ignoring.send(HEADERS, WHOLE, 1, &head(&server.anonymous(), "GET", "/livez", &[]));
    assert!(ignoring.body(1).contains("live"));
    let mut silent = Frames::open(server.address(), &[]);
    silent.next_of(SETTINGS);
    assert_eq!(server.stop().code(), Some(0), "the server ends before the grace period is over");
    assert_eq!((ignoring.ending(), silent.ending()), (Some(NO_ERROR), Some(NO_ERROR)));
});

/// The client never acknowledges the shutdown. Before the connection is closed, GOAWAY names the last processed stream.
#[test]
fn client_that_ignores_goaway_learns_the_last_processed_stream() {
    let store = store();
    let server = store.serve(&["--shutdown-grace", "100d"]);
    let mut ignoring = Frames::open(server.address(), &[]);
    for stream in [1, 3] {
        ignoring.send(HEADERS, WHOLE, stream, &head(&server.anonymous(), "GET", "/livez", &[]));
        assert!(ignoring.body(stream).contains("live"));
    }
    server.signal("TERM");
    let mut reported = Vec::new();
    while let Some(frame) = ignoring.next() {
        if frame.kind == GOAWAY {
            reported.push((u32::from_be_bytes(frame.payload[..4].try_into().unwrap()), frame.reason()));
        }
    }
    assert_eq!(reported, [(u32::MAX >> 1, NO_ERROR), (3, NO_ERROR)]);
    assert_eq!(server.wait().code(), Some(0));
}

/// Returns a store for tests that do not depend on the engine.
fn store() -> Store<'static> {
    Store::new(crate::support::Engine::Sqlite)
}

#[test]
fn protocol_is_detected_by_the_first_different_bytes() {
    let server = store().serve(&[]);
    let ask = |pieces: &[&[u8]]| {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        for piece in pieces {
            stream.write_all(piece).unwrap();
            // Usually the server reads each piece separately.
            std::thread::yield_now();
        }
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        String::from_utf8_lossy(&response).into_owned()
    };
    let rest = b" /plants HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let close = "Connection: close";
    for pieces in [
        [b"P".as_slice(), b"OST", rest].as_slice(),
        &[b"PR", b"OPFIND", rest],
        &[b"PRI", rest],
        &[b"P", b"R", b"I", b" ", b"*", b" HTTP/1.1\r\nHost: x\r\n", close.as_bytes(), b"\r\n\r\n"],
    ] {
        let response = ask(pieces);
        assert!(response.starts_with("HTTP/1.1 401 "), "{pieces:?}: {response}");
    }
    let response = ask(&[b"PRI * HTTP/2.0\r\n\r\nSN\r\n\r\n"]);
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 400 "), "{response}");
    // The preface byte by byte. The next frames arrive together with its last byte.
    let client = server.anonymous();
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in &PREFACE[..PREFACE.len() - 1] {
        stream.write_all(&[*byte]).unwrap();
    }
    let request = frame(HEADERS, WHOLE, 1, &head(&client, "GET", "/livez", &[]));
    stream.write_all(&[&PREFACE[PREFACE.len() - 1..], &frame(SETTINGS, 0, 0, &[]), &request].concat()).unwrap();
    assert!(Frames { stream }.body(1).contains("live"));
}
