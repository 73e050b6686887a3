//! The configurations of `docs/how-to/reverse-proxy.md` for nginx and Caddy, without their TLS part.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{Client, Connection, Events, Garden, free_port, tool_test, wait_for, wait_until};

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
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text = text.replace(from, to);
    }
    text
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
