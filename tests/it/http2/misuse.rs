//! Clients that misuse HTTP/2: silent, slow or flooding.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::{WHOLE, logged, serves_others, store};
use crate::support::http2::{
    ACK, CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, GOAWAY, HEADERS,
    INITIAL_WINDOW, NO_ERROR, PING, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE, field, frame, head, setting,
};
use crate::support::{Connection, JSON, wait_until};

#[test]
fn incomplete_preface_is_an_incomplete_head() {
    let server = store().serve(&["--header-timeout", "3s", "--idle-timeout", "60s"]);
    let mut connection = Connection::open(server.address());
    assert_eq!(connection.ask(&PREFACE[..10]).error(), 40800);
    assert!(connection.is_closed_by_server());
}

#[test]
fn connection_without_a_request_is_closed_despite_pings() {
    let server = store().serve(&["--header-timeout", "3s", "--idle-timeout", "60s"]);
    let mut silent = Frames::open(server.address(), &[]);
    assert_eq!(silent.ending(), Some(NO_ERROR));
    let mut pinging = Frames::open(server.address(), &[]);
    let ping = frame(PING, 0, 0, b"eightful");
    wait_until("the server to disconnect", || pinging.try_send(&ping).is_err());
    // The client sends the preface and no SETTINGS frame.
    let mut mute = TcpStream::connect(server.address()).unwrap();
    mute.write_all(PREFACE).unwrap();
    let mut frames = Vec::new();
    mute.read_to_end(&mut frames).unwrap();
    assert_eq!(frames[3], SETTINGS);
}

#[test]
fn idle_http2_connection_is_closed_with_goaway() {
    let server = store().serve(&["--idle-timeout", "3s"]);
    let mut connection = Frames::open(server.address(), &[]);
    for stream in [1, 3] {
        connection.send(HEADERS, WHOLE, stream, &head(&server.anonymous(), "GET", "/livez", &[]));
        assert!(connection.body(stream).contains("live"));
    }
    assert_eq!(connection.next_of(GOAWAY).reason(), NO_ERROR);
    let ping = connection.next_of(PING);
    connection.send(PING, ACK, 0, &ping.payload);
    assert_eq!(connection.ending(), Some(NO_ERROR));
}

