//! Requests to a server in the same process, over a connection each. The response must not be a server error.
#![no_main]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use clap::{Args, Command};
use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use plantstore_model::token::{PlainToken, Scopes, TokenAttributes, TokenCreator, TokenLabel};
use plantstore_model::user::UserName;
use plantstore_server::{Server, ServerSettings, TrustedProxies};
use plantstore_store::{OpenOptions, SchemaChange, Store};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

struct Service {
    address: SocketAddr,
    token: String,
    _runtime: Runtime,
}

static SERVICE: LazyLock<Service> = LazyLock::new(start);

fn options<T: Args>(arguments: &[&str]) -> T {
    let command = T::augment_args(Command::new("fuzz")).no_binary_name(true);
    T::from_arg_matches(&command.get_matches_from(arguments)).expect("options")
}

fn start() -> Service {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let directory = Path::new("/dev/shm/plantstore-fuzz-request");
    let _ = std::fs::remove_dir_all(directory);
    std::fs::create_dir_all(directory).expect("a directory in memory");
    let url = format!("sqlite:{}", directory.join("store.db").display()).parse().expect("a URL");
    let (address, token) = runtime.block_on(async {
        let opened = Store::open(&url, OpenOptions::of_command(SchemaChange::Create, Duration::from_secs(5))).await;
        let store = Arc::new(opened.expect("a store").store);
        let token = PlainToken::generate().expect("a token");
        let attributes = TokenAttributes {
            label: TokenLabel::parse("fuzz").expect("a label"),
            scopes: Scopes::ALL,
            creator: TokenCreator::Operator,
            created: Timestamp::now(),
            expires: None,
        };
        let user = UserName::parse("ada").expect("a name");
        store.create_token(&user, &token.hash(), &attributes).await.expect("a token");
        let settings = ServerSettings {
            transport: options(&[]),
            trusted_proxies: options::<TrustedProxies>(&["--trusted-proxy=127.0.0.1"]),
            auth: options(&["--auth-failure-rate=1000000", "--auth-failure-burst=1000000"]),
            api: options(&[]),
            issuer: None,
            cors: None,
            console: true,
            hsts: false,
            sign_in: None,
            collector: None,
        };
        let server: &Server = Box::leak(Box::new(Server::new(store, settings)));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(server.serve(listener, None, Box::pin(std::future::pending())));
        (address, token.reveal().to_owned())
    });
    Service { address, token, _runtime: runtime }
}

/// Ids of plants that stay. Others are deleted, so that the store stays small.
const IDS: std::ops::Range<i64> = 0..100;

/// Returns true if a request has a response without the end of the input: its first head ends, and its body has the length that the
/// head names. Does not decide for other bodies, and for the beginning of HTTP/2.
fn is_complete(request: &str) -> bool {
    let Some((head, body)) = request.trim_start_matches(['\r', '\n']).split_once("\r\n\r\n") else { return false };
    let head = head.to_ascii_lowercase();
    let length = match head.split_once("\r\ncontent-length:") {
        Some((_, rest)) => rest.lines().next().and_then(|length| length.trim().parse().ok()),
        None => Some(0),
    };
    let is_other =
        ["transfer-encoding", "expect:"].iter().any(|field| head.contains(field)) || head.starts_with("pri ");
    !is_other && head.matches("content-length").count() < 2 && length.is_some_and(|length| body.len() >= length)
}

/// Sends a request, and returns the responses. The end of the input may end a request in flight, so it comes after the first byte
/// of the response to a complete one.
fn exchange(request: &str) -> String {
    let mut stream = TcpStream::connect(SERVICE.address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(15))).expect("a timeout");
    let _ = stream.write_all(request.as_bytes());
    let mut response = Vec::new();
    if is_complete(request) {
        let mut first = [0];
        match stream.read(&mut first) {
            Ok(length) => response.extend(&first[..length]),
            // The server may close the connection before it has read everything.
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "no response to {request}"),
        }
        assert!(!response.is_empty() || request.len() > 4_096, "no response to {request}");
    }
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut response);
    String::from_utf8_lossy(&response).into_owned()
}

fuzz_target!(|text: &str| {
    let request =
        text.replace("\r\n", "\n").replace('\n', "\r\n").replace("{token}", &SERVICE.token).replace("{key}", "key");
    // An event stream does not end.
    if request.contains("events") {
        return;
    }
    // On a busy machine, requests are shed.
    let response = exchange(&request).replace("HTTP/1.1 503 ", "HTTP/1.1 429 ");
    assert!(
        response.is_empty() || response.starts_with("HTTP/1.") && !response.contains("HTTP/1.1 5"),
        "{request}\n{response}"
    );
    for path in response.lines().filter_map(|line| line.strip_prefix("location: /plants/")) {
        let id = path.split('?').next().unwrap_or_default();
        if !id.parse().is_ok_and(|id| IDS.contains(&id)) {
            let head =
                format!("DELETE /plants/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n", SERVICE.token);
            exchange(&head);
        }
    }
});
