//! Graceful shutdown by SIGTERM and SIGINT: no new connections, requests in flight are finished.

use crate::support::{Client, Connection, JSON, Store, engine_test, sqlite_test, wait_for, wait_until};

/// Sends the head of a create and waits until the server asks for the body.
#[track_caller]
fn unfinished_create(client: &Client) -> Connection {
    let mut connection = client.connect();
    let headers = [JSON, ("Content-Length", "100"), ("Expect", "100-continue")];
    connection.send(client.bytes("POST", "/plants", &headers, None));
    assert_eq!(connection.read_response(false).status, 100, "the server has read the head and waits for the body");
    connection
}

// A closed SQLite store is one file, without WAL files.
sqlite_test!(a_clean_stop_leaves_one_file, |store: &Store| {
    let files = || {
        let names =
            std::fs::read_dir(store.directory()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    let token = store.token("ada", &[]);
    assert_eq!(files(), ["plants.db"], "a command leaves one file");
    let server = store.serve(&[]);
    server.client(&token).plant(1, "Rose");
    assert!(files().len() > 1);
    server.stop();
    assert_eq!(files(), ["plants.db"], "a server leaves one file");
});

engine_test!(requests_in_flight_are_finished, |store: &Store| {
    for signal in ["TERM", "INT"] {
        let server = store.serve(&[]);
        let ada = server.client(&store.token("ada", &[]));
        let id = i64::from(server.id());
        let body = format!(r#"{{"id":{id},"name":"in flight"}}"#);
        let bytes = ada.bytes("POST", "/plants", &[JSON, ("Expect", "100-continue")], Some(body.as_bytes()));
        let (first, last) = bytes.split_at(bytes.len() - 5);
        let mut unfinished = ada.connect();
        unfinished.send(first);
        assert_eq!(unfinished.read_response(false).status, 100, "the server has read the head and waits for the body");
        let mut idle = [ada.connect(), ada.connect()];
        for connection in &mut idle {
            assert_eq!(connection.ask(ada.bytes("GET", "/livez", &[], None)).status, 200);
        }
        server.signal(signal);
        let [mut idle, mut spare] = idle;
        let ask = |connection: &mut Connection| connection.ask(ada.bytes("GET", "/readyz", &[], None));
        let mut draining = wait_for("the server to drain", || {
            Some(ask(&mut idle)).filter(|response| response.header("connection") == Some("close"))
        });
        if draining.status == 200 {
            // The shutdown began between the check and the response.
            draining = ask(&mut spare);
            idle = spare;
        }
        assert_eq!(draining.error(), 50300);
        assert_eq!(draining.header("retry-after"), Some("1"));
        assert_eq!(draining.header("connection"), Some("close"));
        assert!(idle.is_closed_by_server());
        wait_until("new connections to be refused", || Connection::try_open(server.address()).is_err());
        assert!(server.ended().is_none(), "the server waits for the request in flight");
        let response = unfinished.ask(last);
        assert_eq!(response.text(), r#"{"name":"in flight"}"#);
        assert!(unfinished.is_closed_by_server());
        assert_eq!(server.wait().code(), Some(0));
        let again = store.serve(&[]);
        assert!(again.client(ada.token.as_deref().expect("a token")).ids().contains(&id));
        assert_eq!(again.stop().code(), Some(0));
    }
});

engine_test!(idle_connections_do_not_delay_shutdown, |store: &Store| {
    let server = store.serve(&["--shutdown-grace", "100d"]);
    let mut idle: Vec<Connection> = (0..5).map(|_| Connection::open(server.address())).collect();
    for connection in &mut idle[..3] {
        assert_eq!(connection.ask("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);
    }
    assert_eq!(server.stop().code(), Some(0), "the server ends before the grace period is over");
    assert!(idle.iter_mut().all(Connection::is_closed_by_server));
});

engine_test!(unfinished_requests_are_cut_off_after_the_grace_period, |store: &Store| {
    let server = store.serve(&["--shutdown-grace", "300ms"]);
    let mut unfinished = unfinished_create(&server.client(&store.token("ada", &[])));
    assert_eq!(server.stop().code(), Some(0));
    assert!(unfinished.is_closed_by_server());
    assert!(server.log().contains(r#""connections":1,"store_closed":"#), "{}", server.log());
});

engine_test!(second_signal_ends_the_server_at_once, |store: &Store| {
    let server = store.serve(&["--shutdown-grace", "100d"]);
    let _unfinished = unfinished_create(&server.client(&store.token("ada", &[])));
    server.signal("TERM");
    server.wait_for_log("shutting down");
    assert!(server.ended().is_none());
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(1));
    assert!(server.log().contains("stopped immediately"), "{}", server.log());
});
