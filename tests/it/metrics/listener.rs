//! The metrics listener: its addresses, and slow and idle clients.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::LISTEN;
use crate::support::{
    CommandOutput, Connection, JSON, Server, Service, Store, engine_test, sqlite_test, tool_test, wait_until,
};

/// Returns the addresses that a process listens on, in the notation of `/proc/net/tcp`.
fn listening(server: &Server) -> BTreeSet<String> {
    let files = std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap();
    let targets = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    let sockets: BTreeSet<String> = targets
        .filter_map(|target| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    ["tcp", "tcp6"]
        .iter()
        .flat_map(|table| {
            let table = std::fs::read_to_string(format!("/proc/{}/net/{table}", server.id())).unwrap();
            table
                .lines()
                .skip(1)
                .map(|line| line.split_whitespace().map(str::to_owned).collect())
                .collect::<Vec<Vec<_>>>()
        })
        // Field 1 is the local address, 3 the state (0A is LISTEN), 9 the inode of the socket.
        .filter(|line| line[3] == "0A" && sockets.contains(&line[9]))
        .map(|line| line[1].clone())
        .collect()
}

fn hexadecimal(port: u16) -> String {
    let address = u32::from_le_bytes(Ipv4Addr::LOCALHOST.octets());
    format!("{address:08X}:{port:04X}")
}

engine_test!(metrics_are_served_only_on_their_own_port, |store: &Store| {
    let server = store.serve(&[]);
    // The metrics listener is off by default.
    assert_eq!(listening(&server), BTreeSet::from([hexadecimal(server.address().port())]));
    let server = store.serve(&LISTEN);
    let ada = server.client(&store.token("ada", &[]));
    assert_eq!(ada.get("/metrics").error(), 40401, "the public port has no metrics");
    assert_eq!(server.anonymous().get("/metrics").error(), 40100);
    let metrics = server.metrics();
    let ports = [server.address().port(), metrics.client().address.port()];
    assert_eq!(listening(&server), ports.map(hexadecimal).into(), "metrics are on loopback by default");
    let response = metrics.read_response();
    assert_eq!(response.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert_eq!(response.header("cache-control"), Some("no-store"));
    let plain = metrics.client().get("/metrics");
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(
        plain.text().contains("# TYPE plantstore_http_requests_total counter\n") && !plain.text().contains("# EOF")
    );
    let head = metrics.client().call("HEAD", "/metrics", &[], None);
    assert_eq!((head.status, head.body.len()), (200, 0));
    let client = metrics.client();
    assert_eq!(client.get("/").error(), 40401);
    assert_eq!(client.get("/plants").message(), "there is nothing at this address: the metrics are at /metrics");
    let rejected = client.call("POST", "/metrics", &[], None);
    assert_eq!((rejected.error(), rejected.header("allow")), (40500, Some("GET,HEAD")));
    // Requests to the metrics listener are not counted.
    assert_eq!(metrics.value("plantstore_http_requests_total", &[("status", "404")]), 1);
});

engine_test!(metrics_are_served_until_the_end_of_a_shutdown, |store: &Store| {
    let server = store.serve(&[&LISTEN[..], &["--shutdown-grace", "100d"]].concat());
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &[]));
    let mut unfinished = ada.connect();
    let head = ada.bytes("POST", "/plants", &[JSON, ("Content-Length", "19"), ("Expect", "100-continue")], None);
    assert_eq!(unfinished.ask(head).status, 100);
    server.signal("TERM");
    metrics.wait_for("plantstore_draining", &[], 1);
    wait_until("new connections to be refused", || Connection::try_open(server.address()).is_err());
    assert_eq!(metrics.value("plantstore_http_requests_in_flight", &[]), 1);
    assert_eq!(unfinished.ask(r#"{"id":1,"name":"n"}"#).status, 200);
    assert_eq!(server.wait().code(), Some(0));
});

sqlite_test!(slow_clients_are_disconnected, &LISTEN, |Service { server, .. }: &Service| {
    let metrics = server.metrics();
    let address = metrics.client().address;
    let mut slow = Connection::open(address);
    slow.send("GET /metrics HTTP/1.1\r\nHost: x\r\n");
    let mut silent = Connection::open(address);
    assert_eq!(slow.read_response(false).error(), 40800);
    assert!(slow.is_closed_by_server() && silent.is_closed_by_server());
    // Connections to the metrics listener are not counted.
    assert_eq!(metrics.value("plantstore_http_connections_accepted_total", &[]), 0);
});

// A connection carries one request, and the oldest is closed for a new one, so that clients cannot keep others out by
// holding all connections, however often they send something.
sqlite_test!(held_connections_do_not_block_scrapes, &LISTEN, |Service { server, .. }: &Service| {
    let metrics = server.metrics();
    let client = metrics.client();
    let mut done = client.connect();
    let response = done.ask(client.bytes("GET", "/metrics", &[], None));
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    assert!(done.is_closed_by_server());
    let mut held: Vec<Connection> = Vec::new();
    for _ in 0..3 {
        held.extend((0..16).map(|_| client.connect()));
        for connection in &mut held {
            let _ = connection.try_send("GET /metrics HTTP/1.1\r\nHost: x\r\n");
        }
        assert_eq!(client.get("/metrics").status, 200);
    }
});

sqlite_test!(unusable_metrics_address_is_an_error, |store: &Store| {
    let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let cases = [
        (port.as_str(), 1, "is in use: stop what listens there, or choose another address with --metrics-listen"),
        ("192.0.2.1:9464", 1, "this machine has no address 192.0.2.1:9464: choose one it has with --metrics-listen"),
        ("65536", 2, "write HOST:PORT, for example 127.0.0.1:8080, or a port of this machine alone"),
        (":9464", 2, "write HOST:PORT"),
        ("nonsense", 2, "write HOST:PORT"),
    ];
    for (listen, code, words) in cases {
        let output = store.run(&["serve", "--listen", "127.0.0.1:0", "--metrics-listen", listen]);
        let errors = output.stderr_text();
        assert_eq!((output.status.code(), errors.contains(words)), (Some(code), true), "{listen}: {errors}");
        assert!(!store.file().exists(), "a server that cannot start creates no store");
    }
});

// Runs in a separate network namespace, because the server listens on all addresses.
tool_test!(metrics_on_a_non_loopback_address_log_a_warning, requires_unshare, |store: &Store| {
    let serve = |listen| {
        let options = ["serve", "--listen", "0.0.0.0:0", "--no-first-token", "--metrics-listen", listen];
        Server::start(store.command_through(&["unshare", "--map-root-user", "--net"], &options))
    };
    let server = serve("0.0.0.0:0");
    server.wait_for_log("metrics are served on a non-loopback address");
});
