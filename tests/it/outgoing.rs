//! Outgoing requests: reuse of connections, and the proxies of `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::collector::Collector;
use crate::support::forward_proxy::ForwardProxy;
use crate::support::issuer::{AUDIENCE, Authority, Issuer, SigningKey};
use crate::support::stub_server::{Duplex, StubServer};
use crate::support::{CommandOutput, Server, Store, assert_contains, sqlite_test, tool_test, wait_until};

const PROXY_VARIABLES: [&str; 6] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"];
/// Host name that reaches servers on this machine and does not count as a loopback address.
const NON_LOOPBACK: &str = "0.0.0.0";

fn command(store: &Store, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = store.command(arguments);
    for name in PROXY_VARIABLES {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).stdin(Stdio::null());
    command
}

fn serve(store: &Store, options: &[&str], variables: &[(&str, &str)]) -> Server {
    let fixed = ["serve", "--listen", "127.0.0.1:0", "--no-first-token"];
    Server::start(command(store, &[&fixed, options].concat(), variables))
}

tool_test!(issuer_is_reached_through_a_tunnel_with_credentials, requires_openssl, |store: &Store| {
    let (proxy, authority, key) = (ForwardProxy::start(), Authority::for_host("issuer.example"), SigningKey::p256("k"));
    let issuer = Issuer::start_as("issuer.example", &authority, &[&key]);
    let (url, file) = (format!("http://ada:s%65cret@{}", proxy.address()), authority.file().display().to_string());
    let options = ["--oidc-issuer", issuer.url(), "--oidc-audience", AUDIENCE, "--oidc-ca", &file];
    for variable in ["HTTPS_PROXY", "https_proxy"] {
        let server = serve(store, &options, &[(variable, &url)]);
        let id = if variable == "HTTPS_PROXY" { 1 } else { 2 };
        server.client(&key.token(&issuer.claims("ada"))).plant(id, "Rose");
        assert!(!server.log().contains("secret"), "{}", server.log());
    }
    let connect = format!("CONNECT {} HTTP/1.1\r\n", issuer.url().trim_start_matches("https://"));
    for head in proxy.heads() {
        assert!(head.starts_with(&connect), "{head}");
        assert_contains(&head, "Proxy-Authorization: Basic YWRhOnNlY3JldA==\r\n");
    }
    assert!(!proxy.heads().is_empty());
});

tool_test!(plain_http_is_forwarded_unless_no_proxy_names_its_host, requires_python, |store: &Store| {
    let (proxy, collector) = (ForwardProxy::start(), Collector::start());
    let url = format!("http://{}", proxy.address());
    let elsewhere = collector.url().replace("127.0.0.1", NON_LOOPBACK);
    let report = |endpoint: &str, id: &str, variables: &[(&str, &str)]| {
        let server = serve(store, &["--otlp-endpoint", endpoint], variables);
        server.anonymous().call("GET", "/plants", &[("X-Request-Id", id)], None);
        collector.wait_for_request(id);
    };
    report(&elsewhere, "excluded", &[("HTTP_PROXY", &url), ("NO_PROXY", "example.com,0.0.0.0")]);
    report(&elsewhere, "encrypted-only", &[("HTTPS_PROXY", &url)]);
    report(&collector.url(), "loopback", &[("HTTP_PROXY", &url)]);
    assert_eq!(proxy.heads(), [""; 0], "none of these goes through the proxy");
    report(&elsewhere, "forwarded", &[("HTTP_PROXY", &url)]);
    let heads = proxy.heads();
    assert!(heads[0].starts_with(&format!("POST {elsewhere}/v1/traces HTTP/1.1\r\n")), "{heads:?}");
});

sqlite_test!(check_goes_through_the_proxy, |store: &Store| {
    let (proxy, server) = (ForwardProxy::start(), store.serve(&[]));
    let (token, url) = (store.token("ada", &[]), format!("http://{NON_LOOPBACK}:{}", server.address().port()));
    let through = format!("http://{}", proxy.address());
    let variables = [("http_proxy", through.as_str()), ("PLANTSTORE_TOKEN", &token)];
    let output = command(store, &["check", &url, "--timeout", "60s"], &variables).output().expect("the check runs");
    assert!(output.status.success(), "{}", output.stdout_text());
    let warning = format!("warning: without https:// the token can be read on the way to {url}\n");
    assert_eq!(output.stderr_text(), warning);
    assert!(proxy.heads().iter().any(|head| head.starts_with(&format!("POST {url}/plants HTTP/1.1\r\n"))));
});

sqlite_test!(unusable_proxy_is_rejected_at_the_start, |store: &Store| {
    let arguments = ["serve", "--otlp-endpoint", "http://collector.example"];
    for (variable, proxy) in [
        ("HTTP_PROXY", "socks5://10.0.0.1"),
        ("HTTPS_PROXY", "https://10.0.0.1"),
        ("HTTP_PROXY", "ftp://x"),
        ("HTTPS_PROXY", "://"),
        ("HTTP_PROXY", "a b"),
    ] {
        let error = command(store, &arguments, &[(variable, proxy)]).output().expect("the command runs").failure(2);
        assert_contains(&error, "HTTP_PROXY or HTTPS_PROXY: write the proxy as http://HOST:PORT");
    }
});

tool_test!(unreachable_proxy_is_named_in_the_log, requires_openssl, |store: &Store| {
    let authority = Authority::for_host("issuer.example");
    let file = authority.file().display().to_string();
    let options = ["--oidc-issuer", "https://issuer.example", "--oidc-audience", AUDIENCE, "--oidc-ca", &file];
    let server = serve(store, &options, &[("HTTPS_PROXY", "127.0.0.1:1")]);
    let line = "cannot connect to issuer.example: the proxy http://127.0.0.1:1/: ";
    server.wait_for_log(line);
});

/// Reads a request with a body.
fn read_request(input: &mut impl BufRead) -> std::io::Result<()> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if input.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    input.read_exact(&mut vec![0; length.expect("a length")])
}

sqlite_test!(connection_is_reused_until_the_other_end_closes_it, |store: &Store| {
    let exports = Arc::<AtomicUsize>::default();
    let mut url = String::new();
    let collector = StubServer::start(None, |own| {
        url.push_str(own);
        let exports = Arc::clone(&exports);
        // Each connection is closed after three responses, without an announcement.
        move |stream: &mut dyn Duplex| {
            let mut stream = BufReader::new(stream);
            for _ in 0..3 {
                read_request(&mut stream)?;
                stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
                exports.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        }
    });
    let server = serve(store, &["--otlp-endpoint", &url], &[("OTEL_BSP_SCHEDULE_DELAY", "50")]);
    for (number, connections) in [1, 1, 1, 2, 2, 2, 3].into_iter().enumerate() {
        server.anonymous().call("GET", "/plants", &[], None);
        wait_until("the export", || exports.load(Ordering::SeqCst) > number);
        assert_eq!(collector.connections(), connections, "after export {}", number + 1);
    }
    assert!(!server.log().contains("the collector does not accept spans"), "{}", server.log());
});
