//! Rate limits: each user has a quota of their own, and the `RateLimit` header fields are exact.

use std::thread;
use std::time::Duration;

use rstest::rstest;

use crate::support::{Answer, Client, Connection, Engine, JSON, Server, Site, assert_snapshot};

/// So slow that no request is added to the bucket while a test runs.
fn serve_with_burst(site: &Site, burst: &str) -> Server {
    site.serve(&["--rate-limit", "1/h", "--rate-burst", burst])
}

/// Remaining requests in the `RateLimit` header, and the seconds until they are restored.
#[track_caller]
fn left(answer: &Answer) -> (u64, u64) {
    let value = answer.header("ratelimit").unwrap_or_else(|| panic!("a RateLimit header in {answer:?}"));
    let parameters = value.strip_prefix("\"user\";r=").and_then(|rest| rest.split_once(";t="));
    let (left, seconds) = parameters.unwrap_or_else(|| panic!("an item with r and t, not {value}"));
    (left.parse().expect("a number"), seconds.parse().expect("seconds"))
}

fn retry_after(answer: &Answer) -> u64 {
    answer.header("retry-after").and_then(|seconds| seconds.parse().ok()).expect("whole seconds")
}

fn list_status(client: &Client) -> u16 {
    client.get("/plants").status
}

/// Responses of every kind to an authenticated user, except 429.
fn answers_to_a_user(site: &Site, ada: &Client) -> Vec<Answer> {
    let reader = Client { token: Some(site.token("ada", &["--scope", "plants:read"])), ..ada.clone() };
    let body = Some(&br#"{"id":1,"name":"Rose"}"#[..]);
    let answers = vec![
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
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), expected);
    answers
}

/// Responses of every kind to an unauthenticated client.
fn answers_to_nobody(server: &Server) -> Vec<Answer> {
    let anonymous = server.anonymous();
    let nonsense = || anonymous.call("GET", "/plants", &[("Authorization", "Bearer nonsense")], None);
    let raw = |bytes: &str| {
        let mut connection = Connection::open(server.address());
        connection.send(bytes);
        connection.answer(false)
    };
    let answers = vec![
        anonymous.get("/livez"),
        anonymous.get("/readyz"),
        anonymous.get("/plants"),
        nonsense(),
        (0..100).map(|_| nonsense()).find(|answer| answer.status == 429).expect("too many failures"),
        raw("nonsense\r\n\r\n"),
        raw("GET /livez HTTP/1.1\r\n\r\n"),
        raw(&format!("GET /livez HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000))),
        raw("GET /livez HTTP/1.1\r\nHo"),
    ];
    let expected = [200, 200, 401, 401, 429, 400, 400, 431, 408];
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), expected);
    answers
}

/// Of the second kind: some need a server that is easily angered.
const STRICT: [&str; 6] = ["--auth-failure-rate", "1", "--auth-failure-burst", "1", "--header-timeout", "1s"];

