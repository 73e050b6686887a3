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

/// Starts a server behind proxies at this address and in these networks.
fn serve_behind(store: &Store, networks: &str) -> Server {
    store.serve(&["--trusted-proxy", PEER, "--trusted-proxy", networks])
}

/// Checks the address that the log has for each value of a field.
#[track_caller]
fn assert_clients<'a>(server: &Server, name: &str, cases: impl IntoIterator<Item = (String, &'a str)>) {
    for (value, client) in cases {
        let id = format!("case-{}", server.log().lines().count());
        assert_eq!(logged_client(server, Protocol::Http1, &id, &[(name, &value)]), client, "{name}: {value}");
    }
}

sqlite_test!(networks_contain_their_addresses, |store: &Store| {
    let server = serve_behind(store, "10.0.0.0/8,192.0.2.7,2001:db8::/64,2001:db8:1::9,::ffff:198.51.100.0/120");
    for inside in ["10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7", "2001:db8::5", "2001:db8:1::9", "198.51.100.8"] {
        assert_clients(&server, X_FORWARDED_FOR, [(format!("203.0.113.1, {inside}"), "203.0.113.1")]);
    }
    for outside in ["11.0.0.1", "192.0.2.8", "2001:db8:0:1::5", "2001:db8:1::8", "198.51.101.8", "::a00:1"] {
        assert_clients(&server, X_FORWARDED_FOR, [(format!("203.0.113.1, {outside}"), outside)]);
    }
    // At most 32 hops are read.
    let hops = |count| format!("203.0.113.1, {}", vec!["10.0.0.2"; count].join(","));
    assert_clients(&server, X_FORWARDED_FOR, [(hops(31), "203.0.113.1"), (hops(32), "10.0.0.2")]);
});

sqlite_test!(addresses_have_ports_and_brackets, |store: &Store| {
    let server = serve_behind(store, "10.0.0.0/8");
    let nodes = [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:8080", "192.0.2.1"),
        ("192.0.2.1:_hidden", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:DB8:0::1]:443", "2001:db8::1"),
        ("[::ffff:192.0.2.1]", "192.0.2.1"),
    ];
    assert_clients(&server, X_FORWARDED_FOR, nodes.map(|(node, client)| (node.to_owned(), client)));
    assert_clients(&server, FORWARDED, nodes.map(|(node, client)| (format!("for=\"{node}\""), client)));
    let without_address = "unknown _hidden 192.0.2 192.0.2.1.5 192.0.2.256 192.0.2.1: 192.0.2.1:x 192.0.2.1:65536 \
        192.0.2.1:+1 192.0.2.1:_ 2001:db8::1:http [192.0.2.1] [2001:db8::1 [2001:db8::1]443 [fe80::1%eth0] localhost \"";
    let nodes = || without_address.split(' ').chain(["192.0.2.1 192.0.2.2"]);
    assert_clients(&server, X_FORWARDED_FOR, nodes().map(|node| (node.to_owned(), PEER)));
    assert_clients(&server, FORWARDED, nodes().map(|node| (format!("for={node}"), PEER)));
});

sqlite_test!(malformed_text_hides_nothing_that_a_proxy_appends, |store: &Store| {
    let server = serve_behind(store, "10.0.0.0/8");
    let well_formed = [
        "for=203.0.113.9, , FOR=192.0.2.1,",
        "for=192.0.2.1;proto=https;by=203.0.113.43",
        "proto=http; for=192.0.2.1 ;host=\"plants.example;for=x, for=y\"",
        ";for=192.0.2.1;",
    ];
    assert_clients(&server, FORWARDED, well_formed.map(|value| (value.to_owned(), "192.0.2.1")));
    let malformed = [
        "",
        "proto=https",
        "for",
        "for=",
        "for = 192.0.2.1",
        "for=192.0.2.1;for=192.0.2.2",
        "for=\"192.0.2.1",
        "for=192.0.2.1\"",
        "for=\"192.0.2.\\1\"",
        "192.0.2.1",
    ];
    assert_clients(&server, FORWARDED, malformed.map(|value| (value.to_owned(), PEER)));
    for sent in ["for=\"", "for=\"x\\", "\"", "for=192.0.2.9;by=\"", "\\", ",,,,", "for=\"a, b\";host=\""] {
        for appended in ["for=192.0.2.1", "for=\"192.0.2.1:80\";proto=https", "for=192.0.2.1;host=\"a,b\""] {
            assert_clients(&server, FORWARDED, [(format!("{sent}, {appended}"), "192.0.2.1")]);
        }
        assert_clients(&server, X_FORWARDED_FOR, [(format!("{sent}, 192.0.2.1"), "192.0.2.1")]);
    }
});

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
    let is_limited = |client: &str| fail(&server, protocol, &[(X_FORWARDED_FOR, client)]).error() == 42900;
    assert!((0..100).any(|host| is_limited(&format!("2001:db8::{host}"))), "a network of IPv6 is one client");
    assert!(!is_limited("2001:db8:0:1::1"), "another network is another client");
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
    for (network, advice) in [
        ("", "write an address"),
        ("proxy.example", "write an address or a network, for example 10.0.0.5, 10.0.0.0/24"),
        ("10.0.0.0/33", "write an address"),
        ("10.0.0/8", "write an address"),
        ("[::1]", "write an address"),
        ("10.0.0.5/8", "write 10.0.0.0/8"),
        ("2001:db8::1/64", "write 2001:db8::/64"),
        ("0.0.0.0/0", "name your own proxies"),
        ("::/0", "contains every address"),
        ("::ffff:0:0/96", "contains every address"),
    ] {
        let output = store.run(&["serve", "--trusted-proxy", network]);
        let message = output.stderr_text();
        assert!(!output.status.success() && message.contains(advice), "{network}: {message}");
    }
});
