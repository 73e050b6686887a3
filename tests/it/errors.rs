//! Errors: all layers respond with the same shape.

use std::collections::BTreeSet;

use crate::support::{Connection, Garden, Service, assert_snapshot, engine_test, wait_until};

engine_test!(unknown_path_is_rejected_with_404, |Garden { ada, .. }: &Garden| {
    assert_snapshot!(ada.get("/nothing").wire(), @r#"
    404 Not Found
    content-type: application/json
    cache-control: no-store
    content-length: 95

    {"error":40401,"message":"there is nothing at this address: /openapi.json lists what there is"}
    "#);
    for path in ["/plants/", "/plants/1/", "/tokens/", "/readyz/"] {
        assert!(ada.get(path).message().ends_with("without the slash at the end"), "{path}");
    }
    assert_eq!(ada.get("/console/nothing/").wire(), ada.get("/nothing").wire());
    for path in ["/plants/", "/plants/1/2", "/Plants", "//plants", "/plantsx", "/livez/", "/%"] {
        for method in ["GET", "POST", "DELETE", "BREW"] {
            assert_eq!(ada.call(method, path, &[], None).error(), 40401, "{method} {path}");
        }
    }
});

engine_test!(wrong_method_is_rejected_with_405_and_allow, |Garden { ada, .. }: &Garden| {
    for (path, allow) in [
        ("/plants", "GET,HEAD,POST"),
        ("/plants/1", "GET,HEAD,PUT,DELETE"),
        ("/tokens", "GET,HEAD,POST"),
        ("/me", "GET,HEAD"),
        ("/livez", "GET,HEAD"),
        ("/readyz", "GET,HEAD"),
        ("/", "GET,HEAD"),
    ] {
        let methods = ["PUT", "PATCH", "OPTIONS", "TRACE", "BREW"];
        for method in methods.into_iter().filter(|method| !allow.contains(method)) {
            let response = ada.call(method, path, &[], None);
            assert_eq!(response.error(), 40500, "{method} {path}");
            assert_eq!(response.header("allow"), Some(allow), "{method} {path}");
            let named = allow.replace(',', ", ");
            assert_eq!(response.message(), format!("this method is not allowed here: use {named}"), "{method} {path}");
        }
    }
    assert_eq!(ada.call("DELETE", "/plants", &[], None).error(), 40500);
    assert_eq!(ada.get("/nothing").header("allow"), None);
});

engine_test!(request_id_of_the_client_is_used_if_it_is_valid, |Service { store, server }: &Service| {
    let anonymous = server.anonymous();
    let id_for = |sent: &str| {
        let response = anonymous.call("GET", "/livez", &[("X-Request-Id", sent)], None);
        response.header("x-request-id").expect("an id").to_owned()
    };
    let longest = "x".repeat(128);
    for sane in ["a", "0123-abc_DEF.x:y/z+=@", longest.as_str()] {
        assert_eq!(id_for(sane), sane);
    }
    let token = format!("id-{}", store.token("ada", &[]));
    assert_ne!(id_for(&token), token, "a token is not used as request id, because that is logged");
    let too_long = "x".repeat(129);
    for odd in ["", "a b", "a\"b", "<script>", "é", "a,b", "a;b", "a\tb", too_long.as_str()] {
        let id = id_for(odd);
        assert_ne!(id, odd);
        assert!(id.len() >= 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
    let mut ids = BTreeSet::new();
    for _ in 0..50 {
        // Each id is new.
        assert!(ids.insert(anonymous.get("/plants").header("x-request-id").expect("an id").to_owned()));
    }
});

engine_test!(bytes_that_are_not_http_get_a_bare_400, |Service { store, server }: &Service| {
    let token = store.token("ada", &[]);
    for bytes in [
        "nonsense\r\n\r\n".to_owned(),
        "GET\r\n\r\n".to_owned(),
        "GET /plants\r\n\r\n".to_owned(),
        "GET /plants HTTP/1.1\r\nno colon\r\n\r\n".to_owned(),
        "GET /plants HTTP/1.1\r\nHost: x\r\nbad name: x\r\n\r\n".to_owned(),
        "GET /plants HTTP/3.0\r\nHost: x\r\n\r\n".to_owned(),
        "GET /pl ants HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1} a TLS client\r\n\r\n".to_owned(),
        format!("POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: x\r\n\r\n"),
        format!(
            "POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"
        ),
        format!("POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nTransfer-Encoding: gzip\r\n\r\n"),
    ] {
        let mut connection = Connection::open(server.address());
        let response = connection.ask(&bytes);
        assert_eq!(response.status, 400, "{bytes}");
        assert_eq!(response.header("connection"), Some("close"));
        assert!(connection.is_closed_by_server(), "{bytes}");
    }
    let mut connection = Connection::open(server.address());
    assert_snapshot!(connection.ask("nonsense\r\n\r\n").wire(), @r"
    400 Bad Request
    connection: close
    content-length: 0
    0 fields date
    0 fields x-request-id
    0 fields x-content-type-options
    ");
});

engine_test!(requests_before_malformed_http_get_their_responses_first, |Garden { ada, .. }: &Garden| {
    ada.plant(1, "Rose");
    let mut connection = ada.connect();
    let mut bytes = ada.bytes("GET", "/plants", &[], None);
    bytes.extend(ada.bytes("DELETE", "/plants/1", &[], None));
    bytes.extend(b"nonsense\r\n\r\n");
    assert_eq!(connection.ask(bytes).text(), r#"[{"name":"Rose"}]"#);
    assert_eq!(connection.read_response(false).status, 204);
    assert_eq!(connection.read_response(false).status, 400);
    assert!(connection.is_closed_by_server());
});

engine_test!(heads_are_bounded_in_size_and_number, |Garden { store, ada, .. }: &Garden| {
    let of_size = |size: usize| {
        let without = ada.bytes("GET", "/plants", &[("X-Filler", "")], None).len();
        ada.bytes("GET", "/plants", &[("X-Filler", &"x".repeat(size - without))], None)
    };
    for (size, fits) in
        [(16_000, true), (16_383, true), (16_384, true), (16_385, false), (40_000, false), (1_000_000, false)]
    {
        let mut connection = ada.connect();
        let bytes = of_size(size);
        assert_eq!(bytes.len(), size);
        let _ = connection.try_send(bytes);
        let response = connection.read_response(false);
        if fits {
            assert_eq!(response.status, 200, "{size}");
        } else {
            assert_eq!(response.status, 431, "{size}");
            assert!(connection.is_closed_by_server());
        }
    }
    let of_number = |number: usize| {
        // The request also has Host and Authorization.
        let names: Vec<String> = (2..number).map(|number| format!("X-{number}")).collect();
        let headers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
        ada.call("GET", "/plants", &headers, None)
    };
    assert_eq!(of_number(100).status, 200);
    assert_eq!(of_number(101).status, 431);
    let fewer = store.serve(&["--max-headers", "10", "--max-header-bytes", "1024"]);
    let few = fewer.client(ada.token.as_deref().expect("a token"));
    assert_eq!(few.get("/plants").status, 200);
    assert_eq!(few.call("GET", "/plants", &[("X-A", &"x".repeat(1_024))], None).status, 431);
    let nine = ["X-1", "X-2", "X-3", "X-4", "X-5", "X-6", "X-7", "X-8", "X-9"].map(|name| (name, ""));
    assert_eq!(few.call("GET", "/plants", &nine[..8], None).status, 200);
    assert_eq!(few.call("GET", "/plants", &nine, None).status, 431);
});

engine_test!(http_1_1_needs_exactly_one_host, |Service { store, server }: &Service| {
    let token = store.token("ada", &[]);
    let send = |head: &str| {
        let mut connection = Connection::open(server.address());
        connection.ask(format!("GET /plants {head}\r\n\r\n"))
    };
    let authorization = format!("Authorization: Bearer {token}");
    assert_eq!(send(&format!("HTTP/1.1\r\n{authorization}")).error(), 40007);
    assert_eq!(send(&format!("HTTP/1.1\r\nHost: a\r\nHost: b\r\n{authorization}")).error(), 40007);
    assert_eq!(send("HTTP/1.1").error(), 40100, "authentication comes first");
    assert_eq!(send(&format!("HTTP/1.0\r\n{authorization}")).text(), "[]");
    assert_eq!(send(&format!("HTTP/1.1\r\nHost: a\r\n{authorization}")).text(), "[]");
    let mut connection = Connection::open(server.address());
    assert_eq!(connection.ask("GET /livez HTTP/1.1\r\n\r\n").error(), 40007);
    let mut absolute = Connection::open(server.address());
    assert_eq!(
        absolute
            .ask(format!("GET http://example.com/plants HTTP/1.1\r\nHost: example.com\r\n{authorization}\r\n\r\n"))
            .text(),
        "[]",
        "the absolute form is understood"
    );
});

engine_test!(unusual_request_targets_are_not_found, |Service { store, server }: &Service| {
    let token = store.token("ada", &[]);
    for line in ["OPTIONS * HTTP/1.1", "CONNECT example.com:443 HTTP/1.1"] {
        for (authorization, number) in [(format!("Authorization: Bearer {token}\r\n"), 40401), (String::new(), 40100)] {
            let mut connection = Connection::open(server.address());
            assert_eq!(connection.ask(format!("{line}\r\nHost: x\r\n{authorization}\r\n")).error(), number, "{line}");
        }
    }
});

engine_test!(readiness_follows_the_store, |Service { store, server }: &Service| {
    assert_eq!(server.anonymous().get("/readyz").status, 200);
    store.execute("ALTER TABLE tokens RENAME TO gone; ALTER TABLE users RENAME TO gone_too");
    wait_until("the server to be unready", || server.anonymous().get("/readyz").status != 200);
    assert!(server.anonymous().get("/readyz").error() >= 50000);
    assert_eq!(server.anonymous().get("/livez").status, 200, "the process is still live");
});

engine_test!(probes_need_no_token, |Service { server, .. }: &Service| {
    assert_snapshot!(server.anonymous().get("/livez").wire(), @r#"
    200 OK
    content-type: application/json
    cache-control: no-store
    content-length: 17

    {"status":"live"}
    "#);
    assert_eq!(server.anonymous().get("/readyz").text(), r#"{"status":"ready"}"#);
});
