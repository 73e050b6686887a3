//! The address of a client behind reverse proxies, for limits and the log: header fields of other clients are ignored.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use rstest::rstest;
use serde_json::Value;

use crate::support::http2::Http2;
use crate::support::{Client, CommandOutput, Engine, Response, Server, Store, TIMEOUT, sqlite_test, wait_for};

const FORWARDED: &str = "Forwarded";
const X_FORWARDED_FOR: &str = "X-Forwarded-For";
/// Address of the connections of these tests.
const PEER: &str = "127.0.0.1";

#[derive(Clone, Copy, Debug)]
enum Protocol {
    Http1,
    Http2,
}

/// Sends a request with a token that is not valid, over a connection of its own.
#[track_caller]
fn fail(server: &Server, protocol: Protocol, headers: &[(&str, &str)]) -> Response {
    let headers = [headers, &[("Authorization", "Bearer nonsense")]].concat();
    let client = server.anonymous();
    match protocol {
        Protocol::Http1 => client.call("GET", "/plants", &headers, None),
        Protocol::Http2 => Http2::open(&client).call("GET", "/plants", &headers, None),
    }
}

/// Returns the address that the log has for a request with these header fields.
#[track_caller]
fn logged_client(server: &Server, protocol: Protocol, id: &str, headers: &[(&str, &str)]) -> String {
    let headers = [headers, &[("X-Request-Id", id)]].concat();
    let client = server.anonymous();
    let response = match protocol {
        Protocol::Http1 => client.call("GET", "/openapi.json", &headers, None),
        Protocol::Http2 => Http2::open(&client).call("GET", "/openapi.json", &headers, None),
    };
    assert_eq!(response.status, 200);
    let field = format!(r#""request_id":"{id}""#);
    let line = wait_for("its line", || server.log().lines().find(|line| line.contains(&field)).map(str::to_owned));
    let line: Value = serde_json::from_str(&line).expect("JSON");
    line["client"].as_str().expect("an address").to_owned()
}

#[rstest]
fn log_has_the_last_address_that_is_not_a_trusted_proxy(
    #[values(Protocol::Http1, Protocol::Http2)] protocol: Protocol,
    #[values(Engine::Sqlite, Engine::Postgres)] engine: Engine,
) {
    let store = Store::new(engine);
    let server = store.serve(&["--trusted-proxy", "127.0.0.1,10.0.0.0/8", "--trusted-proxy", "2001:db8:1::/48"]);
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[], PEER),
        (&[(X_FORWARDED_FOR, "192.0.2.1")], "192.0.2.1"),
        (&[(X_FORWARDED_FOR, "203.0.113.9, 192.0.2.1")], "192.0.2.1"),
        (&[(X_FORWARDED_FOR, "203.0.113.9, 192.0.2.1, 10.1.2.3")], "192.0.2.1"),
        (&[(X_FORWARDED_FOR, "203.0.113.9"), (X_FORWARDED_FOR, "192.0.2.1:4711")], "192.0.2.1"),
        (&[(X_FORWARDED_FOR, "2001:db8::1, [2001:db8:1::5]:443")], "2001:db8::1"),
        (&[(X_FORWARDED_FOR, "10.0.0.2, 10.0.0.1")], "10.0.0.2"),
        (&[(X_FORWARDED_FOR, "192.0.2.1, nonsense")], PEER),
        (&[(X_FORWARDED_FOR, "192.0.2.1, nonsense, 10.0.0.1")], "10.0.0.1"),
        (&[(FORWARDED, "for=203.0.113.9, for=192.0.2.1;proto=https")], "192.0.2.1"),
        (&[(FORWARDED, r#"For="[2001:db8::1]:443""#)], "2001:db8::1"),
        (&[(FORWARDED, "for=\"203.0.113.9, for=192.0.2.1")], "192.0.2.1"),
        (&[(FORWARDED, "for=192.0.2.1, for=unknown")], PEER),
        (&[(FORWARDED, "for=192.0.2.1, for=_hidden, for=10.0.0.1")], "10.0.0.1"),
        (&[(FORWARDED, "for=203.0.113.9"), (X_FORWARDED_FOR, "192.0.2.1")], PEER),
        (&[(FORWARDED, "for=192.0.2.1"), (X_FORWARDED_FOR, "203.0.113.9, 192.0.2.1")], "192.0.2.1"),
    ];
    for (number, (headers, client)) in cases.iter().enumerate() {
        let id = format!("case-{number}");
        assert_eq!(logged_client(&server, protocol, &id, headers), *client, "{headers:?}");
    }
}

#[rstest]
fn header_is_used_only_on_a_connection_from_a_trusted_proxy(
    #[values(Protocol::Http1, Protocol::Http2)] protocol: Protocol,
    #[values(&[], &["--trusted-proxy", "10.0.0.0/8"])] options: &[&str],
) {
    let store = Store::new(Engine::Sqlite);
    let server = store.serve(&[&["--auth-failure-rate", "1", "--auth-failure-burst", "2"], options].concat());
    for (number, header) in [(X_FORWARDED_FOR, "192.0.2.1"), (FORWARDED, "for=192.0.2.1")].iter().enumerate() {
        assert_eq!(logged_client(&server, protocol, &format!("case-{number}"), &[*header]), PEER);
    }
    // Each failure claims another address, and all of them count for one.
    let statuses = (0..20).map(|number| {
        let claimed = format!("192.0.2.{number}");
        fail(&server, protocol, &[(X_FORWARDED_FOR, &claimed)]).status
    });
    assert!(statuses.into_iter().any(|status| status == 429));
}

#[rstest]
fn failed_authentications_count_for_the_client_behind_the_proxy(
    #[values(Protocol::Http1, Protocol::Http2)] protocol: Protocol,
    #[values(Engine::Sqlite, Engine::Postgres)] engine: Engine,
) {
    let store = Store::new(engine);
    let server =
        store.serve(&["--auth-failure-rate", "1", "--auth-failure-burst", "2", "--trusted-proxy", "127.0.0.0/8"]);
    // The attacker writes another address in front with each request; the proxy appends the real one.
    let limited = (0..100).find(|number| {
        let field = format!("203.0.113.{number}, 192.0.2.1");
        fail(&server, protocol, &[(X_FORWARDED_FOR, &field)]).error() == 42900
    });
    assert!(limited.is_some(), "the attacker is limited");
    assert_eq!(fail(&server, protocol, &[(X_FORWARDED_FOR, "192.0.2.2")]).error(), 40101, "another client is not");
    assert_eq!(fail(&server, protocol, &[(X_FORWARDED_FOR, "203.0.113.0")]).error(), 40101, "nor is a claimed address");
    let ada = Client { token: Some(store.token("ada", &[])), ..server.anonymous() };
    // Valid tokens are served.
    assert_eq!(ada.call("GET", "/plants", &[(X_FORWARDED_FOR, "192.0.2.1")], None).status, 200);
}

/// Connects from one of this machine's addresses. Returns true if a request on the connection is served.
fn is_served(client: Ipv4Addr, server: SocketAddr) -> (TcpStream, bool) {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((client, 0))).unwrap();
    rustix::net::connect(&socket, &server).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    // The server may have closed it already, with a response.
    let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n");
    let mut status = [0; 12];
    let is_ok = stream.read_exact(&mut status).is_ok() && status.ends_with(b"200");
    (stream, is_ok)
}

sqlite_test!(connections_of_a_trusted_proxy_are_limited_in_total_only, |store: &Store| {
    let limits = ["--max-connections", "5", "--max-connections-per-address", "1", "--trusted-proxy", "127.0.0.2"];
    let server = store.serve(&limits);
    let (proxy, client) = (Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3));
    let mut open = vec![is_served(client, server.address())];
    assert!(!is_served(client, server.address()).1, "another address has its limit");
    open.extend((0..4).map(|_| is_served(proxy, server.address())));
    assert!(open.iter().all(|(_, served)| *served));
    assert!(!is_served(proxy, server.address()).1, "the total holds for proxies, too");
});

sqlite_test!(networks_that_cannot_be_trusted_are_rejected_at_the_start, |store: &Store| {
    for (network, advice) in
        [("10.0.0.5/8", "10.0.0.0/8"), ("0.0.0.0/0", "name your own proxies"), ("proxy.example", "10.0.0.0/24")]
    {
        let output = store.run(&["serve", "--trusted-proxy", network]);
        let message = output.stderr_text();
        assert!(!output.status.success() && message.contains(advice), "{network}: {message}");
    }
});
