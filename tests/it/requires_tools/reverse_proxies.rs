//! The configurations of `docs/how-to/reverse-proxy.md` for nginx and Caddy, without their TLS part, and that of `deploy/haproxy.cfg`.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::support::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, Http2, PREFACE, SETTINGS, field, frame};
use crate::support::{Client, Connection, Events, Fault, Garden, Random, free_port, tool_test, wait_for, wait_until};

const PAGE: &str = include_str!("../../../docs/how-to/reverse-proxy.md");
const TRUSTED: &[&str] = &["--trusted-proxy", "127.0.0.1"];
const LISTEN: &str = "    listen 443 ssl http2;
    server_name plants.example;
    ssl_certificate     /etc/ssl/plants/fullchain.pem;
    ssl_certificate_key /etc/ssl/plants/key.pem;
";

/// A proxy that is killed when the test ends.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the block of the page in this language, with these replacements.
fn configuration(language: &str, replacements: [(&str, &str); 2]) -> String {
    let block = PAGE.split("```").skip(1).step_by(2).find_map(|block| block.strip_prefix(&format!("{language}\n")));
    let mut text = block.expect("a configuration").to_owned();
    for (from, to) in replacements {
        text = replace_once(&text, from, to);
    }
    text
}

fn replace_once(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from}");
    text.replace(from, to)
}

fn nginx(server: &str, listen: &str) -> (String, Vec<&'static str>) {
    let listen = format!("    listen {listen};\n");
    let text = configuration("nginx", [("127.0.0.1:8080", server), (LISTEN, &listen)]);
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path temp;\n"));
    let paths = paths.concat();
    let text =
        format!("daemon off; master_process off; pid nginx.pid; events {{}}\nhttp {{ access_log off;\n{paths}{text}}}");
    (text, vec!["nginx", "-e", "stderr", "-p", ".", "-c", "proxy.conf"])
}

fn caddy(server: &str, listen: &str) -> (String, Vec<&'static str>) {
    let site = format!("http://{listen} {{");
    let text = configuration("caddyfile", [("127.0.0.1:8080", server), ("plants.example {", &site)]);
    (format!("{{\n\tadmin off\n}}\n{text}"), vec!["caddy", "run", "--adapter", "caddyfile", "--config", "proxy.conf"])
}

/// Starts a proxy in front of the server, and returns a client of ada that uses it.
fn start(garden: &Garden, proxy: impl Fn(&str, &str) -> (String, Vec<&'static str>)) -> (Proxy, Client) {
    let directory = garden.store.directory();
    let try_start = |port| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let (text, command) = proxy(&garden.server.address().to_string(), &address.to_string());
        std::fs::write(directory.join("proxy.conf"), text).unwrap();
        let mut child = Command::new("setpriv");
        child.arg("--pdeathsig=KILL").args(command).current_dir(directory).env("HOME", directory);
        let child =
            child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("setpriv runs");
        let mut proxy = Proxy(child);
        wait_for("the proxy to listen", || match Connection::try_open(address) {
            Ok(_) => Some(Some(())),
            Err(_) => proxy.0.try_wait().unwrap().map(|_| None),
        })?;
        Some((proxy, Client { address, token: garden.ada.token.clone() }))
    };
    // Another process may take the port first.
    (0..10).find_map(|_| try_start(free_port())).expect("the proxy, which scripts/test installs, runs")
}

