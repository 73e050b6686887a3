//! Tests of the fault-injecting proxy that other tests use.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Stage, TIMEOUT, TcpProxy, wait_for};

/// A server that responds to each full stop with `ok` and records the bytes that it receives.
#[derive(Clone, Default)]
struct OkServer(Arc<Mutex<Vec<u8>>>);

impl OkServer {
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
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() {
            self.0.lock().unwrap().push(byte[0]);
            if byte == *b"." && stream.write_all(b"ok").is_err() {
                return;
            }
        }
        self.0.lock().unwrap().push(b'|');
    }

    /// Returns the received bytes, with a bar for the end of each connection.
    fn received(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn connect(proxy: &TcpProxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).expect("the proxy listens");
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Reads a response; `None` if the connection has ended.
fn read_response(stream: &mut TcpStream) -> Option<[u8; 2]> {
    let mut response = [0; 2];
    stream.read_exact(&mut response).is_ok().then_some(response)
}

fn ask(stream: &mut TcpStream, words: &str) -> Option<[u8; 2]> {
    stream.write_all(words.as_bytes()).ok()?;
    read_response(stream)
}

#[test]
fn an_armed_cut_happens_once_at_its_stage() {
    for (stage, received) in [
        (Stage::BeforeSend, "BEGIN.x|BEGIN.COMMIT."),
        (Stage::AfterSend, "BEGIN.xCOMMIT.|BEGIN.COMMIT."),
        (Stage::AfterResponse, "BEGIN.xCOMMIT.|BEGIN.COMMIT."),
    ] {
        let server = OkServer::default();
        let proxy = TcpProxy::start(server.start());
        proxy.cut_at(stage, b"COMMIT");
        let mut first = connect(&proxy);
        assert_eq!(ask(&mut first, "BEGIN."), Some(*b"ok"));
        assert_eq!(proxy.cuts(), 0);
        assert_eq!(ask(&mut first, "xCOMMIT."), None, "{stage:?}");
        assert_eq!(proxy.cuts(), 1);
        wait_for("the server to see the end of the connection", || server.received().ends_with('|').then_some(()));
        let mut second = connect(&proxy);
        assert_eq!(ask(&mut second, "BEGIN."), Some(*b"ok"));
        assert_eq!(ask(&mut second, "COMMIT."), Some(*b"ok"), "{stage:?}: only the first connection is cut");
        assert_eq!(server.received(), received, "{stage:?}");
        assert_eq!(proxy.cuts(), 1);
    }
}

#[test]
fn armed_cuts_happen_in_the_order_of_their_calls() {
    let server = OkServer::default();
    let proxy = TcpProxy::start(server.start());
    proxy.cut_at(Stage::BeforeSend, b"COMMIT");
    proxy.cut_at(Stage::AfterResponse, b"BEGIN");
    assert_eq!(ask(&mut connect(&proxy), "BEGIN."), Some(*b"ok"), "the cut before it has not happened");
    assert_eq!(ask(&mut connect(&proxy), "COMMIT."), None);
    assert_eq!(ask(&mut connect(&proxy), "COMMIT."), Some(*b"ok"));
    assert_eq!(ask(&mut connect(&proxy), "BEGIN."), None);
    assert_eq!((ask(&mut connect(&proxy), "BEGIN."), proxy.cuts()), (Some(*b"ok"), 2));
}

#[test]
fn an_armed_cut_of_all_connections_lasts_until_heal() {
    for stage in [Stage::BeforeSend, Stage::AfterSend, Stage::AfterResponse] {
        let server = OkServer::default();
        let proxy = TcpProxy::start(server.start());
        let (mut one, mut other) = (connect(&proxy), connect(&proxy));
        assert_eq!((ask(&mut one, "."), ask(&mut other, ".")), (Some(*b"ok"), Some(*b"ok")));
        proxy.cut_all_at(stage, b"COMMIT");
        assert_eq!(ask(&mut one, "COMMIT."), None, "{stage:?}");
        assert_eq!((read_response(&mut other), ask(&mut connect(&proxy), ".")), (None, None), "{stage:?}");
        proxy.heal();
        assert_eq!(ask(&mut connect(&proxy), "COMMIT."), Some(*b"ok"), "{stage:?}");
        assert_eq!(proxy.cuts(), 1);
    }
}

#[test]
fn an_armed_freeze_holds_back_the_needle() {
    let server = OkServer::default();
    let proxy = TcpProxy::start(server.start());
    let mut client = connect(&proxy);
    proxy.freeze_at(b"COMMIT");
    assert_eq!(ask(&mut client, "BEGIN."), Some(*b"ok"));
    assert!(!proxy.is_frozen());
    client.write_all(b"xCOMMIT.").unwrap();
    wait_for("the bytes before the needle", || (server.received() == "BEGIN.x").then_some(()));
    wait_for("the proxy to freeze", || proxy.is_frozen().then_some(()));
    proxy.heal();
    assert_eq!(read_response(&mut client), Some(*b"ok"));
    assert_eq!(server.received(), "BEGIN.xCOMMIT.");
}

#[test]
fn needle_that_arrives_in_two_pieces_is_found() {
    for (stage, received) in [(Stage::BeforeSend, "COMMIT.COM|"), (Stage::AfterSend, "COMMIT.COMMIT.|")] {
        let server = OkServer::default();
        let proxy = TcpProxy::start(server.start());
        let mut client = connect(&proxy);
        // A needle that was sent before the cut was armed does not count.
        assert_eq!(ask(&mut client, "COMMIT."), Some(*b"ok"));
        proxy.cut_at(stage, b"COMMIT");
        client.write_all(b"COM").unwrap();
        wait_for("the first piece", || server.received().ends_with("COM").then_some(()));
        assert_eq!(ask(&mut client, "MIT."), None, "{stage:?}");
        wait_for("the server to see the end of the connection", || server.received().ends_with('|').then_some(()));
        assert_eq!((server.received().as_str(), proxy.cuts()), (received, 1), "{stage:?}");
    }
}

#[test]
fn a_cut_closes_all_connections_until_heal() {
    let server = OkServer::default();
    let proxy = TcpProxy::start(server.start());
    let mut clients = [connect(&proxy), connect(&proxy)];
    assert!(clients.iter_mut().all(|client| ask(client, ".") == Some(*b"ok")));
    proxy.cut();
    assert!(clients.iter_mut().all(|client| read_response(client).is_none()));
    wait_for("the server to see the end of the connection", || (server.received() == "..||").then_some(()));
    assert_eq!(ask(&mut connect(&proxy), "."), None);
    proxy.heal();
    assert_eq!(ask(&mut connect(&proxy), "."), Some(*b"ok"));
    assert_eq!(proxy.cuts(), 0, "only armed cuts are counted");
}

#[test]
fn a_freeze_holds_back_all_bytes_until_heal() {
    let server = OkServer::default();
    let proxy = TcpProxy::start(server.start());
    let mut old = connect(&proxy);
    assert_eq!(ask(&mut old, "."), Some(*b"ok"));
    proxy.freeze();
    let mut new = connect(&proxy);
    for client in [&mut old, &mut new] {
        client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert_eq!(ask(client, "."), None);
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
    }
    assert_eq!(server.received(), ".");
    proxy.heal();
    assert_eq!((read_response(&mut old), read_response(&mut new)), (Some(*b"ok"), Some(*b"ok")));
    // A cut during a freeze closes all connections, and the bytes that were held back are not forwarded.
    proxy.freeze();
    old.write_all(b"lost.").unwrap();
    let mut newer = connect(&proxy);
    proxy.cut();
    assert_eq!((read_response(&mut old), read_response(&mut newer)), (None, None));
    proxy.heal();
    wait_for("the server to see the end of the connection", || (server.received() == "...||").then_some(()));
}

#[test]
fn end_of_one_side_is_forwarded_to_the_other() {
    let server = OkServer::default();
    let proxy = TcpProxy::start(server.start());
    drop(connect(&proxy));
    wait_for("the server to see the end of the connection", || (server.received() == "|").then_some(()));
    // A port that was just released has no listener.
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    assert_eq!(ask(&mut connect(&TcpProxy::start(closed)), "."), None);
}
