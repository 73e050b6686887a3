//! Fairness between users: one user who sends all they can does not keep out the others.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rstest::rstest;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::http2::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, head};
use crate::support::{
    Client, Connection, Engine, Fault, JSON, Response, Store, campaign_factor, engine_test, postgres_test, wait_until,
};
use crate::tokens::{create, created, hold_tokens, manager, revoke};

/// Connections of the user who causes the load.
const FLOOD: usize = 1_500;
/// Concurrent requests of that user on a connection of HTTP/2.
const FLOOD_STREAMS: usize = 50;
/// Requests of the polite user in a burst.
const POLITE: usize = 8;
/// Bursts of a pass of a campaign, instead of one.
const BURSTS: usize = 8;
/// The indexed field `:status: 200` of HPACK.
const STATUS_200: u8 = 0x88;
/// Runs a server with one thread for requests, which is soon saturated.
const ONE_THREAD: [&str; 4] = ["sh", "-c", "export TOKIO_WORKER_THREADS=1; exec \"$@\"", "sh"];

/// Allows this process to open the connections of a flood.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("more open files");
}

/// A change waits for its turn, so that it is not rejected on a busy machine.
const LONG_WAIT: [&str; 2] = ["--waiting-timeout", "60s"];

/// Sends requests on one connection each.
fn send(client: &Client, requests: usize, request: impl Fn(&Client) -> Vec<u8>) -> Vec<Connection> {
    let send_one = |_| {
        let mut connection = client.connect();
        connection.send(request(client));
        connection
    };
    (0..requests).map(send_one).collect()
}

fn responses(connections: Vec<Connection>) -> Vec<Response> {
    connections.into_iter().map(|mut connection| connection.read_response(false)).collect()
}

fn count(responses: &[Response], status: u16) -> usize {
    responses.iter().filter(|response| response.status == status).count()
}

/// Requests of one kind.
struct Kind {
    name: &'static str,
    method: &'static str,
    path: &'static str,
    body: Option<&'static str>,
    over_http2: bool,
    /// Statuses that the greedy user may get.
    statuses: [u16; 2],
}

const LIST: Kind =
    Kind { name: "GET requests", method: "GET", path: "/plants", body: None, over_http2: false, statuses: [200, 503] };
