//! Tests of the fault-injecting proxy that other tests use.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Proxy, Stage, TIMEOUT, wait_for};

/// A server that responds to each full stop with `ok`, and its received bytes.
#[derive(Clone, Default)]
struct Talker(Arc<Mutex<Vec<u8>>>);

impl Talker {
    fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let talker = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let talker = talker.clone();
                std::thread::spawn(move || talker.talk(stream));
            }
        });
        address
    }

    fn talk(&self, mut stream: TcpStream) {
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() {
            self.0.lock().unwrap().push(byte[0]);
            if byte == *b"." && stream.write_all(b"ok").is_err() {
                return;
            }
        }
        self.0.lock().unwrap().push(b'|');
    }

    /// Received bytes, with a bar for the end of each connection.
    fn heard(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).expect("the proxy listens");
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// The response, or `None` when the connection is over.
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
    for (stage, heard) in [
        (Stage::BeforeSend, "BEGIN.x|BEGIN.COMMIT."),
        (Stage::AfterSend, "BEGIN.xCOMMIT.|BEGIN.COMMIT."),
        (Stage::AfterResponse, "BEGIN.xCOMMIT.|BEGIN.COMMIT."),
    ] {
        let talker = Talker::default();
        let proxy = Proxy::start(talker.start());
        proxy.cut_at(stage, b"COMMIT");
        let mut first = connect(&proxy);
        assert_eq!(ask(&mut first, "BEGIN."), Some(*b"ok"));
        assert_eq!(proxy.cuts(), 0);
        assert_eq!(ask(&mut first, "xCOMMIT."), None, "{stage:?}");
        assert_eq!(proxy.cuts(), 1);
        wait_for("the end at the server", || talker.heard().ends_with('|').then_some(()));
        let mut second = connect(&proxy);
        assert_eq!(ask(&mut second, "BEGIN."), Some(*b"ok"));
        assert_eq!(ask(&mut second, "COMMIT."), Some(*b"ok"), "{stage:?}: once");
        assert_eq!(talker.heard(), heard, "{stage:?}");
        assert_eq!(proxy.cuts(), 1);
    }
}

#[test]
fn armed_cuts_wait_for_one_another() {
    let talker = Talker::default();
    let proxy = Proxy::start(talker.start());
    proxy.cut_at(Stage::BeforeSend, b"COMMIT");
    proxy.cut_at(Stage::AfterResponse, b"BEGIN");
    assert_eq!(ask(&mut connect(&proxy), "BEGIN."), Some(*b"ok"), "it is not its turn");
    assert_eq!(ask(&mut connect(&proxy), "COMMIT."), None);
    assert_eq!(ask(&mut connect(&proxy), "COMMIT."), Some(*b"ok"));
    assert_eq!(ask(&mut connect(&proxy), "BEGIN."), None);
    assert_eq!((ask(&mut connect(&proxy), "BEGIN."), proxy.cuts()), (Some(*b"ok"), 2));
}

#[test]
fn an_armed_cut_for_good_cuts_everything_until_it_heals() {
    for stage in [Stage::BeforeSend, Stage::AfterSend, Stage::AfterResponse] {
        let talker = Talker::default();
        let proxy = Proxy::start(talker.start());
        let (mut one, mut other) = (connect(&proxy), connect(&proxy));
        assert_eq!((ask(&mut one, "."), ask(&mut other, ".")), (Some(*b"ok"), Some(*b"ok")));
        proxy.cut_for_good_at(stage, b"COMMIT");
        assert_eq!(ask(&mut one, "COMMIT."), None, "{stage:?}");
        assert_eq!((read_response(&mut other), ask(&mut connect(&proxy), ".")), (None, None), "{stage:?}");
        proxy.heal();
        assert_eq!(ask(&mut connect(&proxy), "COMMIT."), Some(*b"ok"), "{stage:?}");
        assert_eq!(proxy.cuts(), 1);
    }
}