#[test]
fn incomplete_head_times_out_while_other_streams_are_in_flight() {
    let store = store();
    let server = store.serve(&["--header-timeout", "3s", "--idle-timeout", "60s", "--request-timeout", "60s"]);
    let ada = server.client(&store.token("ada", &[]));
    let block = head(&ada, "GET", "/plants", &[]);
    let whole = frame(HEADERS, WHOLE, 3, &block);
    // Incomplete frames, and a complete frame without the end of the head.
    for unfinished in [&whole[..whole.len() - 1], &whole[..5], &frame(HEADERS, END_STREAM, 3, &block)] {
        let mut connection = Frames::open(server.address(), &[]);
        connection.send(HEADERS, END_HEADERS, 1, &head(&ada, "POST", "/plants", &[JSON]));
        connection.send(PING, 0, 0, b"eightful");
        connection.next_of(PING);
        connection.try_send(unfinished).unwrap();
        assert_eq!(connection.ending(), None, "{unfinished:?}");
    }
    // A body may be slow.
    let mut connection = Frames::open(server.address(), &[]);
    connection.send(HEADERS, END_HEADERS, 1, &head(&ada, "POST", "/plants", &[JSON]));
    let body = frame(DATA, END_STREAM, 1, br#"{"id":1,"name":"slow"}"#);
    let (first, last) = body.split_at(20);
    connection.try_send(first).unwrap();
    let mut other = Frames::open(server.address(), &[]);
    assert_eq!(other.ending(), Some(NO_ERROR), "the pause is longer than the header timeout");
    connection.try_send(last).unwrap();
    assert_eq!(connection.body(1), r#"{"name":"slow"}"#);
}

/// The timeout for the first request and the timeout for a head both apply. The connection is closed and counted once.
#[test]
fn incomplete_first_head_is_counted_once() {
    let server = store().serve(&["--header-timeout", "5s", "--metrics-listen", "0"]);
    let metrics = server.metrics();
    let mut connection = Frames::open(server.address(), &[]);
    connection.send(PING, 0, 0, b"eightful");
    connection.next_of(PING);
    connection.try_send(&frame(HEADERS, WHOLE, 1, &head(&server.anonymous(), "GET", "/livez", &[]))[..20]).unwrap();
    connection.ending();
    metrics.wait_for("plantstore_http_connections", &[], 0);
    assert_eq!(metrics.value("plantstore_http_connections_aborted_total", &[]), 1);
}

/// A request that is reset at once costs the client almost nothing, so a client with too many resets is disconnected.
#[test]
fn rapid_resets_close_the_connection() {
    let store = store();
    let server = store.serve(&[]);
    let ada = server.client(&store.token("ada", &[]));
    let mut connection = Frames::open(server.address(), &[]);
    let block = head(&ada, "GET", "/plants", &[]);
    let mut flood = Vec::new();
    for number in 0..20_000_u32 {
        flood.extend(frame(HEADERS, WHOLE, 2 * number + 1, &block));
        flood.extend(frame(RST_STREAM, 0, 2 * number + 1, &CANCEL.to_be_bytes()));
    }
    // The server may disconnect before everything is sent.
    let _ = connection.try_send(&flood);
    assert_eq!(connection.ending(), Some(ENHANCE_YOUR_CALM));
    serves_others(&server);
    assert!(logged(&server) < 5_000, "{} requests were started", logged(&server));
}

#[test]
fn endless_continuation_frames_close_the_connection() {
    let store = store();
    let server = store.serve(&[]);
    let ada = server.client(&store.token("ada", &[]));
    let mut connection = Frames::open(server.address(), &[]);
    connection.send(HEADERS, END_STREAM, 1, &head(&ada, "GET", "/plants", &[]));
    let mut flood = Vec::new();
    for _ in 0..20_000 {
        flood.extend(frame(CONTINUATION, 0, 1, &field("x-more", "and more")));
    }
    let _ = connection.try_send(&flood);
    assert_eq!(connection.ending(), Some(ENHANCE_YOUR_CALM));
    serves_others(&server);
    assert_eq!(server.log().matches(r#""route":"/plants""#).count(), 0, "no request was started");
}

#[test]
fn empty_data_frames_close_the_connection() {
    let store = store();
    let server = store.serve(&["--metrics-listen", "0"]);
    let ada = server.client(&store.token("ada", &[]));
    let mut connection = Frames::open(server.address(), &[]);
    connection.send(HEADERS, END_HEADERS, 1, &head(&ada, "POST", "/plants", &[JSON]));
    let _ = connection.try_send(&frame(DATA, 0, 1, b"").repeat(20_000));
    assert_eq!(connection.ending(), Some(ENHANCE_YOUR_CALM));
    server.metrics().wait_for("plantstore_http_connections_aborted_total", &[("reason", "protocol_violation")], 1);
    serves_others(&server);
}

/// The client stores a large field in the HPACK dynamic table and refers to it many times.
#[test]
fn header_compression_bomb_closes_the_connection() {
    let server = store().serve(&[]);
    let before = server.resident();
    let mut connection = Frames::open(server.address(), &[]);
    let mut block = head(&server.anonymous(), "GET", "/livez", &[]);
    // 0x40 is the prefix of a literal with indexing; 0x3e is the first index of the dynamic table.
    let mut bomb = field("x-bomb", &"x".repeat(4_000));
    bomb[0] = 0x40;
    block.extend(bomb);
    block.resize(16_000, 0x80 | 0x3e);
    connection.send(HEADERS, WHOLE, 1, &block);
    assert_eq!(connection.ending(), Some(ENHANCE_YOUR_CALM), "16 KB would decode to 48 MB");
    assert!(server.resident() < before + 16 * 1024);
    serves_others(&server);
}

#[test]
fn floods_of_small_frames_do_not_delay_other_clients() {
    let store = store();
    let server = store.serve(&["--header-timeout", "5s"]);
    let ada = server.client(&store.token("ada", &[]));
    let post = frame(HEADERS, END_HEADERS, 1, &head(&ada, "POST", "/plants", &[JSON]));
    let floods = [
        (vec![], frame(SETTINGS, 0, 0, &setting(INITIAL_WINDOW, 1))),
        (vec![], frame(PING, 0, 0, b"eightful")),
        (vec![], frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())),
        // An endless body of empty frames.
        (post, frame(DATA, 0, 1, b"")),
    ]
    .map(|(first, frame)| (first, frame.repeat(2_000)));
    std::thread::scope(|scope| {
        for (first, flood) in &floods {
            scope.spawn(|| {
                let mut connection = Frames::open(server.address(), &[]);
                connection.try_send(first).expect("the first frame is sent");
                // The responses are not read.
                wait_until("the server to disconnect", || connection.try_send(flood).is_err());
            });
        }
        for _ in 0..50 {
            serves_others(&server);
        }
    });
}
