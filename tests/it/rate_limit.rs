//! Rate limits: each user has a quota of their own, and the `RateLimit` header fields are exact.

use std::thread;
use std::time::Duration;

use crate::support::{
    Client, CommandOutput, Connection, Garden, JSON, Response, Server, Store, assert_snapshot, engine_test, sqlite_test,
};

/// Starts a server with a rate so low that no request is added to the bucket while a test runs.
fn serve_with_burst(store: &Store, burst: &str) -> Server {
    store.serve(&["--rate-limit", "1/h", "--rate-burst", burst])
}

/// Remaining requests in the `RateLimit` header, and the seconds until they are restored.
#[track_caller]
fn left(response: &Response) -> (u64, u64) {
    let value = response.header("ratelimit").unwrap_or_else(|| panic!("a RateLimit header in {response:?}"));
    let parameters = value.strip_prefix("\"user\";r=").and_then(|rest| rest.split_once(";t="));
    let (left, seconds) = parameters.unwrap_or_else(|| panic!("an item with r and t, not {value}"));
    (left.parse().expect("a number"), seconds.parse().expect("seconds"))
}

fn retry_after(response: &Response) -> u64 {
    response.header("retry-after").and_then(|seconds| seconds.parse().ok()).expect("whole seconds")
}

fn list_status(client: &Client) -> u16 {
    client.get("/plants").status
}

