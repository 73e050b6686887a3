//! Clients that do not read their responses: the server uses a bounded amount of memory for each.

use std::net::{SocketAddr, TcpStream};

use crate::support::{Server, Store, engine_test, wait_for, wait_until};

/// State in `/proc/net/tcp` of a closed socket whose last bytes the client has not acknowledged.
const FIN_WAIT1: &str = "04";

/// Returns the states of the server's sockets to these clients.
fn states(server: SocketAddr, clients: &[SocketAddr]) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next().unwrap(), 16).unwrap();
    let mut states = Vec::new();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if port(fields[1]) == server.port() && clients.iter().any(|client| client.port() == port(fields[2])) {
            states.push(fields[3].to_owned());
        }
    }
    states
}

fn large_list(store: &Store) -> String {
    let token = store.token("ada", &[]);
    store.insert_plants(100_000, "a plant of this name and number ");
    token
}

/// Returns the number of bytes of the first aborted list, from the log.
fn cut_after(server: &Server) -> u64 {
    let line = wait_for("the aborted list in the log", || {
        server.log().lines().find(|line| line.contains(r#""complete":false"#)).map(str::to_owned)
    });
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    line["bytes"].as_u64().unwrap()
}

engine_test!(little_of_a_list_is_produced_for_a_client_that_does_not_read, |store: &Store| {
    let token = large_list(store);
    let server = store.serve(&["--write-timeout", "1s"]);
    let client = server.client(&token).unread_list(&[]);
    let bytes = cut_after(&server);
    assert!(bytes <= 256 * 1024, "{bytes} bytes");
    // The kernel drops the buffered bytes of a client that the server has disconnected.
    let clients = [client.local_addr().unwrap()];
    wait_until("the socket to be released", || {
        let states = states(server.address(), &clients);
        !states.iter().any(|state| state == FIN_WAIT1)
    });
});

engine_test!(a_slow_reader_holds_a_bounded_amount_of_memory, |store: &Store| {
    const READERS: usize = 100;
    let token = large_list(store);
    let server = store.serve(&["--metrics-listen", "0"]);
    let metrics = server.metrics();
    let ada = server.client(&token);
    assert_eq!(ada.get("/plants").status, 200);
    let before = server.resident();
    let _unread: Vec<TcpStream> = (0..READERS).map(|_| ada.unread_list(&[])).collect();
    metrics.wait_for("plantstore_lists_streaming", &[], i64::try_from(READERS).unwrap());
    let each = server.resident().saturating_sub(before) / READERS as u64;
    assert!(each <= 128, "{each} KiB each");
});
