//! Limits of time, size and number, each with the effect of exceeding it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use crate::support::{
    Client, Connection, Garden, JSON, Server, Stopwatch, Store, TIMEOUT, assert_snapshot, engine_test,
    retry_while_unavailable, wait_for, wait_until,
};

/// Options of a server that processes one request at a time and rejects others.
const ONE_SLOT: [&str; 4] = ["--max-in-flight", "1", "--max-waiting", "0"];

/// Opens a connection from a loopback address.
fn connect_from(client: Ipv4Addr, server: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((client, 0))).unwrap();
    rustix::net::connect(&socket, &server).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Sends a request and returns the bytes that the server sends.
fn ask(stream: &mut TcpStream) -> String {
    // The server may have sent an error and closed the connection already.
    let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut response = [0; 2_048];
    let mut length = 0;
    while !response[..length].ends_with(b"}") {
        match stream.read(&mut response[length..]) {
            Ok(more @ 1..) => length += more,
            Ok(0) | Err(_) => break,
        }
    }
    String::from_utf8_lossy(&response[..length]).into_owned()
}

engine_test!(incomplete_head_times_out, |store: &Store| {
    let server = store.serve(&["--header-timeout", "3s", "--idle-timeout", "60s"]);
    let mut connection = Connection::open(server.address());
    let response = connection.ask("GET /plants HTTP/1.1\r\nHost: x\r\n");
    assert_snapshot!(response.wire(), @r#"
    408 Request Timeout
    content-type: application/json
    cache-control: no-store
    connection: close
    content-length: 78

    {"error":40800,"message":"the request took too long to arrive: send it again"}
    "#);
    assert!(connection.is_closed_by_server());
});

engine_test!(head_that_arrives_byte_by_byte_times_out, |store: &Store| {
    let server = store.serve(&["--header-timeout", "3s", "--idle-timeout", "60s"]);
    let mut connection = Connection::open(server.address());
    connection.send("GET /plants HTTP/1.1\r\n");
    let stream = connection.stream().try_clone().expect("the stream");
    // Sends a byte every few milliseconds until the server disconnects: the timeout is for the whole head.
    let dripping = thread::spawn(move || {
        wait_until("the server to disconnect", || std::io::Write::write_all(&mut &stream, b"x").is_err());
    });
    assert_eq!(connection.read_response(false).error(), 40800);
    drop(connection);
    dripping.join().expect("the server has disconnected");
});

engine_test!(incomplete_second_head_times_out, |store: &Store| {
    let server = store.serve(&["--header-timeout", "3s", "--idle-timeout", "60s"]);
    let mut connection = Connection::open(server.address());
    assert_eq!(connection.ask("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);
    assert_eq!(connection.ask("GET /livez HTTP/1.1\r\nHo").error(), 40800);
    assert!(connection.is_closed_by_server());
});

engine_test!(silent_connection_is_closed_without_a_response, |store: &Store| {
    let server = store.serve(&["--header-timeout", "3s", "--idle-timeout", "60s"]);
    let mut connection = Connection::open(server.address());
    assert!(connection.is_closed_by_server());
    let server = store.serve(&["--header-timeout", "60s", "--idle-timeout", "300ms"]);
    let mut connection = Connection::open(server.address());
    assert_eq!(connection.ask("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);
    assert!(connection.is_closed_by_server());
});

engine_test!(missing_body_is_rejected_with_408, &["--request-timeout", "300ms"], |Garden { ada, .. }: &Garden| {
    let mut connection = ada.connect();
    connection.send(ada.bytes("POST", "/plants", &[JSON, ("Content-Length", "100")], None));
    let response = connection.ask(r#"{"id":1,"#);
    assert_eq!(response.error(), 40800);
    assert_eq!(response.header("connection"), Some("close"));
    assert!(connection.is_closed_by_server());
    let mut chunked = ada.connect();
    chunked.send(ada.bytes("POST", "/plants", &[JSON, ("Transfer-Encoding", "chunked")], None));
    assert_eq!(chunked.ask("5\r\n{\"id\"").error(), 40800);
    assert_eq!(ada.ids(), [0_i64; 0]);
});

engine_test!(slow_bodies_hold_no_slot, &ONE_SLOT, |Garden { ada, .. }: &Garden| {
    let mut slow: Vec<Connection> = (0..20).map(|_| ada.connect()).collect();
    for connection in &mut slow {
        connection.send(ada.bytes("POST", "/plants", &[JSON, ("Content-Length", "100")], None));
    }
    ada.plant(1, "served meanwhile");
    assert_eq!(ada.ids(), [1]);
});

engine_test!(client_that_reads_nothing_is_disconnected, |store: &Store| {
    let server = store.serve(&["--write-timeout", "300ms"]);
    let ada = server.client(&store.token("ada", &[]));
    store.insert_plants(12_000, &"x".repeat(990));
    let mut unread = ada.connect();
    unread.send(ada.bytes("GET", "/plants", &[], None));
    server.wait_for_log(r#""complete":false"#);
    let mut received = Vec::new();
    let _ = unread.stream().read_to_end(&mut received);
    assert!(!received.ends_with(b"0\r\n\r\n"), "the list is complete");
});

engine_test!(pipelined_requests_get_responses_in_order, |Garden { ada, .. }: &Garden| {
    let mut connection = ada.connect();
    let mut bytes = Vec::new();
    for id in 0..200 {
        let body = format!(r#"{{"id":{id},"name":"n{id}"}}"#);
        bytes.extend(ada.bytes("POST", "/plants", &[JSON], Some(body.as_bytes())));
        bytes.extend(ada.bytes("DELETE", &format!("/plants/{}", id - 1), &[], None));
    }
    bytes.extend(ada.bytes("GET", "/plants?include=id", &[], None));
    connection.send(bytes);
    for id in 0..200 {
        assert_eq!(connection.read_response(false).text(), format!(r#"{{"name":"n{id}"}}"#));
        assert_eq!(connection.read_response(false).status, if id == 0 { 404 } else { 204 });
    }
    assert_eq!(connection.read_response(false).ids(), [199]);
});

engine_test!(client_that_half_closes_gets_its_response, |Garden { ada, .. }: &Garden| {
    let mut connection = ada.connect();
    connection.send(ada.bytes("POST", "/plants", &[JSON], Some(br#"{"id":1,"name":"a"}"#)));
    connection.stream().shutdown(std::net::Shutdown::Write).expect("half closed");
    assert_eq!(connection.read_response(false).status, 200);
    assert!(connection.is_closed_by_server());
});

engine_test!(connections_beyond_the_limit_are_rejected_with_503, |store: &Store| {
    let server = store.serve(&["--max-connections", "3"]);
    let ask = |connection: &mut Connection| {
        connection.try_send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")?;
        connection.try_read_response(false)
    };
    let mut open: Vec<Connection> = (0..3).map(|_| Connection::open(server.address())).collect();
    for connection in &mut open {
        assert_eq!(ask(connection).expect("a response").status, 200);
    }
    let mut fourth = Connection::open(server.address());
    let response = fourth.read_response(false);
    assert_eq!(response.error(), 50300);
    assert_eq!(response.header("retry-after"), Some("1"));
    assert!(fourth.is_closed_by_server());
    assert_eq!(ask(&mut open[0]).expect("a response").status, 200, "open connections are served");
    open.pop();
    wait_until("a free connection slot", || {
        ask(&mut Connection::open(server.address())).is_ok_and(|response| response.status == 200)
    });
});

engine_test!(connections_of_one_address_beyond_its_limit_are_rejected, |store: &Store| {
    let server =
        store.serve(&["--max-connections", "4", "--max-connections-per-address", "2", "--metrics-listen", "0"]);
    let metrics = server.metrics();
    let (first, second) = (Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2));
    let mut open: Vec<TcpStream> = (0..2).map(|_| connect_from(first, server.address())).collect();
    assert!(open.iter_mut().all(|stream| ask(stream).contains(" 200 OK")));
    assert!(ask(&mut connect_from(first, server.address())).contains("50300"));
    open.extend((0..2).map(|_| connect_from(second, server.address())));
    assert!(open.iter_mut().all(|stream| ask(stream).contains(" 200 OK")), "each address has its own limit");
    let beyond = |limit, count| {
        metrics.wait_for("plantstore_http_connections_rejected_total", &[("limit", limit)], count);
    };
    beyond("address", 1);
    assert!(ask(&mut connect_from(second, server.address())).contains("50300"));
    beyond("total", 1);
    open.remove(0);
    wait_until("a free connection slot", || ask(&mut connect_from(first, server.address())).contains(" 200 OK"));
});

// The queue of a blocked writer is bounded. Further writes are rejected with `Retry-After`; no accepted write is lost.
engine_test!(full_write_queue_is_a_503, &["--write-queue", "2"], |Garden { store, server, ada }: &Garden| {
    // Stores the last use of the token now, so that it takes no place in the queue later.
    ada.plant(0, "first");
    store.wait_for_stored_token_use();
    let held = store.hold_writes();
    let responses: Vec<_> = thread::scope(|scope| {
        let writers: Vec<_> =
            (1..=20).map(|id| scope.spawn(move || (id, ada.post(format!(r#"{{"id":{id},"name":"n"}}"#))))).collect();
        // At most two writes are with each of two writers and two wait: the others are rejected immediately.
        wait_until("rejected writes", || writers.iter().filter(|writer| writer.is_finished()).count() >= 14);
        assert_eq!(ada.ids(), [0], "lists are served");
        assert_eq!(server.anonymous().get("/readyz").status, 200);
        drop(held);
        writers.into_iter().map(|writer| writer.join().expect("a writer")).collect()
    });
    let mut stored = vec![0];
    for (id, response) in &responses {
        if response.status == 200 {
            stored.push(*id);
        } else {
            assert_eq!(response.error(), 50300);
            assert_eq!(response.header("retry-after"), Some("1"));
        }
    }
    assert!(stored.len() > 2, "the queued writes were executed: {stored:?}");
    stored.sort_unstable();
    assert_eq!(ada.ids(), stored);
});

// The server rejects after the head, so that the client need not send the body.
engine_test!(a_create_without_write_capacity_is_rejected_before_its_body_is_read, |store: &Store| {
    let server = store.serve(&SMALL_QUEUE);
    let ada = server.client(&store.token("ada", &[]));
    let full = FullWriteQueue::new(store, &server, &ada);
    let mut connection = ada.connect();
    let response = connection.ask(ada.bytes("POST", "/plants", &[JSON, ("Content-Length", "100")], None));
    assert_eq!(response.error(), 50300);
    assert_eq!(response.header("retry-after"), Some("1"));
    assert_eq!(ada.delete(0).error(), 50300);
    assert_eq!(ada.get("/plants").status, 200, "lists are served");
    full.release();
    wait_until("write capacity", || ada.post(r#"{"id":99,"name":"n"}"#).status == 200);
});

// A hundred rejections of a user are sent at once and ten more every second, on whatever connection; the others 4 s later.
engine_test!(repeated_rejections_of_one_user_are_delayed, &SMALL_QUEUE, |Garden { store, server, ada }: &Garden| {
    assert_eq!(ada.ids(), [0_i64; 0]);
    store.wait_for_stored_token_use();
    // The use of one token at a time: the queue has one place, and a use that finds it taken is not stored.
    let bob = server.client(&store.token("bob", &[]));
    assert_eq!(bob.ids(), [0_i64; 0]);
    let full = FullWriteQueue::new(store, server, ada);
    let plant = br#"{"id":98,"name":"n"}"#;
    let start = std::time::Instant::now();
    let mut flood: Vec<_> = (0..300).map(|_| ada.connect()).collect();
    for connection in &mut flood {
        connection.send(ada.bytes("POST", "/plants", &[JSON], Some(plant)));
    }
    assert_eq!(bob.post(plant).error(), 50300);
    let is_delayed = |connection: &Connection| {
        connection.stream().set_nonblocking(true).expect("a socket");
        let is_delayed = connection.stream().peek(&mut [0]).is_err();
        connection.stream().set_nonblocking(false).expect("a socket");
        is_delayed
    };
    assert!(flood.iter().any(is_delayed), "the first rejection of another user is not delayed");
    for mut connection in flood {
        assert_eq!(connection.read_response(false).error(), 50300);
    }
    assert!(start.elapsed().as_secs() >= 4, "{:?}", start.elapsed());
    full.release();
});

// A writer that another process blocks for too long fails all waiting writes, without effect.
engine_test!(a_store_that_stays_locked_is_a_503, &["--store-timeout", "5s"], |Garden { store, ada, .. }: &Garden| {
    assert_eq!(retry_while_unavailable(|| ada.post(r#"{"id":1,"name":"first"}"#)).status, 200);
    let held = store.hold_writes();
    thread::scope(|scope| {
        for id in 2..=12 {
            scope.spawn(move || {
                let response = ada.post(format!(r#"{{"id":{id},"name":"n"}}"#));
                assert_eq!(response.error(), 50300, "{}", response.text());
                assert_eq!(response.header("retry-after"), Some("1"));
            });
        }
        assert_eq!(ada.delete(1).error(), 50300);
    });
    drop(held);
    assert_eq!(ada.ids(), [1], "the rejected writes had no effect");
    let recovered = retry_while_unavailable(|| ada.post(r#"{"id":2,"name":"n"}"#));
    assert_eq!(recovered.status, 200, "the server recovers by itself");
});

// The timeout also applies to writes that arrive while the writer already waits for the lock.
engine_test!(write_lock_of_another_program_is_a_503_within_the_store_timeout, |store: &Store| {
    let server = store.serve(&["--store-timeout", "2s"]);
    let ada = server.client(&store.token("ada", &[]));
    assert_eq!(retry_while_unavailable(|| ada.post(r#"{"id":1,"name":"first"}"#)).status, 200);
    let held = store.hold_writes();
    let rejected = |id: i64| {
        let start = Stopwatch::start();
        assert_eq!(ada.post(format!(r#"{{"id":{id},"name":"n"}}"#)).error(), 50300);
        start.elapsed()
    };
    let slowest_of_four = || {
        thread::scope(|scope| {
            let writes = [2, 3, 4, 5].map(|id| scope.spawn(move || rejected(id)));
            writes.map(|write| write.join().expect("a response")).into_iter().max()
        })
    };
    // A busy machine may miss the limit a few times, but not every time.
    let is_in_time = (0..8).any(|_| slowest_of_four() < Some(Duration::from_secs(4)));
    assert!(is_in_time, "no response within twice the timeout");
    drop(held);
    let list = wait_for("a list", || Some(ada.get("/plants?include=id")).filter(|list| list.status == 200));
    assert_eq!(list.ids(), [1], "the rejected writes had no effect");
    wait_until("a write", || ada.post(r#"{"id":2,"name":"n"}"#).status == 200);
});

// The grace period also ends while another process locks the store.
engine_test!(locked_store_does_not_delay_shutdown, |store: &Store| {
    let server = store.serve(&["--shutdown-grace", "500ms"]);
    let ada = server.client(&store.token("ada", &[]));
    ada.plant(1, "first");
    let held = store.hold_writes();
    let mut waiting = ada.connect();
    waiting.send(ada.bytes("POST", "/plants", &[JSON], Some(br#"{"id":2,"name":"n"}"#)));
    server.signal("TERM");
    let start = Stopwatch::start();
    assert_eq!(server.wait().code(), Some(0));
    assert!(start.elapsed().as_secs() < 30, "the shutdown does not wait for the store timeout");
    drop(held);
    assert_eq!(store.serve(&[]).client(ada.token.as_deref().expect("a token")).ids(), [1]);
});

/// Options of a server whose write queue is full with one write.
const SMALL_QUEUE: [&str; 4] = ["--write-queue", "1", "--metrics-listen", "0"];

/// A server with [`SMALL_QUEUE`] whose writer is blocked and whose queue is full.
struct FullWriteQueue {
    held: Box<dyn std::any::Any>,
    /// The first create is with the writer, the second in the queue; both succeed after the release.
    waiting: [Connection; 2],
}

impl FullWriteQueue {
    fn new(store: &Store, server: &Server, ada: &Client) -> Self {
        let metrics = server.metrics();
        // Storing the last use of the token takes the only place in the queue for a moment.
        assert_eq!(ada.ids(), [0_i64; 0]);
        store.wait_for_stored_token_use();
        metrics.wait_for("plantstore_http_requests_in_flight", &[], 0);
        let held = store.hold_writes();
        let create = |id: i64| {
            let mut connection = ada.connect();
            let body = format!(r#"{{"id":{id},"name":"n"}}"#);
            connection.send(ada.bytes("POST", "/plants", &[JSON], Some(body.as_bytes())));
            metrics.wait_for("plantstore_http_requests_in_flight", &[], id);
            metrics.wait_for("plantstore_write_queue_depth", &[], id - 1);
            connection
        };
        Self { held, waiting: [create(1), create(2)] }
    }

    fn release(self) {
        drop(self.held);
        for mut connection in self.waiting {
            assert_eq!(connection.read_response(false).status, 200);
        }
    }
}
