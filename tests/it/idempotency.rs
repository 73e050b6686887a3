//! `Idempotency-Key`: a retry with the same key has no effect and gets the first response again.

mod nodes;
mod storage;

use std::io;
use std::time::Duration;

use crate::support::{
    Client, Connection, Engine, Garden, JSON, Response, Service, Store, assert_snapshot, engine_test,
    retry_while_unavailable, wait_for, wait_until,
};

const QUIET: &[&str] = &["--log-level", "warn"];

fn plant(id: i64, name: &str) -> String {
    format!(r#"{{"id":{id},"name":"{name}"}}"#)
}

#[track_caller]
fn post(client: &Client, key: &str, body: &str) -> Response {
    client.call("POST", "/plants", &[JSON, ("Idempotency-Key", key)], Some(body.as_bytes()))
}

#[track_caller]
fn delete(client: &Client, key: &str, id: impl std::fmt::Display) -> Response {
    client.call("DELETE", &format!("/plants/{id}"), &[("Idempotency-Key", key)], None)
}

fn is_replayed(response: &Response) -> bool {
    response.header("idempotency-replayed").is_some_and(|value| {
        assert_eq!(value, "true");
        true
    })
}

/// Asserts that `again` is `first` with the header field of a replay.
#[track_caller]
fn assert_replays(first: &Response, again: &Response) {
    assert!(!is_replayed(first), "{}", first.wire());
    assert!(is_replayed(again), "{}", again.wire());
    assert_eq!(again.wire().replace("idempotency-replayed: true\n", ""), first.wire());
}

#[track_caller]
fn names(client: &Client) -> String {
    client.get("/plants").text().to_owned()
}

/// Sends the same bytes over two connections while writes are blocked. One request is rejected because the other is in
/// flight. Returns the connection of the other.
fn in_flight(one: &Client, other: &Client, bytes: impl Fn(&Client) -> Vec<u8>) -> Connection {
    let mut connections = [one, other].map(|client| {
        let mut connection = client.connect();
        connection.stream().set_read_timeout(Some(Duration::from_millis(5))).expect("a read timeout of 5 ms");
        connection.send(bytes(client));
        connection
    });
    let rejected = wait_for("one request to be rejected", || {
        connections.iter_mut().position(|connection| match connection.try_read_response(false) {
            Ok(response) => {
                assert_eq!(response.error(), 40901, "{}", response.wire());
                assert_eq!(response.header("retry-after"), Some("1"));
                true
            }
            Err(error) => {
                assert!(matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{error}");
                false
            }
        })
    });
    let [first, second] = connections;
    let in_flight = if rejected == 0 { second } else { first };
    in_flight.stream().set_read_timeout(Some(crate::support::TIMEOUT)).expect("a read timeout");
    in_flight
}

fn create_bytes(key: &'static str, body: String) -> impl Fn(&Client) -> Vec<u8> {
    move |client| client.bytes("POST", "/plants", &[JSON, ("Idempotency-Key", key)], Some(body.as_bytes()))
}

/// Repeats a request while the response is that the first request with its key is in flight.
#[track_caller]
fn retry_while_in_flight(call: impl Fn() -> Response) -> Response {
    wait_for("the first request to end", || {
        Some(call()).filter(|response| response.status != 409 || response.error() != 40901)
    })
}

/// One of many requests for few plants: a delete of plants 0 to 2, a create of the others. Three of four have a key.
struct KeyedRequest {
    id: i64,
    number: i64,
}

impl KeyedRequest {
    fn has_key(&self) -> bool {
        self.number % 4 != 0
    }

    fn name(&self) -> String {
        format!("number {}", self.number)
    }

    fn bytes(&self, client: &Client) -> Vec<u8> {
        let name = self.name();
        let key: &[(&str, &str)] = if self.has_key() { &[("Idempotency-Key", &name)] } else { &[] };
        if self.id < 3 {
            return client.bytes("DELETE", &format!("/plants/{}", self.id), key, None);
        }
        client.bytes("POST", "/plants", &[&[JSON], key].concat(), Some(plant(self.id, &name).as_bytes()))
    }
}

const STORED_KEYS: &str = "SELECT count(*) FROM idempotency_keys";
/// Locks of keys. Citus has advisory locks of its own, whose `objsubid` is not 1.
const LOCKS: &str = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND database = (
                     SELECT oid FROM pg_database WHERE datname = current_database())";

engine_test!(a_create_is_done_once, |Garden { store, ada, .. }: &Garden| {
    let body = r#"{"id":5,"name":"Rose","tag":"red"}"#;
    let first = post(ada, "k1", body);
    assert_eq!((first.status, first.text()), (200, r#"{"name":"Rose","tag":"red"}"#));
    let again = post(ada, "k1", body);
    assert_replays(&first, &again);
    assert_snapshot!(again.wire(), @r#"
    200 OK
    content-type: application/json
    location: /plants/5
    idempotency-replayed: true
    content-length: 27

    {"name":"Rose","tag":"red"}
    "#);
    assert_eq!(ada.post(body).error(), 40900, "a request without a key is a new request");
    assert_eq!(ada.delete(5).status, 204);
    assert_replays(&first, &post(ada, "k1", body));
    assert_eq!(ada.ids(), [0_i64; 0], "a replay does not create the deleted plant again");
    assert_eq!(post(ada, "k2", body).status, 200, "a new key creates the plant");
    assert_eq!(store.rows(STORED_KEYS), [2]);
});

engine_test!(a_delete_is_done_once, |Garden { ada, .. }: &Garden| {
    ada.plant(5, "Rose");
    let first = delete(ada, "k1", 5);
    assert_eq!(first.status, 204);
    let again = delete(ada, "k1", 5);
    assert_replays(&first, &again);
    assert_snapshot!(again.wire(), @r"
    204 No Content
    idempotency-replayed: true
    ");
    ada.plant(5, "Fern");
    assert_replays(&first, &delete(ada, "k1", 5));
    assert_eq!(names(ada), r#"[{"name":"Fern"}]"#, "a replay does not delete the new plant");
    assert_eq!(delete(ada, "k2", 5).status, 204);
});

engine_test!(rejection_is_replayed, |Garden { ada, .. }: &Garden| {
    ada.plant(1, "Rose");
    let taken = post(ada, "taken", &plant(1, "Fern"));
    assert_eq!(taken.error(), 40900);
    assert_eq!(ada.delete(1).status, 204);
    let missing = delete(ada, "missing", 1);
    assert_eq!(missing.error(), 40400);
    let again = post(ada, "taken", &plant(1, "Fern"));
    assert_replays(&taken, &again);
    assert_snapshot!(again.wire(), @r#"
    409 Conflict
    content-type: application/json
    cache-control: no-store
    idempotency-replayed: true
    content-length: 103

    {"error":40900,"message":"a plant with the id 1 exists already: choose another id, or delete it first"}
    "#);
    assert_eq!(ada.ids(), [0_i64; 0], "the rejection is replayed although the id is free now");
    ada.plant(1, "Ivy");
    assert_replays(&missing, &delete(ada, "missing", 1));
    assert_eq!(ada.ids(), [1], "the rejection is replayed although the plant exists now");
});

engine_test!(rejection_of_an_invalid_request_is_replayed, |Garden { ada, .. }: &Garden| {
    let bodies = [
        ("application/json", "", 40000),
        ("application/json", "nonsense", 40000),
        ("application/json", "\"é\\ud800", 40000),
        ("application/json", "[]", 40002),
        ("application/json", r#"{"id":1}"#, 40001),
        ("application/json", r#"{"id":"1","name":"n"}"#, 40002),
        ("application/json", r#"{"id":1,"name":""}"#, 40003),
        ("text/plain", r#"{"id":1,"name":"n"}"#, 41500),
    ];
    for (number, (media, body, error)) in bodies.iter().enumerate() {
        let key = format!("bad body {number}");
        let headers = [("Content-Type", *media), ("Idempotency-Key", &key)];
        let call = || ada.call("POST", "/plants", &headers, Some(body.as_bytes()));
        let first = call();
        assert_eq!(first.error(), *error, "{body}");
        assert_replays(&first, &call());
        assert_eq!(post(ada, &key, &plant(1, "Rose")).error(), 42200, "{body}");
    }
    let first = delete(ada, "bad id", "x");
    assert_eq!(first.error(), 40005);
    assert_replays(&first, &delete(ada, "bad id", "x"));
    assert_eq!(delete(ada, "bad id", 1).error(), 42200);
    assert_eq!(ada.ids(), [0_i64; 0]);
});

engine_test!(key_of_another_request_is_rejected, |Garden { ada, .. }: &Garden| {
    ada.plant(1, "Ivy");
    let body = plant(5, "Rose");
    let first = post(ada, "k1", &body);
    assert_eq!(first.status, 200);
    assert_snapshot!(post(ada, "k1", &plant(5, "Fern")).wire(), @r#"
    422 Unprocessable Entity
    content-type: application/json
    cache-control: no-store
    content-length: 119

    {"error":42200,"message":"this `Idempotency-Key` was sent with another request: send every new request with a new key"}
    "#);
    let typed = |media| {
        ada.call("POST", "/plants", &[("Content-Type", media), ("Idempotency-Key", "k1")], Some(body.as_bytes()))
    };
    for other in [
        post(ada, "k1", &plant(6, "Rose")),
        post(ada, "k1", &format!("{body} ")),
        post(ada, "k1", "nonsense"),
        post(ada, "k1", ""),
        typed("application/json; charset=utf-8"),
        typed("text/plain"),
        ada.call("POST", "/plants?a=b", &[JSON, ("Idempotency-Key", "k1")], Some(body.as_bytes())),
        ada.call(
            "POST",
            "/plants",
            &[JSON, ("Content-Encoding", "identity"), ("Idempotency-Key", "k1")],
            Some(body.as_bytes()),
        ),
        delete(ada, "k1", 1),
        delete(ada, "k1", 5),
        delete(ada, "k1", "x"),
    ] {
        assert_eq!(other.error(), 42200, "{}", other.wire());
    }
    assert_replays(&first, &post(ada, "k1", &body));
    let deleted = delete(ada, "k2", 5);
    assert_eq!(deleted.status, 204);
    for other in [delete(ada, "k2", 1), delete(ada, "k2", "%35"), delete(ada, "k2", "5?a=b"), post(ada, "k2", &body)] {
        assert_eq!(other.error(), 42200, "{}", other.wire());
    }
    assert_replays(&deleted, &delete(ada, "k2", 5));
    assert_eq!(ada.ids(), [1]);
});

engine_test!(keys_are_separate_for_each_user, |Service { store, server }: &Service| {
    let [first, second] = [store.token("ada", &[]), store.token("ada", &["--scope", "plants:write"])];
    let (ada, also_ada) = (server.client(&first), server.client(&second));
    let bob = server.client(&store.token("bob", &[]));
    let created = post(&ada, "k1", &plant(1, "Rose"));
    assert_eq!(created.status, 200);
    let of_bob = post(&bob, "k1", &plant(1, "Fern"));
    assert!(of_bob.status == 200 && !is_replayed(&of_bob), "{}", of_bob.wire());
    assert_replays(&created, &post(&also_ada, "k1", &plant(1, "Rose")));
    assert_eq!(names(&bob), r#"[{"name":"Fern"}]"#);
});

// A retry with the same key succeeds when the client is authorized or the store is available again.
engine_test!(transient_and_authentication_errors_are_not_stored, |store: &Store| {
    let server = store.serve(&["--store-timeout", "5s"]);
    let ada = server.client(&store.token("ada", &[]));
    let reader = server.client(&store.token("ada", &["--scope", "plants:read"]));
    assert_eq!(post(&server.anonymous(), "k1", &plant(1, "Rose")).error(), 40100);
    assert_eq!(post(&server.client("pst_nonsense"), "k1", &plant(1, "Rose")).error(), 40101);
    assert_eq!(post(&reader, "k1", &plant(1, "Rose")).error(), 40300);
    assert_eq!(post(&ada, "k1", &"x".repeat(20_000)).error(), 41300, "the body was not received completely");
    let held = store.hold_writes();
    let unavailable = post(&ada, "k1", &plant(1, "Rose"));
    assert_eq!(unavailable.error(), 50300);
    assert_eq!(post(&ada, "k1", "nonsense").error(), 50300, "the key cannot be looked up");
    drop(held);
    assert_eq!(store.rows(STORED_KEYS), [0]);
    let first = retry_while_unavailable(|| post(&ada, "k1", &plant(1, "Rose")));
    assert!(first.status == 200 && !is_replayed(&first), "{}", first.wire());
    assert_replays(&first, &post(&ada, "k1", &plant(1, "Rose")));
});

engine_test!(incomplete_body_leaves_the_key_unused, &["--request-timeout", "300ms"], |Garden { ada, .. }: &Garden| {
    let mut connection = ada.connect();
    let headers = [JSON, ("Idempotency-Key", "k1"), ("Content-Length", "100")];
    assert_eq!(connection.ask(ada.bytes("POST", "/plants", &headers, None)).error(), 40800);
    assert_eq!(post(ada, "k1", &plant(1, "Rose")).status, 200);
});

engine_test!(key_is_printable_with_or_without_quotes, |Garden { server, ada, .. }: &Garden| {
    let longest = "x".repeat(255);
    let quoted = format!("\"{longest}\"");
    let same = [
        ["abc", "\"abc\""],
        ["a b ~!", "\"a b ~!\""],
        [r#"a"b\c"#, r#""a\"b\\c""#],
        ["8e03978e-40d5-43dd-bc93-6894a57f9324", "\"8e03978e-40d5-43dd-bc93-6894a57f9324\""],
        [&longest, &quoted],
    ];
    for (id, [bare, quoted]) in (0..).zip(same) {
        let first = post(ada, bare, &plant(id, "Rose"));
        assert_eq!(first.status, 200, "{bare}");
        assert_replays(&first, &post(ada, quoted, &plant(id, "Rose")));
    }
    let first = post(ada, "\" abc\"", &plant(100, "Rose"));
    assert!(first.status == 200 && !is_replayed(&first), "white space within quotes is part of the key");

    let before = ada.ids();
    let too_long = "x".repeat(256);
    let too_long_quoted = format!("\"{too_long}\"");
    for wrong in [
        "",
        "\"",
        "\"\"",
        "\"abc",
        "\"a\"b\"",
        "\"abc\\\"",
        "\"a\\b\"",
        "\"abc\"; a=1",
        "\"abc\" d",
        "é",
        "a\tb",
        "\"é\"",
        &too_long,
        &too_long_quoted,
    ] {
        for response in [post(ada, wrong, &plant(101, "Rose")), delete(ada, wrong, 100), post(ada, wrong, "nonsense")] {
            assert_eq!(response.error(), 40007, "{wrong}");
        }
    }
    assert_snapshot!(post(ada, "", "{}").text(), @r#"{"error":40007,"message":"send one `Idempotency-Key` of 1 to 255 printable ASCII characters, bare or as a quoted string of RFC 8941"}"#);
    let twice = [JSON, ("Idempotency-Key", "a"), ("Idempotency-Key", "a")];
    assert_eq!(ada.call("POST", "/plants", &twice, Some(b"{}")).error(), 40007);
    assert_eq!(post(&server.anonymous(), "", "{}").error(), 40100, "authentication comes first");
    // A list ignores the key.
    assert_eq!(ada.call("GET", "/plants?include=id", &[("Idempotency-Key", "")], None).ids(), before);
});

engine_test!(a_second_request_does_not_wait_for_the_first, QUIET, |Garden { store, ada, .. }: &Garden| {
    assert_eq!(ada.ids(), [0_i64; 0]);
    let held = store.hold_writes();
    let mut first = in_flight(ada, ada, create_bytes("k1", plant(1, "Rose")));
    assert_snapshot!(post(ada, "k1", &plant(1, "Rose")).wire(), @r#"
    409 Conflict
    content-type: application/json
    cache-control: no-store
    retry-after: 1
    content-length: 126

    {"error":40901,"message":"a request with this `Idempotency-Key` is in flight: send the same again in a moment for its answer"}
    "#);
    assert_eq!(post(ada, "\"k1\"", &plant(2, "Fern")).error(), 40901, "also for another request with the key");
    assert_eq!(post(ada, "k1", "nonsense").error(), 40901);
    assert_eq!(delete(ada, "k1", 1).error(), 40901);
    drop(held);
    let response = first.read_response(false);
    assert_eq!(response.status, 200);
    assert_replays(&response, &post(ada, "k1", &plant(1, "Rose")));
    assert_eq!(post(ada, "k1", &plant(2, "Fern")).error(), 42200);
});

engine_test!(client_that_disconnects_gets_its_response_on_retry, QUIET, |Garden { store, ada, .. }: &Garden| {
    ada.plant(1, "Rose");
    let held = store.hold_writes();
    let first = in_flight(ada, ada, |client| client.bytes("DELETE", "/plants/1", &[("Idempotency-Key", "k1")], None));
    drop(first);
    assert_eq!(delete(ada, "k1", 1).error(), 40901, "the delete is still in flight");
    drop(held);
    let response = retry_while_in_flight(|| delete(ada, "k1", 1));
    assert_eq!(response.status, 204, "{}", response.wire());
    assert!(is_replayed(&response));
    assert_eq!(ada.ids(), [0_i64; 0]);
    if matches!(store.engine, Engine::Postgres) {
        wait_until("the locks to be released", || store.rows_of_servers(LOCKS).is_empty());
    }
});

// Of all requests for one id exactly one succeeds, with or without a key. A retry with a key gets the same response.
engine_test!(requests_in_one_commit_get_their_own_responses, QUIET, |Garden { store, server, ada }: &Garden| {
    (0..3).for_each(|id| ada.plant(id, "before"));
    let requests: Vec<KeyedRequest> = (0..24).map(|number| KeyedRequest { id: number % 6, number }).collect();
    let held = store.hold_writes();
    let mut connections: Vec<Connection> = requests
        .iter()
        .map(|request| {
            let mut connection = ada.connect();
            connection.send(request.bytes(ada));
            connection
        })
        .collect();
    // Gives the server time to receive all requests before the commit. The assertions do not depend on it.
    for _ in &requests {
        assert_eq!(server.anonymous().get("/livez").status, 200);
    }
    drop(held);
    let responses: Vec<Response> = connections.iter_mut().map(|connection| connection.read_response(false)).collect();
    let done = |id: i64| {
        requests.iter().zip(&responses).filter(move |(request, response)| request.id == id && response.status < 300)
    };
    assert!((0..6).all(|id| done(id).count() == 1), "exactly one request for each id succeeds");
    let created = (3..6).map(|id| done(id).next().unwrap().0.name()).collect::<Vec<_>>();
    let listed = ada.get("/plants").json();
    let listed: Vec<&str> = listed.as_array().unwrap().iter().map(|plant| plant["name"].as_str().unwrap()).collect();
    assert_eq!(listed, created, "the plants of the successful requests");
    for (request, response) in requests.iter().zip(&responses).filter(|(request, _)| request.has_key()) {
        let mut connection = ada.connect();
        assert_replays(response, &connection.ask(request.bytes(ada)));
    }
    assert_eq!(ada.ids(), [3, 4, 5]);
});

engine_test!(write_that_the_database_rejects_does_not_fail_others_of_its_commit, QUIET, |garden: &Garden| {
    let Garden { store, server, ada } = garden;
    store.execute(match store.engine {
        Engine::Sqlite => {
            "CREATE TRIGGER rejected BEFORE INSERT ON plants WHEN NEW.plant_id = 2
             BEGIN SELECT RAISE(ABORT, 'rejected'); END"
        }
        Engine::Postgres => "ALTER TABLE plants ADD CONSTRAINT rejected CHECK (plant_id <> 2)",
    });
    let held = store.hold_writes();
    let mut connections = [1, 2, 3].map(|id| {
        let mut connection = ada.connect();
        connection.send(ada.bytes("POST", "/plants", &[JSON], Some(plant(id, "Rose").as_bytes())));
        connection
    });
    // Gives the server time to receive all requests before the commit. The assertions do not depend on it.
    (0..24).for_each(|_| assert_eq!(server.anonymous().get("/livez").status, 200));
    drop(held);
    assert_eq!(connections.each_mut().map(|connection| connection.read_response(false).status), [200, 500, 200]);
    assert_eq!(ada.ids(), [1, 3]);
});

engine_test!(exactly_one_of_many_requests_with_one_key_is_done, QUIET, |Garden { ada, .. }: &Garden| {
    for round in 0..20 {
        let key = format!("round {round}");
        let fresh: usize = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| retry_while_in_flight(|| post(ada, &key, &plant(round, "Rose")))))
                .collect();
            racers
                .into_iter()
                .map(|racer| racer.join().expect("a client thread"))
                .filter(|response| {
                    assert_eq!(response.status, 200, "{}", response.wire());
                    !is_replayed(response)
                })
                .count()
        });
        assert_eq!(fresh, 1);
    }
    assert_eq!(ada.ids(), (0..20).collect::<Vec<i64>>());
});