/// Responses of every kind to an authenticated user, except 429.
fn responses_to_a_user(store: &Store, ada: &Client) -> Vec<Response> {
    let reader = Client { token: Some(store.token("ada", &["--scope", "plants:read"])), ..ada.clone() };
    let body = Some(&br#"{"id":1,"name":"Rose"}"#[..]);
    let responses = vec![
        ada.call("POST", "/plants", &[JSON], body),
        ada.get("/plants"),
        ada.get("/plants?limit=0"),
        ada.call("HEAD", "/plants", &[], None),
        ada.delete(1),
        ada.post("nonsense"),
        ada.get("/plants?limit=x"),
        reader.call("POST", "/plants", &[JSON], body),
        ada.delete(1),
        ada.get("/nothing"),
        ada.call("PUT", "/plants", &[], None),
        ada.call("OPTIONS", "/plants", &[], None),
        ada.post(format!(r#"{{"id":1,"name":"{}"}}"#, "x".repeat(20_000))),
        ada.call("POST", "/plants", &[], body),
    ];
    let expected = [200, 200, 200, 200, 204, 400, 400, 403, 404, 404, 405, 405, 413, 415];
    assert_eq!(responses.iter().map(|response| response.status).collect::<Vec<_>>(), expected);
    responses
}

/// Responses of every kind to an unauthenticated client.
fn responses_to_anonymous(server: &Server) -> Vec<Response> {
    let anonymous = server.anonymous();
    let nonsense = || anonymous.call("GET", "/plants", &[("Authorization", "Bearer nonsense")], None);
    let raw = |bytes: &str| {
        let mut connection = Connection::open(server.address());
        connection.ask(bytes)
    };
    let responses = vec![
        anonymous.get("/livez"),
        anonymous.get("/readyz"),
        anonymous.get("/plants"),
        nonsense(),
        (0..100).map(|_| nonsense()).find(|response| response.status == 429).expect("too many failures"),
        raw("GET /livez HTTP/1.1\r\n\r\n"),
        raw("GET /livez HTTP/1.1\r\nHo"),
    ];
    let expected = [200, 200, 401, 401, 429, 400, 408];
    assert_eq!(responses.iter().map(|response| response.status).collect::<Vec<_>>(), expected);
    responses
}

/// Options with low limits, so that `responses_to_anonymous` gets 429 and 408.
const STRICT: [&str; 6] = ["--auth-failure-rate", "1", "--auth-failure-burst", "1", "--header-timeout", "5s"];

engine_test!(burst_is_allowed_and_then_rejected_with_429, |store: &Store| {
    let server = serve_with_burst(store, "5");
    let ada = server.client(&store.token("ada", &[]));
    for still in (0..5).rev() {
        let response = ada.get("/plants");
        assert_eq!((response.status, left(&response).0), (200, still));
        assert_eq!(response.header("ratelimit-policy"), Some(r#""user";q=5;w=18000"#));
    }
    let rejected = ada.get("/plants");
    assert_eq!(rejected.error(), 42900);
    let wait = retry_after(&rejected);
    // Usually less than a second has passed since the first request, but not always.
    assert!((3_500..=3_600).contains(&wait), "{wait}");
    assert_eq!(left(&rejected), (0, wait), "both header fields have the same number of seconds");
    assert_snapshot!(rejected.wire().replace(&wait.to_string(), "(3600)"), @r#"
    429 Too Many Requests
    content-type: application/json
    cache-control: no-store
    retry-after: (3600)
    ratelimit-policy: "user";q=5;w=18000
    ratelimit: "user";r=0;t=(3600)
    content-length: 103

    {"error":42900,"message":"this user has sent too many requests, nothing was done: try again in (3600) s"}
    "#);
});

// Waits for `Retry-After` in real time. Unit tests cover its bounds.
engine_test!(request_after_retry_after_is_served, |store: &Store| {
    let server = store.serve(&["--rate-limit", "20/m", "--rate-burst", "1"]);
    let ada = server.client(&store.token("ada", &[]));
    let mut connection = ada.connect();
    let mut list = || connection.ask(ada.bytes("GET", "/plants", &[], None));
    for _ in 0..2 {
        // The first request is served. One of the next is rejected, unless the machine stalls for seconds.
        let rejected = (0..10).map(|_| list()).find(|response| response.status == 429).expect("a rejected request");
        let wait = retry_after(&rejected);
        assert!((1..=3).contains(&wait), "{wait}");
        #[expect(clippy::disallowed_methods, reason = "the wait is what is tested")]
        thread::sleep(Duration::from_secs(wait));
        let response = list();
        assert_eq!(response.status, 200, "after {wait} s");
    }
});

engine_test!(rejected_request_has_no_effect, |store: &Store| {
    let server = serve_with_burst(store, "1");
    let unlimited = store.serve(&[]);
    let token = store.token("ada", &[]);
    let (ada, elsewhere) = (server.client(&token), unlimited.client(&token));
    elsewhere.plant(1, "Rose");
    assert_eq!(list_status(&ada), 200);
    assert_eq!(ada.post(r#"{"id":2,"name":"Fern"}"#).error(), 42900);
    assert_eq!(ada.delete(1).error(), 42900);
    assert_eq!(elsewhere.ids(), [1]);
    assert_eq!(list_status(&serve_with_burst(store, "1").client(&token)), 200, "each node has its own count");
});

// After authentication, the rate limit is the first check.
engine_test!(rate_limit_is_checked_before_everything_else, |store: &Store| {
    let server = serve_with_burst(store, "1");
    let ada = server.client(&store.token("ada", &[]));
    assert_eq!(list_status(&ada), 200);
    let huge = [JSON, ("Content-Length", "5368709120")];
    assert_eq!(ada.call("POST", "/plants", &huge, None).error(), 42900);
    assert_eq!(ada.post("nonsense").error(), 42900);
    assert_eq!(ada.get("/plants?limit=x").error(), 42900);
    assert_eq!(ada.get("/nothing").error(), 42900);
    assert_eq!(ada.call("PUT", "/plants", &[], None).error(), 42900);
    assert_eq!(ada.call("GET", "/plants", &[("Host", "again")], None).error(), 42900);
    let reader = server.client(&store.token("ada", &["--scope", "plants:read"]));
    assert_eq!(reader.delete(1).error(), 42900);
});

engine_test!(users_do_not_affect_each_other, |store: &Store| {
    let server = serve_with_burst(store, "3");
    let [ada, bob] = ["ada", "bob"].map(|name| server.client(&store.token(name, &[])));
    let statuses: Vec<u16> = (0..20).map(|_| list_status(&ada)).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 3, "{statuses:?}");
    for still in (0..3).rev() {
        let response = bob.get("/plants");
        assert_eq!((response.status, left(&response).0), (200, still), "bob's quota is untouched");
    }
    assert_eq!((list_status(&ada), list_status(&bob)), (429, 429));
});

engine_test!(the_tokens_of_a_user_share_one_quota, |store: &Store| {
    let server = serve_with_burst(store, "4");
    let clients = [0, 1].map(|_| server.client(&store.token("ada", &[])));
    for still in (0..4).rev() {
        assert_eq!(left(&clients[usize::from(still % 2 == 0)].get("/plants")).0, still);
    }
    let fresh = server.client(&store.token("ada", &[]));
    assert_eq!(clients.iter().chain([&fresh]).map(list_status).collect::<Vec<_>>(), [429, 429, 429]);
});

engine_test!(concurrent_requests_get_no_more_than_the_burst, |store: &Store| {
    let server = serve_with_burst(store, "50");
    let ada = server.client(&store.token("ada", &[]));
    let granted: usize = thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut connection = ada.connect();
                    let statuses = (0..25).map(|_| connection.ask(ada.bytes("GET", "/plants", &[], None)).status);
                    statuses.filter(|status| *status == 200).count()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    assert_eq!(granted, 50);
});

engine_test!(every_response_has_the_policy_and_the_remaining_quota, |store: &Store| {
    let server = store.serve(&[&["--rate-limit", "1/h", "--rate-burst", "100"], &STRICT[..]].concat());
    let policy = Some(r#""user";q=100;w=360000"#);
    let ada = server.client(&store.token("ada", &[]));
    for (number, response) in (0..).zip(responses_to_a_user(store, &ada)) {
        assert_eq!(response.header("ratelimit-policy"), policy, "{response:?}");
        assert_eq!(left(&response).0, 99 - number, "every response is counted: {response:?}");
    }
    for response in responses_to_anonymous(&server) {
        assert_eq!(response.header("ratelimit-policy"), policy, "{response:?}");
        assert_eq!(response.header("ratelimit"), None, "an unauthenticated client has no quota: {response:?}");
    }
    let before = left(&ada.get("/plants")).0;
    assert_eq!(server.client(ada.token.as_deref().expect("a token")).get("/livez").header("ratelimit"), None);
    assert_eq!(left(&ada.get("/plants")).0, before - 1, "probes do not count, with a token or without");
});

engine_test!(rejected_connection_gets_the_policy, |store: &Store| {
    let server = store.serve(&["--rate-limit", "1/h", "--max-connections", "1"]);
    let mut first = Connection::open(server.address());
    assert_eq!(first.ask("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);
    let turned_away = Connection::open(server.address()).read_response(false);
    assert_eq!(turned_away.error(), 50300);
    assert_eq!(turned_away.header("ratelimit-policy"), Some(r#""user";q=1;w=3600"#));
});

engine_test!(without_the_option_there_is_no_limit_and_no_header, &STRICT, |Garden { store, server, ada }: &Garden| {
    for response in responses_to_a_user(store, ada).into_iter().chain(responses_to_anonymous(server)) {
        assert!(response.headers.iter().all(|(name, _)| !name.contains("ratelimit")), "{response:?}");
    }
    let mut connection = ada.connect();
    for _ in 0..500 {
        assert_eq!(connection.ask(ada.bytes("GET", "/plants", &[], None)).status, 200);
    }
});

engine_test!(burst_defaults_to_the_rate, |store: &Store| {
    let token = store.token("ada", &[]);
    let policy = |server: &Server| server.client(&token).get("/plants").header("ratelimit-policy").map(str::to_owned);
    for (rate, expected) in [
        ("100/s", r#""user";q=100;w=1"#),
        ("600/m", r#""user";q=600;w=60"#),
        ("1000000/h", r#""user";q=1000000;w=3600"#),
    ] {
        assert_eq!(policy(&store.serve(&["--rate-limit", rate])).as_deref(), Some(expected), "{rate}");
    }
    let mut command = store.command(&["serve", "--listen", "127.0.0.1:0", "--no-first-token"]);
    command.env("PLANTSTORE_RATE_LIMIT", "100/s").env("PLANTSTORE_RATE_BURST", "250");
    assert_eq!(policy(&Server::start(command)).as_deref(), Some(r#""user";q=250;w=3"#));
});

sqlite_test!(invalid_rates_are_rejected_with_one_clear_line, |store: &Store| {
    for (options, words) in [
        (
            &["--rate-limit", "100"][..],
            "write a number of requests and a unit of time, for example 100/s, 600/m or 5000/h",
        ),
        (&["--rate-limit", "100/d"], "for example 100/s"),
        (&["--rate-limit", "0/s"], "the number must be from 1 to 1000000"),
        (&["--rate-limit", "1/s", "--rate-burst", "0"], "--rate-burst"),
        (&["--rate-burst", "200"], "error: --rate-burst needs a --rate-limit, for example 100/s"),
    ] {
        let errors = store.run(&[&["serve"], options].concat()).failure(2);
        assert!(errors.contains(words) && errors.lines().count() == 1, "{options:?}: {errors}");
    }
    let forms = "/s 100/ 100/S 100/sec +1/s 1.5/s 1//s １/s";
    let numbers = "1000001/s 99999999999999999999/h";
    for (rates, words) in [(forms, "for example 100/s"), (numbers, "the number must be from 1 to 1000000")] {
        for rate in rates.split(' ') {
            let errors = store.run(&["serve", "--rate-limit", rate]).failure(2);
            assert!(errors.contains(words), "{rate}: {errors}");
        }
    }
    assert!(!store.file().exists(), "a server that cannot start creates no store");
});