/// Events arrive while the stream is open, and the address of the client is that which the proxy sees.
fn expect_events_and_address(garden: &Garden, proxy: impl Fn(&str, &str) -> (String, Vec<&'static str>)) {
    let (_proxy, ada) = start(garden, proxy);
    wait_until("the proxy to forward requests", || ada.get("/plants").status == 200);
    let (mut events, first) = Events::of(&ada);
    ada.plant(1, "Rose");
    let second = events.wait_for_current(&ada, "/plants", &first);
    assert_eq!(ada.delete(1).status, 204);
    events.wait_for_current(&ada, "/plants", &second);
    let claims = [("X-Forwarded-For", "203.0.113.9"), ("Forwarded", "for=203.0.113.9")];
    assert_eq!(ada.call("GET", "/me", &claims, None).status, 200);
    let client = wait_for("the request in the log", || {
        let log = garden.server.log();
        let line = log.lines().find(|line| line.contains(r#""route":"/me""#))?;
        let line: Value = serde_json::from_str(line).unwrap();
        Some(line["client"].as_str().unwrap().to_owned())
    });
    assert_eq!(client, "127.0.0.1");
}

tool_test!(nginx_passes_on_events_and_the_address, requires_nginx, TRUSTED, |garden: &Garden| {
    expect_events_and_address(garden, nginx);
});

tool_test!(caddy_passes_on_events_and_the_address, requires_caddy, TRUSTED, |garden: &Garden| {
    expect_events_and_address(garden, caddy);
});

/// Prefix of the request ids that a proxy sets, instead of those of its clients.
const OF_PROXY: &str = "proxy-";
/// Time after which the response to a malformed request counts as complete.
const SILENCE: Duration = Duration::from_millis(200);
/// Requests that are sent concurrently.
const CONCURRENT: usize = 16;

/// Ways to give the length of a body, of which proxies and servers may see different ones. `{all}` is the length of everything that
/// follows the head, `{part}` that of the part before a second request.
const FRAMINGS: [&str; 42] = [
    "Content-Length: {all}",
    "Content-Length: {part}",
    "Content-Length: 0",
    "Content-Length: +{all}",
    "Content-Length: 0{part}",
    "Content-Length: {all}, {all}",
    "Content-Length: {part}, {all}",
    "Content-Length:{part}\t",
    "Content-Length : {part}",
    "Content-Length: -1",
    "Content-Length: 0x10",
    "Content-Length: {part}\r\n {all}",
    "Content-Length: {part};",
    "Content_Length: {part}",
    "Content-Length\n: {part}",
    "\nContent-Length: {part}",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: Chunked",
    "Transfer-Encoding:chunked ",
    "Transfer-Encoding:\tchunked",
    "Transfer-Encoding: \x0bchunked",
    "Transfer-Encoding: chunked\x0c",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding: chunked;q=1",
    "Transfer-Encoding:\r\n chunked",
    "Transfer-Encoding: chu\r\n nked",
    "Transfer-Encoding\r: chunked",
    "X: y\nTransfer-Encoding: chunked",
    "X: y\rTransfer-Encoding: chunked",
    "Transfer_Encoding: chunked",
    "TE: chunked",
    "Connection: Content-Length",
    "Connection: close, Transfer-Encoding",
    "Expect: 100-continue",
    "Upgrade: h2c\r\nConnection: Upgrade",
];

/// Bodies that end before a second request for one reader and contain it for another: the part before it, and the part after it.
const BODIES: [(&str, &str); 15] = [
    ("", ""),
    ("0\r\n\r\n", ""),
    ("0\n\n", ""),
    ("0;x=\"\r\n\r\n", ""),
    ("0;\n\r\n\r\n", ""),
    ("00000000000000000\r\n\r\n", ""),
    ("0x0\r\n\r\n", ""),
    ("+0\r\n\r\n", ""),
    ("0\r\nContent-Length: 0\r\n\r\n", ""),
    ("0\r\n", ""),
    ("{size}\r\n", "\r\n0\r\n\r\n"),
    ("{size} ;x\r\n", "\r\n0\r\n\r\n"),
    ("1{size:0>16}\r\n", "\r\n0\r\n\r\n"),
    ("1\r\nxx\r\n0\r\n\r\n", ""),
    ("{\"id\":5,\"name\":\"n\"}", ""),
];

const STARTS: [&str; 7] = [
    "POST /plants HTTP/1.1",
    "PUT /plants/5 HTTP/1.1",
    "GET /me HTTP/1.1",
    "DELETE /plants/5 HTTP/1.1",
    "POST /plants HTTP/1.0",
    "GET http://other/me HTTP/1.1",
    "HEAD /plants HTTP/1.1",
];

/// Returns a request that contains a second one, with one or two ways to give the length of its body.
fn smuggling_request(token: &str, random: &mut Random) -> Vec<u8> {
    let inner = format!("GET /shares HTTP/1.1\r\nHost: inner\r\nAuthorization: Bearer {token}\r\n\r\n");
    let (before, after) = BODIES[random.below(BODIES.len())];
    let size = format!("{:x}", inner.len());
    let before = before.replace("{size:0>16}", &format!("{size:0>16}")).replace("{size}", &size);
    let framings: Vec<_> = (0..=random.below(3)).map(|_| FRAMINGS[random.below(FRAMINGS.len())]).collect();
    let all = (before.len() + inner.len() + after.len()).to_string();
    let framings = framings.join("\r\n").replace("{all}", &all).replace("{part}", &before.len().to_string());
    let start = STARTS[random.below(STARTS.len())];
    let head = format!("{start}\r\nHost: outer\r\nContent-Type: application/json\r\nAuthorization: Bearer {token}");
    format!("{head}\r\n{framings}\r\n\r\n{before}{inner}{after}").into_bytes()
}

/// Fields that must not get into a request of HTTP/1.1. `{inner}` is a second request, and `{part}` as in [`FRAMINGS`].
const FIELDS: [(&str, &str); 20] = [
    ("transfer-encoding", "chunked"),
    ("transfer-encoding", "identity"),
    ("Transfer-Encoding", "chunked"),
    ("transfer-encoding ", "chunked"),
    ("transfer_encoding", "chunked"),
    ("te", "chunked"),
    ("connection", "transfer-encoding"),
    ("connection", "content-length"),
    ("content-length", "0"),
    ("content-length", "{part}"),
    ("content-length", "+{part}"),
    ("content-length", "0\r\nTransfer-Encoding: chunked"),
    ("x", "y\r\nTransfer-Encoding: chunked"),
    ("x", "y\nContent-Length: 0"),
    ("x", "y\r\n\r\n{inner}"),
    ("x: y\r\nTransfer-Encoding", "chunked"),
    ("x\r\n\r\n{inner}", "y"),
    (":path", "/me HTTP/1.1\r\nHost: outer\r\n\r\n{inner}"),
    (":authority", "outer\r\n\r\n{inner}"),
    (":method", "{inner}GET"),
];

/// Returns a connection of HTTP/2 with a request that contains a second one, which a proxy may pass on over HTTP/1.1.
fn smuggling_stream(token: &str, random: &mut Random) -> Vec<u8> {
    let inner = format!("GET /shares HTTP/1.1\r\nHost: inner\r\nAuthorization: Bearer {token}\r\n\r\n");
    let before = ["", "0\r\n\r\n", "{\"id\":5,\"name\":\"n\"}"][random.below(3)];
    let mut fields = vec![(":method", "POST"), (":scheme", "http"), (":path", "/plants"), (":authority", "outer")];
    let bearer = format!("Bearer {token}");
    let more: Vec<_> = (0..=random.below(2)).map(|_| FIELDS[random.below(FIELDS.len())]).collect();
    // A pseudo-header field takes the place of the valid one, or of none.
    fields.retain(|(name, _)| !more.iter().any(|(other, _)| other == name));
    let (pseudo, more): (Vec<_>, Vec<_>) = more.into_iter().partition(|(name, _)| name.starts_with(':'));
    let fields =
        [pseudo, fields, vec![("authorization", &bearer), ("content-type", "application/json")], more].concat();
    let part = before.len().to_string();
    let fill = |text: &str| text.replace("{inner}", &inner).replace("{part}", &part);
    let block: Vec<u8> = fields.iter().flat_map(|(name, value)| field(&fill(name), &fill(value))).collect();
    let body = format!("{before}{inner}");
    let frames = [
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &block),
        frame(DATA, END_STREAM, 1, body.as_bytes()),
    ];
    [PREFACE, &frames.concat()].concat()
}

fn send(address: SocketAddr, request: &[u8]) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(SILENCE)).expect("a timeout");
    let _ = stream.write_all(request);
    while stream.read(&mut [0; 4_096]).is_ok_and(|length| length > 0) {}
}

