//! Fairness between users: one user who sends all they can does not keep out the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rstest::rstest;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{
    Client, Connection, Engine, Fault, JSON, Response, Store, engine_test, postgres_test, wait_until,
};
use crate::tokens::{create, created, hold_tokens, manager, revoke};

/// Connections of the user who causes the load.
const FLOOD: usize = 1_500;
/// Requests of the polite user in one round.
const POLITE: usize = 8;
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

/// The server is stopped while the requests are sent, so that all of them are ready when it continues.
#[rstest]
#[case::lists("GET")]
#[case::creates("POST")]
fn polite_user_is_served_by_a_saturated_server(
    #[values(Engine::Sqlite, Engine::Postgres)] engine: Engine,
    #[case] method: &str,
) {
    raise_file_limit();
    let store = &Store::new(engine);
    let server = store.serve_through(&ONE_THREAD, &[]);
    let [greedy, polite] = ["greedy", "polite"].map(|user| server.client(&store.token(user, &[])));
    let mut flood: Vec<_> = (0..FLOOD).map(|_| greedy.connect()).collect();
    let mut calls: Vec<_> = (0..POLITE).map(|_| polite.connect()).collect();
    let mut id = 0;
    let mut request = |client: &Client| {
        id += 1;
        let body = format!(r#"{{"id":{id},"name":"n"}}"#);
        if method == "POST" {
            client.bytes(method, "/plants", &[JSON], Some(body.as_bytes()))
        } else {
            client.bytes(method, "/plants", &[], None)
        }
    };
    let fault = Fault::on(engine, &format!("flood of {method} requests by one user"), 1);
    let mut rejected_in = 0;
    wait_until("a rejected request of the greedy user in every round", || {
        assert_eq!([greedy.get("/me").status, polite.get("/me").status], [200; 2]);
        server.signal("STOP");
        for (part, call) in flood.chunks_mut(FLOOD / POLITE).zip(&mut calls) {
            for connection in part {
                connection.send(request(&greedy));
            }
            call.send(request(&polite));
        }
        server.signal("CONT");
        for call in &mut calls {
            let response = call.read_response(false);
            assert_eq!(response.status, 200, "{}", response.wire());
        }
        let sent = FLOOD / POLITE * POLITE;
        let statuses: Vec<_> = flood[..sent].iter_mut().map(|flood| flood.read_response(false).status).collect();
        assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
        fault.begin_round();
        let writes = statuses.iter().filter(|status| method == "POST" && **status == 200).count();
        fault.count(sent + POLITE, writes + if method == "POST" { POLITE } else { 0 });
        rejected_in += usize::from(statuses.contains(&503));
        rejected_in == fault.rounds
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
