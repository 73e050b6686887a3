//! Tests of the fault-injecting proxy that other tests use.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Stage, TIMEOUT, TcpProxy, wait_until};

const QUERY: u8 = b'Q';
const COMMAND_COMPLETE: u8 = b'C';
const READY_FOR_QUERY: u8 = b'Z';
/// A query to which [`StubDatabase`] responds when it has received the next one.
const LATE: &str = "late";

/// Returns a message of PostgreSQL's protocol.
fn message(kind: u8, text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len() + 5).unwrap().to_be_bytes();
    [&[kind], &length[..], text.as_bytes(), b"\0"].concat()
}

fn startup() -> Vec<u8> {
    [8_u32, 196_608].map(u32::to_be_bytes).concat()
}

/// Reads a message and returns its type and its text.
fn read_message(stream: &mut TcpStream) -> Option<(u8, String)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head).ok()?;
    let [kind, length @ ..] = head;
    let mut text = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap() - 4];
    stream.read_exact(&mut text).ok()?;
    Some((kind, String::from_utf8(text).unwrap().trim_end_matches('\0').to_owned()))
}

/// A server that responds to each query with its text and records the queries.
#[derive(Clone, Default)]
struct StubDatabase(Arc<Mutex<String>>);

impl StubDatabase {
    fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = server.clone();
                std::thread::spawn(move || server.serve(stream));
            }
        });
        address
    }

    fn serve(&self, mut stream: TcpStream) {
        if stream.read_exact(&mut [0; 8]).is_ok() {
            let _ = stream.write_all(&message(READY_FOR_QUERY, ""));
            let mut responses = Vec::new();
            while let Some((_, query)) = read_message(&mut stream) {
                self.record(&query);
                self.record(".");
                responses.extend(message(COMMAND_COMPLETE, &query));
                responses.extend(message(READY_FOR_QUERY, ""));
                if query != LATE && stream.write_all(&std::mem::take(&mut responses)).is_err() {
                    return;
                }
            }
        }
        self.record("|");
    }

    fn record(&self, text: &str) {
        self.0.lock().unwrap().push_str(text);
    }

    /// Returns the received queries with a full stop after each, and a bar for the end of each connection.
    fn received(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

fn connect(proxy: &TcpProxy) -> TcpStream {
    let mut stream = TcpStream::connect(proxy.address()).expect("the proxy listens");
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    // The proxy may have closed the connection already.
    let _ = stream.write_all(&startup());
    stream
}

/// Reads the response to a query; `None` if the connection has ended.
fn read_response(stream: &mut TcpStream) -> Option<String> {
    loop {
        match read_message(stream)? {
            (COMMAND_COMPLETE, text) => return Some(text),
            (kind, _) => assert_eq!(kind, READY_FOR_QUERY),
        }
    }
}

/// Returns true if the query gets its response, and false if the connection has ended.
fn ask(stream: &mut TcpStream, query: &str) -> bool {
    if stream.write_all(&message(QUERY, query)).is_err() {
        return false;
    }
    let response = read_response(stream);
    assert!(response.as_deref().is_none_or(|response| response == query), "{response:?}");
    response.is_some()
}

#[test]
fn an_armed_cut_happens_once_at_its_stage() {
    for (stage, received) in [
        (Stage::BeforeSend, "BEGIN.|BEGIN.COMMIT."),
        (Stage::AfterSend, "BEGIN.COMMIT.|BEGIN.COMMIT."),
        (Stage::AfterResponse, "BEGIN.COMMIT.|BEGIN.COMMIT."),
    ] {
        let server = StubDatabase::default();
        let proxy = TcpProxy::start(server.start());
        proxy.cut_at(stage, b"COMMIT\0");
        let mut first = connect(&proxy);
        assert!(ask(&mut first, "BEGIN"));
        assert_eq!(proxy.cuts(), 0);
        assert!(!ask(&mut first, "COMMIT"), "{stage:?}");
        assert_eq!(proxy.cuts(), 1);
        wait_until("the server to see the end of the connection", || server.received().ends_with('|'));
        let mut second = connect(&proxy);
        assert!(ask(&mut second, "BEGIN"));
        assert!(ask(&mut second, "COMMIT"), "{stage:?}: only the first connection is cut");
        assert_eq!(server.received(), received, "{stage:?}");
        assert_eq!(proxy.cuts(), 1);
    }
}

/// Responses to earlier requests arrive after the needle was sent. They are forwarded, and only the response to the
/// needle is lost.
#[test]
fn response_to_an_earlier_request_is_not_taken_for_that_to_the_needle() {
    let server = StubDatabase::default();
    let proxy = TcpProxy::start(server.start());
    proxy.cut_at(Stage::AfterResponse, b"COMMIT\0");
    let mut client = connect(&proxy);
    for query in [LATE, LATE, "COMMIT"] {
        client.write_all(&message(QUERY, query)).unwrap();
    }
    let responses = [(); 3].map(|()| read_response(&mut client));
    assert_eq!(responses, [Some(LATE.to_owned()), Some(LATE.to_owned()), None]);
    wait_until("the server to see the end of the connection", || server.received().ends_with('|'));
    assert_eq!((server.received().as_str(), proxy.cuts()), ("late.late.COMMIT.|", 1));
}

#[test]
fn armed_cuts_happen_in_the_order_of_their_calls() {
    let server = StubDatabase::default();
    let proxy = TcpProxy::start(server.start());
    proxy.cut_at(Stage::BeforeSend, b"COMMIT");
    proxy.cut_at(Stage::AfterResponse, b"BEGIN");
    assert!(ask(&mut connect(&proxy), "BEGIN"), "the cut before it has not happened");
    assert!(!ask(&mut connect(&proxy), "COMMIT"));
    assert!(ask(&mut connect(&proxy), "COMMIT"));
    assert!(!ask(&mut connect(&proxy), "BEGIN"));
    assert!(ask(&mut connect(&proxy), "BEGIN"));
    assert_eq!(proxy.cuts(), 2);
}

#[test]
fn an_armed_cut_of_all_connections_lasts_until_heal() {
    for stage in [Stage::BeforeSend, Stage::AfterSend, Stage::AfterResponse] {
        let server = StubDatabase::default();
        let proxy = TcpProxy::start(server.start());
        let mut one = connect(&proxy);
        let mut other = connect(&proxy);
        assert!(ask(&mut one, "SELECT") && ask(&mut other, "SELECT"));
        proxy.cut_all_at(stage, b"COMMIT");
        assert!(!ask(&mut one, "COMMIT"), "{stage:?}");
        assert_eq!(read_response(&mut other), None, "{stage:?}");
        assert!(!ask(&mut connect(&proxy), "SELECT"), "{stage:?}");
        proxy.heal();
        assert!(ask(&mut connect(&proxy), "COMMIT"), "{stage:?}");
        assert_eq!(proxy.cuts(), 1);
    }
}

#[test]
fn an_armed_freeze_holds_back_the_needle() {
    let server = StubDatabase::default();
    let proxy = TcpProxy::start(server.start());
    let mut client = connect(&proxy);
    proxy.freeze_at(b"COMMIT");
    assert!(ask(&mut client, "BEGIN"));
    assert!(!proxy.is_frozen());
    client.write_all(&[message(QUERY, "SELECT"), message(QUERY, "COMMIT")].concat()).unwrap();
    wait_until("the message before the needle", || server.received() == "BEGIN.SELECT.");
    wait_until("the proxy to freeze", || proxy.is_frozen());
    proxy.heal();
    assert_eq!([(); 2].map(|()| read_response(&mut client).unwrap()), ["SELECT", "COMMIT"]);
    assert_eq!(server.received(), "BEGIN.SELECT.COMMIT.");
}

#[test]
fn message_that_arrives_in_two_pieces_is_found() {
    for (stage, received) in [(Stage::BeforeSend, "COMMIT.|"), (Stage::AfterSend, "COMMIT.COMMIT.|")] {
        let server = StubDatabase::default();
        let proxy = TcpProxy::start(server.start());
        let mut client = connect(&proxy);
        // A needle that was sent before the cut was armed does not count.
        assert!(ask(&mut client, "COMMIT"));
        proxy.cut_at(stage, b"COMMIT");
        client.set_nodelay(true).unwrap();
        for piece in message(QUERY, "COMMIT").chunks(8) {
            client.write_all(piece).unwrap();
        }
        assert_eq!(read_response(&mut client), None, "{stage:?}");
        wait_until("the server to see the end of the connection", || server.received().ends_with('|'));
        assert_eq!((server.received().as_str(), proxy.cuts()), (received, 1), "{stage:?}");
    }
}

#[test]
fn a_cut_closes_all_connections_until_heal() {
    let server = StubDatabase::default();
    let proxy = TcpProxy::start(server.start());
    let mut clients = [connect(&proxy), connect(&proxy)];
    assert!(clients.iter_mut().all(|client| ask(client, "")));
    proxy.cut();
    assert!(clients.iter_mut().all(|client| read_response(client).is_none()));
    wait_until("the server to see the end of the connection", || server.received() == "..||");
    assert!(!ask(&mut connect(&proxy), ""));
    proxy.heal();
    assert!(ask(&mut connect(&proxy), ""));
    assert_eq!(proxy.cuts(), 0, "only armed cuts are counted");
}

#[test]
fn a_freeze_holds_back_all_bytes_until_heal() {
    let server = StubDatabase::default();
    let proxy = TcpProxy::start(server.start());
    let mut old = connect(&proxy);
    assert!(ask(&mut old, ""));
    proxy.freeze();
    let mut new = connect(&proxy);
    for client in [&mut old, &mut new] {
        client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert!(!ask(client, ""));
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
    }
    assert_eq!(server.received(), ".");
    proxy.heal();
    assert!(read_response(&mut old).is_some() && read_response(&mut new).is_some());
    // A cut during a freeze closes all connections, and the messages that were held back are not forwarded.
    proxy.freeze();
    old.write_all(&message(QUERY, "lost")).unwrap();
    let mut newer = connect(&proxy);
    proxy.cut();
    assert_eq!((read_response(&mut old), read_response(&mut newer)), (None, None));
    proxy.heal();
    wait_until("the server to see the end of the connection", || server.received() == "...||");
}

#[test]
fn end_of_one_side_is_forwarded_to_the_other() {
    let server = StubDatabase::default();
    let proxy = TcpProxy::start(server.start());
    drop(connect(&proxy));
    wait_until("the server to see the end of the connection", || server.received() == "|");
    // A port that was just released has no listener.
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    assert!(!ask(&mut connect(&TcpProxy::start(closed)), ""));
}
