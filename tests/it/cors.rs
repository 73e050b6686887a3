//! CORS: header fields that let scripts of other origins call the service and read its responses.

use crate::support::{
    Client, CommandOutput, Connection, Garden, JSON, Response, Server, Service, Store, assert_snapshot, engine_test,
    sqlite_test,
};

/// Options of a server that allows the first origin.
const ALLOWED: [&str; 2] = ["--cors-origin", "https://app.example"];

const ORIGIN: (&str, &str) = ("Origin", "https://app.example");
const OTHER: (&str, &str) = ("Origin", "https://evil.example");
const ASKS: (&str, &str) = ("Access-Control-Request-Method", "DELETE");

fn values<'a>(response: &'a Response, name: &str) -> Vec<&'a str> {
    response.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
}

fn has_cors_headers(response: &Response) -> bool {
    response.headers.iter().any(|(name, _)| name.starts_with("access-control-"))
}

/// Returns true if the response varies by origin.
fn varies(response: &Response) -> bool {
    values(response, "vary").contains(&"Origin")
}

/// Returns one response of each kind to requests with this header field.
fn responses(store: &Store, server: &Server, header: (&str, &str)) -> Vec<Response> {
    let ada = server.client(&store.token("ada", &[]));
    let reader = server.client(&store.token("ada", &["--scope", "plants:read"]));
    let anonymous = server.anonymous();
    let call = |client: &Client, method: &str, path: &str, body: Option<&str>| {
        client.call(method, path, &[header, JSON], body.map(str::as_bytes))
    };
    let rose = Some(r#"{"id":1,"name":"Rose"}"#);
    let nonsense = || anonymous.call("GET", "/plants", &[header, ("Authorization", "Bearer nonsense")], None);
    let responses = vec![
        call(&ada, "POST", "/plants", rose),
        call(&ada, "POST", "/plants", rose),
        call(&ada, "GET", "/plants", None),
        call(&ada, "HEAD", "/plants", None),
        call(&ada, "DELETE", "/plants/1", None),
        call(&ada, "POST", "/plants", Some("nonsense")),
        call(&reader, "POST", "/plants", rose),
        call(&ada, "DELETE", "/plants/1", None),
        call(&ada, "GET", "/nothing", None),
        call(&ada, "PUT", "/plants", None),
        call(&ada, "OPTIONS", "/plants", None),
        call(&ada, "POST", "/plants", Some(&"x".repeat(20_000))),
        call(&anonymous, "GET", "/livez", None),
        call(&anonymous, "GET", "/plants", None),
        nonsense(),
        (0..100).map(|_| nonsense()).find(|response| response.status == 429).expect("too many failures"),
        call(&ada, "GET", "/plants", None),
    ];
    let expected = [200, 409, 200, 200, 204, 400, 403, 404, 404, 405, 405, 413, 200, 401, 401, 429, 429];
    assert_eq!(responses.iter().map(|response| response.status).collect::<Vec<_>>(), expected);
    responses
}

/// Starts a server that can send all of these responses.
fn serve(store: &Store, options: &[&str]) -> Server {
    let limits = ["--auth-failure-rate", "1", "--auth-failure-burst", "1", "--rate-limit", "1/h", "--rate-burst", "12"];
    store.serve(&[&limits[..], options].concat())
}

engine_test!(listed_origin_may_read_every_response, |store: &Store| {
    let server = serve(store, &ALLOWED);
    for response in responses(store, &server, ORIGIN) {
        assert_eq!(values(&response, "access-control-allow-origin"), ["https://app.example"], "{response:?}");
        assert_eq!(
            values(&response, "access-control-expose-headers"),
            [
                "ETag, Link, Location, Idempotency-Replayed, RateLimit, RateLimit-Policy, Retry-After, WWW-Authenticate, X-Request-Id"
            ]
        );
        assert!(varies(&response), "{response:?}");
        assert_eq!(response.header("access-control-allow-credentials"), None);
    }
});

engine_test!(unlisted_origin_is_served_without_cors_headers, |store: &Store| {
    let server = serve(store, &ALLOWED);
    for response in responses(store, &server, OTHER) {
        assert!(!has_cors_headers(&response), "{response:?}");
        assert!(varies(&response), "a cache must not send it to a listed origin: {response:?}");
    }
    let ada = server.client(&store.token("bob", &[]));
    for origin in [
        "http://app.example",
        "https://app.example:8443",
        "https://app.example/",
        "https://APP.example",
        "https://sub.app.example",
        "https://app.example.evil.example",
        "https://app.exampl",
        "null",
        "*",
        "",
        "https://app.example, https://app.example",
    ] {
        let response = ada.call("HEAD", "/livez", &[("Origin", origin)], None);
        assert!(response.status == 200 && !has_cors_headers(&response) && varies(&response), "{origin}: {response:?}");
    }
    let twice = ada.call("GET", "/livez", &[ORIGIN, OTHER], None);
    assert!(!has_cors_headers(&twice), "{twice:?}");
    let without_origin = ada.get("/livez");
    assert!(!has_cors_headers(&without_origin) && varies(&without_origin), "{without_origin:?}");
});

engine_test!(other_vary_fields_are_preserved, &ALLOWED, |Garden { ada, .. }: &Garden| {
    for header in [ORIGIN, OTHER] {
        assert_eq!(values(&ada.call("GET", "/plants", &[header], None), "vary"), ["Authorization", "Origin"]);
    }
});

engine_test!(a_preflight_needs_no_token, &ALLOWED, |Service { server, .. }: &Service| {
    let anonymous = server.anonymous();
    let asks = [ORIGIN, ASKS, ("Access-Control-Request-Headers", "authorization")];
    let response = anonymous.call("OPTIONS", "/plants/1", &asks, None);
    assert_snapshot!(response.wire(), @r"
    204 No Content
    access-control-allow-methods: GET, HEAD, POST, PUT, DELETE
    access-control-allow-headers: Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID, Traceparent, Tracestate, X-Request-Id
    access-control-max-age: 7200
    vary: Origin
    access-control-allow-origin: https://app.example
    access-control-expose-headers: ETag, Link, Location, Idempotency-Replayed, RateLimit, RateLimit-Policy, Retry-After, WWW-Authenticate, X-Request-Id
    ");
});

engine_test!(preflights_reveal_nothing_about_resources, &ALLOWED, |Service { store, server }: &Service| {
    let ada = server.client(&store.token("ada", &[]));
    ada.plant(1, "Rose");
    let anonymous = server.anonymous();
    let expected = anonymous.call("OPTIONS", "/plants", &[ORIGIN, ASKS], None).wire();
    for path in
        ["/plants/1", "/plants/2", "/plants/abc", "/plants?limit=x", "/", "/nothing", "/livez", "/readyz", "/%", "*"]
    {
        for method in ["GET", "HEAD", "POST", "DELETE", "PUT", "nonsense"] {
            for client in [&anonymous, &ada] {
                let asks = [("Access-Control-Request-Method", method), ("Access-Control-Request-Headers", "x-any")];
                let response = client.call("OPTIONS", path, &[ORIGIN, asks[0], asks[1]], None);
                assert_eq!(response.wire(), expected, "{path} {method}");
            }
        }
    }
    let with_body = anonymous.call("OPTIONS", "/plants", &[ORIGIN, ASKS], Some(b"a body that is not read"));
    assert_eq!(with_body.wire(), expected);
});

engine_test!(preflight_of_an_unlisted_origin_is_an_ordinary_request, |store: &Store| {
    let listed = store.serve(&ALLOWED);
    let off = store.serve(&[]);
    let token = store.token("ada", &[]);
    for (server, headers) in [
        (&listed, &[OTHER, ASKS][..]),
        (&listed, &[ASKS]),
        (&listed, &[ORIGIN]),
        (&listed, &[ORIGIN, OTHER, ASKS]),
        (&off, &[ORIGIN, ASKS]),
    ] {
        let preflight = |client: &Client| client.call("OPTIONS", "/plants", headers, None);
        assert_eq!(preflight(&server.anonymous()).error(), 40100, "{headers:?}");
        let known = preflight(&server.client(&token));
        assert_eq!((known.error(), known.header("allow")), (40500, Some("GET,HEAD,POST")), "{headers:?}");
    }
    let get = listed.anonymous().call("GET", "/plants", &[ORIGIN, ASKS], None);
    assert_eq!(get.error(), 40100, "only OPTIONS is a preflight");
    let mut connection = Connection::open(listed.address());
    connection
        .send("OPTIONS /plants HTTP/1.1\r\nOrigin: https://app.example\r\nAccess-Control-Request-Method: GET\r\n\r\n");
    assert_eq!(connection.read_response(false).error(), 40007, "HTTP/1.1 requires a Host in every request");
});

engine_test!(preflights_do_not_count_against_rate_limits, |store: &Store| {
    let server = store.serve(&["--cors-origin", "https://app.example", "--rate-limit", "1/h", "--rate-burst", "2"]);
    let ada = server.client(&store.token("ada", &[]));
    for _ in 0..5 {
        let preflight = ada.call("OPTIONS", "/plants", &[ORIGIN, ASKS], None);
        assert_eq!(preflight.status, 204);
        assert_eq!(preflight.header("ratelimit-policy"), Some(r#""user";q=2;w=7200"#));
        assert_eq!(preflight.header("ratelimit"), None);
    }
    assert_eq!(ada.get("/plants").status, 200);
    let second = ada.call("GET", "/plants", &[ORIGIN], None);
    let third = ada.call("GET", "/plants", &[ORIGIN], None);
    assert_eq!((second.status, third.status), (200, 429));
    assert!(third.header("retry-after").is_some() && third.header("access-control-allow-origin").is_some());
});

engine_test!(wildcard_lets_every_origin_read_every_response, |store: &Store| {
    let server = serve(store, &["--cors-origin", "*"]);
    for response in responses(store, &server, OTHER) {
        assert_eq!(values(&response, "access-control-allow-origin"), ["*"], "{response:?}");
        assert!(response.header("access-control-expose-headers").is_some_and(|names| names.contains("Retry-After")));
        assert!(!varies(&response), "{response:?}");
    }
    let anonymous = server.anonymous();
    let unnamed = anonymous.get("/livez");
    assert_eq!(values(&unnamed, "access-control-allow-origin"), ["*"], "a cache may send it to any page");
    for origin in [OTHER, ("Origin", "null")] {
        let preflight = anonymous.call("OPTIONS", "/plants", &[origin, ASKS], None);
        assert_eq!((preflight.status, values(&preflight, "access-control-allow-origin")), (204, vec!["*"]));
    }
    // Without an origin it is not a preflight.
    assert_eq!(anonymous.call("OPTIONS", "/plants", &[ASKS], None).error(), 40100);
});

engine_test!(several_origins_may_be_listed, |store: &Store| {
    let mut command = store.command(&["serve", "--listen", "127.0.0.1:0", "--no-first-token"]);
    command.env("PLANTSTORE_CORS_ORIGIN", "https://app.example, http://localhost:3000");
    let by_variable = Server::start(command);
    let further = ["--cors-origin", "http://[::1]:3000,http://localhost:3000"];
    let by_options = store.serve(&[ALLOWED, further].concat());
    for server in [&by_variable, &by_options] {
        for origin in ["https://app.example", "http://localhost:3000"] {
            let response = server.anonymous().call("GET", "/livez", &[("Origin", origin)], None);
            assert_eq!(response.header("access-control-allow-origin"), Some(origin));
            let preflight = server.anonymous().call("OPTIONS", "/plants", &[("Origin", origin), ASKS], None);
            assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (204, Some(origin)));
        }
    }
});

engine_test!(responses_are_unchanged_without_the_option, |store: &Store| {
    let server = serve(store, &[]);
    for response in responses(store, &server, ORIGIN) {
        assert!(!has_cors_headers(&response) && !varies(&response), "{response:?}");
    }
    let anonymous = server.anonymous();
    for path in ["/livez", "/plants"] {
        assert_eq!(anonymous.call("GET", path, &[ORIGIN], None).wire(), anonymous.get(path).wire());
    }
});

sqlite_test!(invalid_origins_are_rejected_with_one_clear_line, |store: &Store| {
    for (options, words) in [
        (
            &["--cors-origin", "https://app.example/"][..],
            "`https://app.example/`: an origin ends with its host or port: leave out the slash",
        ),
        (
            &["--cors-origin", "https://app.example,app.example"],
            "`app.example`: write scheme://host or scheme://host:port, for example https://",
        ),
        (&["--cors-origin", "https://app.example", "--cors-origin", "*"], "`*` stands for every origin: list it alone"),
        (&["--cors-origin", "*,*"], "list it alone"),
        (&["--cors-origin", ""], "write scheme://host"),
    ] {
        let errors = store.run(&[&["serve"], options].concat()).failure(2);
        assert!(errors.starts_with("error: ") && errors.contains(words), "{options:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    let rejected = [
        ("write scheme://host", "null //app.example localhost:3000"),
        ("starts with http:// or https://", "ftp://app.example file:// ://app.example"),
        ("leave out the slash", "https://app.example/app https://app.example?x https://app.example#x"),
        ("write it in lower case", "https://App.example HTTPS://app.example"),
        ("write the host in ASCII", "https://bücher.example"),
        (
            "not a host as browsers send it",
            "https:// https://*.example https://user@app.example https://app..example https://app.example. https://a\tb \
             https://::1 https://[::1 https://[0:0::1] https://[::ffff:1.2.3.4] https://[app.example] https://127.1 \
             https://1.2.3.04 https://1.2.3.0x4 https://:8443",
        ),
        (
            "a port is a number from 1 to 65535",
            "https://app.example: https://app.example:0 https://app.example:08443 https://app.example:+1 \
             https://app.example:65536",
        ),
        ("leave out the port", "https://app.example:443 http://[::1]:80"),
    ];
    for (words, origins) in rejected {
        for origin in origins.split(' ') {
            let errors = store.run(&["serve", "--cors-origin", origin]).failure(2);
            assert!(errors.contains(words), "{origin}: {errors}");
        }
    }
    assert!(!store.file().exists(), "the server creates no store");
});

sqlite_test!(origins_in_the_form_of_browsers_are_accepted, |store: &Store| {
    let origins = "https://app.example http://localhost:3000 https://a-b.c_d.xn--bcher-kva.example:8443 \
        http://127.0.0.1:8080 http://[::1]:8080 https://[2001:db8::1] http://localhost:443 https://7zip.example \
        https://example.3com";
    let server = store.serve(&["--cors-origin", &origins.replace(' ', ",")]);
    for origin in origins.split(' ') {
        let response = server.anonymous().call("GET", "/livez", &[("Origin", origin)], None);
        assert_eq!(response.header("access-control-allow-origin"), Some(origin));
    }
});