/// Kinds of requests. `ID` stands for a number that is different in each. The suite sends the first of each array only.
const READS: [Kind; 3] = [
    LIST,
    Kind { name: "GET requests over HTTP/2", over_http2: true, ..LIST },
    Kind { name: "event streams", path: "/events", statuses: [200, 429], ..LIST },
];
const CREATE: Kind = Kind { name: "POST requests", method: "POST", body: Some(r#"{"id":ID,"name":"n"}"#), ..LIST };
const WRITES: [Kind; 5] = [
    CREATE,
    Kind { name: "POST requests over HTTP/2", over_http2: true, ..CREATE },
    Kind { name: "PUT requests", method: "PUT", path: "/plants/0", body: Some(r#"{"name":"n"}"#), ..LIST },
    // The greedy user deletes plants that are not there.
    Kind { name: "DELETE requests", method: "DELETE", path: "/plants/ID", statuses: [404, 503], ..LIST },
    Kind {
        name: "PUT requests for shares",
        method: "PUT",
        path: "/shares/other",
        body: Some(r#"{"role":"reader"}"#),
        statuses: [204, 503],
        ..LIST
    },
];

/// Requests of a kind on one connection: several over HTTP/2.
enum Requests {
    Http1(Connection),
    Http2(Frames<TcpStream>, usize),
}

impl Requests {
    fn open(kind: &Kind, client: &Client, streams: usize) -> Self {
        if kind.over_http2 {
            Self::Http2(Frames::open(client.address, &[]), streams)
        } else {
            Self::Http1(client.connect())
        }
    }

    fn send(&mut self, kind: &Kind, client: &Client, mut id: impl FnMut() -> i64) {
        let mut parts = || {
            let id = id().to_string();
            (kind.path.replace("ID", &id), kind.body.map(|body| body.replace("ID", &id)))
        };
        match self {
            Self::Http1(connection) => {
                let (path, body) = parts();
                connection.send(client.bytes(kind.method, &path, &[JSON], body.as_deref().map(str::as_bytes)));
            }
            Self::Http2(connection, streams) => {
                for stream in (1..).step_by(2).take(*streams) {
                    let (path, body) = parts();
                    let end = if body.is_some() { 0 } else { END_STREAM };
                    connection.send(HEADERS, END_HEADERS | end, stream, &head(client, kind.method, &path, &[JSON]));
                    if let Some(body) = body {
                        connection.send(DATA, END_STREAM, stream, body.as_bytes());
                    }
                }
            }
        }
    }

    /// Reads the statuses of the responses. The body of an event stream is not read.
    fn statuses(&mut self, kind: &Kind) -> Vec<u16> {
        match self {
            Self::Http1(connection) if kind.path == "/events" => vec![connection.read_head().status],
            Self::Http1(connection) => vec![connection.read_response(false).status],
            Self::Http2(connection, streams) => {
                let (mut statuses, mut bodies) = (Vec::new(), BTreeMap::<u32, Vec<u8>>::new());
                while statuses.len() < *streams {
                    let frame = connection.next().expect("the responses");
                    if frame.kind == HEADERS && frame.payload[0] == STATUS_200 {
                        statuses.push(200);
                    } else if frame.kind == DATA {
                        // The status of an error is that of its code.
                        let body = bodies.entry(frame.stream).or_default();
                        body.extend(frame.payload);
                        let error = serde_json::from_slice::<serde_json::Value>(body).ok();
                        let code = error.and_then(|error| error.get("error")?.as_u64());
                        statuses.extend(code.map(|code| u16::try_from(code / 100).expect("a status")));
                    }
                }
                statuses
            }
        }
    }
}

#[rstest]
#[case::reads(&READS)]
#[case::writes(&WRITES)]
fn polite_user_is_served_by_a_saturated_server(
    #[values(Engine::Sqlite, Engine::Postgres)] engine: Engine,
    #[case] kinds: &[Kind],
) {
    raise_file_limit();
    let in_campaign = campaign_factor() > 1;
    let (kinds, bursts) = if in_campaign { (kinds, BURSTS) } else { (&kinds[..1], 1) };
    for kind in kinds {
        flood_with(kind, engine, bursts);
    }
}

/// The server is stopped while the requests of a burst are sent, so that all of them are ready when it continues.
fn flood_with(kind: &Kind, engine: Engine, bursts: usize) {
    let store = &Store::new(engine);
    // The two changes of the polite user that are executed concurrently leave the others waiting.
    let waiting: &[&str] = if kind.path.starts_with("/shares") { &LONG_WAIT } else { &[] };
    let server = store.serve_through(&ONE_THREAD, &[waiting, &["--metrics-listen", "0"]].concat());
    let metrics = server.metrics();
    let users = ["greedy", "polite"].map(|user| manager(store, &server, user));
    for user in &users {
        user.plant(0, "n");
    }
    let [greedy, polite] = &users;
    let fault = Fault::on(engine, &format!("flood of {} by one user", kind.name), 1);
    let mut last = 0;
    let mut burst = || {
        let mut id = || {
            last += 1;
            last
        };
        let streams = if kind.over_http2 { FLOOD_STREAMS } else { 1 };
        let mut flood: Vec<_> = (0..FLOOD / streams).map(|_| Requests::open(kind, greedy, streams)).collect();
        let mut calls: Vec<_> = (0..POLITE).map(|_| Requests::open(kind, polite, 1)).collect();
        let ids: Vec<_> = calls.iter().map(|_| id()).collect();
        if kind.method == "DELETE" {
            for id in &ids {
                polite.plant(*id, "n");
            }
        }
        assert_eq!([greedy.get("/me").status, polite.get("/me").status], [200; 2]);
        server.signal("STOP");
        let part = flood.len().div_ceil(POLITE);
        for ((part, call), polite_id) in flood.chunks_mut(part).zip(&mut calls).zip(ids) {
            for requests in part {
                requests.send(kind, greedy, &mut id);
            }
            call.send(kind, polite, || polite_id);
        }
        server.signal("CONT");
        for call in &mut calls {
            let statuses = call.statuses(kind);
            assert!(statuses.iter().all(|status| *status < 300), "{} of the polite user: {statuses:?}", kind.name);
        }
        let statuses: Vec<_> = flood.iter_mut().flat_map(|requests| requests.statuses(kind)).collect();
        let [done, rejected] = kind.statuses;
        assert!(statuses.iter().all(|status| [done, rejected, 503].contains(status)), "{}: {statuses:?}", kind.name);
        let written = statuses.iter().filter(|status| **status < 300).count() + POLITE;
        fault.count(statuses.len() + POLITE, if kind.method == "GET" { 0 } else { written });
        drop((flood, calls));
        metrics.wait_for("plantstore_event_streams", &[], 0);
        statuses.contains(&rejected)
    };
    fault.begin_round();
    wait_until("a rejected request of the greedy user", || {
        (0..bursts).map(|_| burst()).filter(|rejected| *rejected).count() > 0
    });
}

engine_test!(write_queue_has_a_place_for_another_user, |store: &Store| {
    let server = store.serve(&["--write-queue", "16", "--metrics-listen", "0"]);
    let metrics = server.metrics();
    let [greedy, polite] = ["greedy", "polite"].map(|user| server.client(&store.token(user, &[])));
    for user in [&greedy, &polite] {
        assert_eq!(user.ids(), [0_i64; 0]);
    }
    store.wait_for_stored_token_use();
    metrics.wait_for("plantstore_http_requests_in_flight", &[], 0);
    let held = store.hold_writes();
    let plant = |client: &Client| client.bytes("POST", "/plants", &[JSON], Some(br#"{"id":1,"name":"n"}"#));
    let first = send(&greedy, 1, plant);
    metrics.wait_for("plantstore_http_requests_in_flight", &[], 1);
    metrics.wait_for("plantstore_write_queue_depth", &[], 0);
    // Three quarters of the queue, and half of the rest.
    let flood = send(&greedy, 20, plant);
    metrics.wait_for("plantstore_requests_shed_total", &[("kind", "write")], 6);
    metrics.wait_for("plantstore_write_queue_depth", &[], 14);
    let call = send(&polite, 1, plant);
    metrics.wait_for("plantstore_write_queue_depth", &[], 15);
    drop(held);
    assert_eq!(count(&responses(call), 200), 1);
    assert_eq!(count(&responses(first), 200), 1);
    let flood = responses(flood);
    assert_eq!([count(&flood, 409), count(&flood, 503)], [14, 6]);
});

// Only with PostgreSQL do reads wait for the store.
postgres_test!(another_user_finds_a_slot_to_read, |store: &Store| {
    let server = store.serve(&["--max-in-flight", "8", "--max-waiting", "0", "--metrics-listen", "0"]);
    let metrics = server.metrics();
    let [greedy, polite] = ["greedy", "polite"].map(|user| server.client(&store.token(user, &[])));
    let held = store.hold("BEGIN; LOCK TABLE plantstore.plants");
    let list = |client: &Client| client.bytes("GET", "/plants", &[], None);
    // The tokens are cached for two seconds. Later, their look-ups would wait for the lists.
    assert_eq!([greedy.get("/me").status, polite.get("/me").status], [200; 2]);
    let flood = send(&greedy, 20, list);
    wait_until("the rejections", || flood.iter().filter(|sent| has_response(sent)).count() == 13);
    let call = send(&polite, 1, list);
    metrics.wait_for("plantstore_reads_in_flight", &[], 8);
    drop(held);
    assert_eq!(count(&responses(call), 200), 1);
    assert_eq!(count(&responses(flood), 200), 7);
});

fn has_response(connection: &Connection) -> bool {
    connection.stream().set_nonblocking(true).expect("a socket");
    let has_response = connection.stream().peek(&mut [0]).is_ok();
    connection.stream().set_nonblocking(false).expect("a socket");
    has_response
}

engine_test!(changes_of_one_user_leave_places_for_other_users, |store: &Store| {
    const OF_ONE_TOKEN: usize = 16;
    let server = store.serve(&[&LONG_WAIT[..], &["--metrics-listen", "0"]].concat());
    let metrics = server.metrics();
    let [greedy, other, polite] = ["greedy", "greedy", "polite"].map(|user| manager(store, &server, user));
    let (leaked, _) = created(&polite, &serde_json::json!({}));
    let held = hold_tokens(store);
    let token = |client: &Client| client.bytes("POST", "/tokens", &[JSON], Some(b"{}"));
    let mut flood = send(&greedy, OF_ONE_TOKEN + 1, token);
    metrics.wait_for("plantstore_requests_shed_total", &[("kind", "write")], 1);
    flood.extend(send(&other, OF_ONE_TOKEN + 1, token));
    metrics.wait_for("plantstore_requests_shed_total", &[("kind", "write")], 2);
    thread::scope(|scope| {
        let creation = scope.spawn(|| create(&polite, &serde_json::json!({})).status);
        let revocation = scope.spawn(|| revoke(&polite, leaked).status);
        metrics.wait_for("plantstore_http_requests_in_flight", &[], 34);
        drop(held);
        assert_eq!([creation.join().expect("a status"), revocation.join().expect("a status")], [201, 204]);
    });
    let flood = responses(flood);
    assert_eq!([count(&flood, 201), count(&flood, 503)], [2 * OF_ONE_TOKEN, 2]);
    let rejected = flood.iter().find(|response| response.status == 503).expect("a rejection");
    assert_eq!((rejected.error(), rejected.header("retry-after")), (50300, Some("1")), "{}", rejected.wire());
});

// Both another user and the stolen token itself flood the service with changes, on a new connection for each.
engine_test!(owner_revokes_a_stolen_token_during_a_flood_of_changes, |store: &Store| {
    const CONNECTIONS: usize = 24;
    let server = store.serve(&LONG_WAIT);
    let (ada, mallory) = (manager(store, &server, "ada"), manager(store, &server, "mallory"));
    let all = serde_json::json!({ "scopes": ["tokens:manage"] });
    let (id, stolen) = created(&ada, &all);
    let [rejected, ended] = [const { AtomicBool::new(false) }; 2];
    thread::scope(|scope| {
        for client in [&mallory, &stolen].repeat(CONNECTIONS) {
            let (rejected, ended) = (&rejected, &ended);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    match revoke(client, 999_999).status {
                        503 => rejected.store(true, Ordering::Relaxed),
                        status => assert!([401, 404, 429].contains(&status), "{status}"),
                    }
                }
            });
        }
        wait_until("a rejected change", || rejected.load(Ordering::Relaxed));
        let revoked = revoke(&ada, id);
        ended.store(true, Ordering::Relaxed);
        assert_eq!(revoked.status, 204, "{}", revoked.wire());
    });
    assert_eq!(stolen.get("/tokens").status, 401);
});