#[test]
fn an_armed_freeze_holds_back_what_it_was_armed_for() {
    let talker = Talker::default();
    let proxy = Proxy::start(talker.start());
    let mut client = connect(&proxy);
    proxy.freeze_at(b"COMMIT");
    assert_eq!(ask(&mut client, "BEGIN."), Some(*b"ok"));
    assert!(!proxy.is_frozen());
    client.write_all(b"xCOMMIT.").unwrap();
    wait_for("what comes before", || (talker.heard() == "BEGIN.x").then_some(()));
    wait_for("the freeze", || proxy.is_frozen().then_some(()));
    proxy.heal();
    assert_eq!(read_response(&mut client), Some(*b"ok"));
    assert_eq!(talker.heard(), "BEGIN.xCOMMIT.");
}

#[test]
fn a_needle_in_two_pieces_is_found_and_one_that_is_over_is_not() {
    for (stage, heard) in [(Stage::BeforeSend, "COMMIT.COM|"), (Stage::AfterSend, "COMMIT.COMMIT.|")] {
        let talker = Talker::default();
        let proxy = Proxy::start(talker.start());
        let mut client = connect(&proxy);
        assert_eq!(ask(&mut client, "COMMIT."), Some(*b"ok"));
        proxy.cut_at(stage, b"COMMIT");
        client.write_all(b"COM").unwrap();
        wait_for("the first piece", || talker.heard().ends_with("COM").then_some(()));
        assert_eq!(ask(&mut client, "MIT."), None, "{stage:?}");
        wait_for("the end at the server", || talker.heard().ends_with('|').then_some(()));
        assert_eq!((talker.heard().as_str(), proxy.cuts()), (heard, 1), "{stage:?}");
    }
}

#[test]
fn a_cut_closes_everything_until_it_heals() {
    let talker = Talker::default();
    let proxy = Proxy::start(talker.start());
    let mut clients = [connect(&proxy), connect(&proxy)];
    assert!(clients.iter_mut().all(|client| ask(client, ".") == Some(*b"ok")));
    proxy.cut();
    assert!(clients.iter_mut().all(|client| read_response(client).is_none()));
    wait_for("the end at the server", || (talker.heard() == "..||").then_some(()));
    assert_eq!(ask(&mut connect(&proxy), "."), None);
    proxy.heal();
    assert_eq!(ask(&mut connect(&proxy), "."), Some(*b"ok"));
    assert_eq!(proxy.cuts(), 0, "none of them was armed");
}

#[test]
fn a_freeze_holds_everything_back_until_it_heals() {
    let talker = Talker::default();
    let proxy = Proxy::start(talker.start());
    let mut old = connect(&proxy);
    assert_eq!(ask(&mut old, "."), Some(*b"ok"));
    proxy.freeze();
    let mut new = connect(&proxy);
    for client in [&mut old, &mut new] {
        client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert_eq!(ask(client, "."), None);
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
    }
    assert_eq!(talker.heard(), ".");
    proxy.heal();
    assert_eq!((read_response(&mut old), read_response(&mut new)), (Some(*b"ok"), Some(*b"ok")));
    // A cut during a freeze closes all connections, and the bytes that were held back are not forwarded.
    proxy.freeze();
    old.write_all(b"lost.").unwrap();
    let mut newer = connect(&proxy);
    proxy.cut();
    assert_eq!((read_response(&mut old), read_response(&mut newer)), (None, None));
    proxy.heal();
    wait_for("the end at the server", || (talker.heard() == "...||").then_some(()));
}

#[test]
fn end_of_one_side_is_forwarded_to_the_other() {
    let talker = Talker::default();
    let proxy = Proxy::start(talker.start());
    drop(connect(&proxy));
    wait_for("the end at the server", || (talker.heard() == "|").then_some(()));
    // A port that was just released has no listener.
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    assert_eq!(ask(&mut connect(&Proxy::start(closed)), "."), None);
}