/// Returns the ids of the requests in the log that no proxy has set, or that occur more than once.
fn foreign_requests(garden: &Garden) -> Vec<String> {
    let log = garden.server.log();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
    let mut known = BTreeSet::new();
    lines
        .filter_map(|line| line["request_id"].as_str().map(str::to_owned))
        .filter(|id| !id.starts_with(OF_PROXY) || !known.insert(id.clone()))
        .collect()
}

/// The server executes exactly the requests that the proxy has forwarded as such, each once, and the responses of another client
/// are its own. The proxy accepts HTTP/2 without TLS at the IP address `http2`.
fn expect_no_smuggled_request(
    garden: &Garden,
    name: &str,
    http2: [u8; 4],
    proxy: impl Fn(&str, &str) -> (String, Vec<&'static str>),
) {
    let (_proxy, ada) = start(garden, proxy);
    wait_until("the proxy to forward requests", || ada.get("/me").status == 200);
    let over_http2 = Client { address: (http2, ada.address.port()).into(), ..ada.clone() };
    assert_eq!(Http2::open(&over_http2).get("/me").status, 200);
    for id in 1..=4 {
        ada.plant(id, &format!("plant {id}"));
    }
    let token = garden.store.token("mallory", &[]);
    let fault = Fault::new(&format!("request smuggling through {name}"), 8);
    for _ in 0..fault.rounds {
        let mut random = fault.begin_round();
        let requests: Vec<_> = (0..CONCURRENT).map(|_| smuggling_request(&token, &mut random)).collect();
        let streams: Vec<_> = (0..CONCURRENT).map(|_| smuggling_stream(&token, &mut random)).collect();
        thread::scope(|scope| {
            for (request, stream) in requests.iter().zip(&streams) {
                scope.spawn(|| send(ada.address, request));
                scope.spawn(|| send(over_http2.address, stream));
            }
        });
        for id in 1..=4 {
            let response = ada.get(&format!("/plants/{id}"));
            assert_eq!((response.status, response.text()), (200, &*format!(r#"{{"name":"plant {id}"}}"#)));
        }
        let requests: Vec<_> =
            requests.iter().chain(&streams).map(|request| String::from_utf8_lossy(request)).collect();
        assert_eq!(foreign_requests(garden), [""; 0], "{requests:#?}");
        fault.count(2 * CONCURRENT + 4, 0);
    }
    let control = Fault::new(&format!("request that has passed by {name}"), 1).into_control();
    control.begin_round();
    assert_eq!(garden.ada.get("/me").status, 200);
    wait_until("the request in the log", || foreign_requests(garden).len() == 1);
    control.found_wrong();
}

tool_test!(no_request_is_smuggled_through_nginx, requires_nginx, TRUSTED, |garden: &Garden| {
    expect_no_smuggled_request(garden, "nginx", [127, 0, 0, 2], |server, listen| {
        let (text, command) = nginx(server, listen);
        let http1 = format!("listen {listen};");
        let both = format!("{http1} listen {} http2;", listen.replace("127.0.0.1", "127.0.0.2"));
        let text = replace_once(&text, &http1, &both);
        (replace_once(&text, "X-Request-Id $request_id", "X-Request-Id proxy-$request_id"), command)
    });
});

tool_test!(no_request_is_smuggled_through_caddy, requires_caddy, TRUSTED, |garden: &Garden| {
    expect_no_smuggled_request(garden, "Caddy", [127, 0, 0, 1], |server, listen| {
        let (text, command) = caddy(server, listen);
        let text = replace_once(&text, "admin off", "admin off\n\tservers {\n\t\tprotocols h1 h2c\n\t}");
        let id = "header_up -Forwarded\n\t\theader_up X-Request-Id proxy-{http.request.uuid}";
        (replace_once(&text, "header_up -Forwarded", id), command)
    });
});

tool_test!(no_request_is_smuggled_through_haproxy, requires_haproxy, TRUSTED, |garden: &Garden| {
    expect_no_smuggled_request(garden, "HAProxy", [127, 0, 0, 1], |server, listen| {
        let mut text = include_str!("../../../deploy/haproxy.cfg").to_owned();
        let id = "set-header X-Request-Id %[uuid()] unless { req.hdr(X-Request-Id) -m found }";
        for (from, to) in [
            ("*:8080", listen),
            ("${NODE_1-10.0.0.1:8080}", server),
            ("  server two \"${NODE_2-10.0.0.2:8080}\"\n", ""),
            (id, "set-header X-Request-Id proxy-%[uuid()]"),
        ] {
            text = replace_once(&text, from, to);
        }
        (text, vec!["haproxy", "-db", "-f", "proxy.conf"])
    });
});