#[rstest]
fn a_burst_is_let_through_and_then_it_is_429(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let server = serve_with_burst(site, "5");
    let ada = server.client(&site.token("ada", &[]));
    for still in (0..5).rev() {
        let answer = ada.get("/plants");
        assert_eq!((answer.status, left(&answer).0), (200, still));
        assert_eq!(answer.header("ratelimit-policy"), Some(r#""user";q=5;w=18000"#));
    }
    let refused = ada.get("/plants");
    assert_eq!(refused.error(), 42900);
    let wait = retry_after(&refused);
    // What has passed since the first request is no whole second, mostly, but who knows.
    assert!((3_500..=3_600).contains(&wait), "{wait}");
    assert_eq!(left(&refused), (0, wait), "both headers speak of the same moment");
    assert_snapshot!(refused.wire().replace(&wait.to_string(), "(3600)"), @r#"
    429 Too Many Requests
    content-type: application/json
    cache-control: no-store
    retry-after: (3600)
    content-length: 103
    x-request-id: (an id)
    x-content-type-options: nosniff
    ratelimit-policy: "user";q=5;w=18000
    ratelimit: "user";r=0;t=(3600)
    date: (a date)

    {"error":42900,"message":"this user has sent too many requests, nothing was done: try again in (3600) s"}
    "#);
}

// The promise of `Retry-After`, kept in real time; its borders are tested with the code.
#[rstest]
fn whoever_waits_as_long_as_told_is_served(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let server = site.serve(&["--rate-limit", "20/m", "--rate-burst", "1"]);
    let ada = server.client(&site.token("ada", &[]));
    let mut connection = ada.connect();
    let mut list = || {
        connection.send(ada.bytes("GET", "/plants", &[], None));
        connection.answer(false)
    };
    for _ in 0..2 {
        // One is served in any case; the next comes at once, save on a machine that stands still for seconds.
        let refused = (0..10).map(|_| list()).find(|answer| answer.status == 429).expect("a refusal");
        let wait = retry_after(&refused);
        assert!((1..=3).contains(&wait), "{wait}");
        #[expect(clippy::disallowed_methods, reason = "the wait is what is tested")]
        thread::sleep(Duration::from_secs(wait));
        let answer = list();
        assert_eq!(answer.status, 200, "after {wait} s");
    }
}

#[rstest]
fn a_refused_request_has_done_nothing(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let server = serve_with_burst(site, "1");
    let unlimited = site.serve(&[]);
    let token = site.token("ada", &[]);
    let (ada, elsewhere) = (server.client(&token), unlimited.client(&token));
    elsewhere.plant(1, "Rose");
    assert_eq!(list_status(&ada), 200);
    assert_eq!(ada.post(r#"{"id":2,"name":"Fern"}"#).error(), 42900);
    assert_eq!(ada.delete(1).error(), 42900);
    assert_eq!(elsewhere.ids(), [1]);
    assert_eq!(list_status(&serve_with_burst(site, "1").client(&token)), 200, "each node counts for itself");
}

// Nothing of a request is looked at beyond whose it is.
#[rstest]
fn a_refusal_comes_before_everything_else(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let server = serve_with_burst(site, "1");
    let ada = server.client(&site.token("ada", &[]));
    assert_eq!(list_status(&ada), 200);
    let huge = [JSON, ("Content-Length", "5368709120")];
    assert_eq!(ada.call("POST", "/plants", &huge, None).error(), 42900);
    assert_eq!(ada.post("nonsense").error(), 42900);
    assert_eq!(ada.get("/plants?limit=x").error(), 42900);
    assert_eq!(ada.get("/nothing").error(), 42900);
    assert_eq!(ada.call("PUT", "/plants", &[], None).error(), 42900);
    assert_eq!(ada.call("GET", "/plants", &[("Host", "again")], None).error(), 42900);
    let reader = server.client(&site.token("ada", &["--scope", "plants:read"]));
    assert_eq!(reader.delete(1).error(), 42900);
}

#[rstest]
fn users_do_not_affect_each_other(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let server = serve_with_burst(site, "3");
    let [ada, bob] = ["ada", "bob"].map(|name| server.client(&site.token(name, &[])));
    let statuses: Vec<u16> = (0..20).map(|_| list_status(&ada)).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 3, "{statuses:?}");
    for still in (0..3).rev() {
        let answer = bob.get("/plants");
        assert_eq!((answer.status, left(&answer).0), (200, still), "bob's quota is untouched");
    }
    assert_eq!((list_status(&ada), list_status(&bob)), (429, 429));
}

#[rstest]
fn the_tokens_of_a_user_share_one_quota(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let server = serve_with_burst(site, "4");
    let clients = [0, 1].map(|_| server.client(&site.token("ada", &[])));
    for still in (0..4).rev() {
        assert_eq!(left(&clients[usize::from(still % 2 == 0)].get("/plants")).0, still);
    }
    let fresh = server.client(&site.token("ada", &[]));
    assert_eq!(clients.iter().chain([&fresh]).map(list_status).collect::<Vec<_>>(), [429, 429, 429]);
}

#[rstest]
fn requests_at_the_same_time_get_no_more_than_the_burst(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let server = serve_with_burst(site, "50");
    let ada = server.client(&site.token("ada", &[]));
    let granted: usize = thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut connection = ada.connect();
                    let statuses = (0..25).map(|_| {
                        connection.send(ada.bytes("GET", "/plants", &[], None));
                        connection.answer(false).status
                    });
                    statuses.filter(|status| *status == 200).count()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    assert_eq!(granted, 50);
}

#[rstest]
fn every_answer_tells_the_policy_and_what_is_left(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let server = site.serve(&[&["--rate-limit", "1/h", "--rate-burst", "100"], &STRICT[..]].concat());
    let policy = Some(r#""user";q=100;w=360000"#);
    let ada = server.client(&site.token("ada", &[]));
    for (number, answer) in (0..).zip(answers_to_a_user(site, &ada)) {
        assert_eq!(answer.header("ratelimit-policy"), policy, "{answer:?}");
        assert_eq!(left(&answer).0, 99 - number, "each of them counts: {answer:?}");
    }
    for answer in answers_to_nobody(&server) {
        assert_eq!(answer.header("ratelimit-policy"), policy, "{answer:?}");
        assert_eq!(answer.header("ratelimit"), None, "it belongs to no user: {answer:?}");
    }
    let before = left(&ada.get("/plants")).0;
    assert_eq!(server.client(ada.token.as_deref().expect("a token")).get("/livez").header("ratelimit"), None);
    assert_eq!(left(&ada.get("/plants")).0, before - 1, "probes do not count, with a token or without");
}

#[rstest]
fn a_connection_too_many_is_told_the_policy(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let server = site.serve(&["--rate-limit", "1/h", "--max-connections", "1"]);
    let mut first = Connection::open(server.address());
    first.send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(first.answer(false).status, 200);
    let turned_away = Connection::open(server.address()).answer(false);
    assert_eq!(turned_away.error(), 50300);
    assert_eq!(turned_away.header("ratelimit-policy"), Some(r#""user";q=1;w=3600"#));
}

#[rstest]
fn without_the_option_nothing_is_counted_or_told(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let server = site.serve(&STRICT);
    let ada = server.client(&site.token("ada", &[]));
    for answer in answers_to_a_user(site, &ada).into_iter().chain(answers_to_nobody(&server)) {
        assert!(answer.headers.iter().all(|(name, _)| !name.contains("ratelimit")), "{answer:?}");
    }
    let mut connection = ada.connect();
    for _ in 0..500 {
        connection.send(ada.bytes("GET", "/plants", &[], None));
        assert_eq!(connection.answer(false).status, 200);
    }
}

#[rstest]
fn the_burst_is_the_number_of_the_rate_unless_given(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let token = site.token("ada", &[]);
    let policy = |server: &Server| server.client(&token).get("/plants").header("ratelimit-policy").map(str::to_owned);
    for (rate, expected) in
        [("100/s", r#""user";q=100;w=1"#), ("600/m", r#""user";q=600;w=60"#), ("7/h", r#""user";q=7;w=3600"#)]
    {
        assert_eq!(policy(&site.serve(&["--rate-limit", rate])).as_deref(), Some(expected), "{rate}");
    }
    let mut command = site.command(&["serve", "--listen", "127.0.0.1:0", "--no-first-token"]);
    command.env("PLANTSTORE_RATE_LIMIT", "100/s").env("PLANTSTORE_RATE_BURST", "250");
    assert_eq!(policy(&Server::start(command)).as_deref(), Some(r#""user";q=250;w=3"#));
}

#[test]
fn wrong_rates_are_refused_in_one_clear_line() {
    let site = Site::new(Engine::Sqlite);
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
        let output = site.run(&[&["serve"], options].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {errors}");
        assert!(errors.contains(words) && errors.lines().count() == 1, "{options:?}: {errors}");
    }
    assert!(!site.file().exists(), "nothing was started");
}
