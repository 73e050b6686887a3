//! Requests to a server in the same process, over a connection each. The response must not be a server error.
#![no_main]

use std::io::{Read as _, Write as _};
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
            // Without creating plants, so that the store stays small.
            scopes: Scopes::from_names("plants:read plants:delete tokens:manage shares:manage"),
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

fuzz_target!(|text: &str| {
    let request = text.replace("\r\n", "\n").replace('\n', "\r\n").replace("{token}", &SERVICE.token).replace("{key}", "key");
    // An event stream does not end.
    if request.contains("events") {
        return;
    }
    let mut stream = TcpStream::connect(SERVICE.address).expect("a connection");
    let _ = stream.write_all(request.as_bytes());
    let _ = stream.shutdown(Shutdown::Write);
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    let response = String::from_utf8_lossy(&response);
    // On a busy machine, requests are shed.
    let response = response.replace("HTTP/1.1 503 ", "HTTP/1.1 429 ");
    assert!(response.is_empty() || response.starts_with("HTTP/1.") && !response.contains("HTTP/1.1 5"), "{request}\n{response}");
});
