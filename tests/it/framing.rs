//! Header fields that frame a request: body length, host and encoding.

use crate::support::http2::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, RST_STREAM, field, head};
use crate::support::{Client, Connection, Garden, JSON, Response, Service, Store, engine_test};

/// The largest length that 64 bits can hold.
const LARGEST: &str = "18446744073709551615";
/// HTTP/2 error code for a malformed request.
const PROTOCOL_ERROR: u32 = 1;

/// Sends a create with these header lines and body bytes; returns the connection and the response.
#[track_caller]
fn create(client: &Client, headers: &[(&str, &str)], body: &str) -> (Connection, Response) {
    let mut connection = client.connect();
    let mut bytes = client.bytes("POST", "/plants", &[&[JSON], headers].concat(), None);
    bytes.extend_from_slice(body.as_bytes());
    let response = connection.ask(bytes);
    (connection, response)
}

engine_test!(largest_content_length_is_rejected_with_413, |Garden { ada, .. }: &Garden| {
    for length in ["18446744073709551613", "9223372036854775808"] {
        for body in ["", r#"{"id":1,"name":"Rose"}"#] {
            let (mut connection, response) = create(ada, &[("Content-Length", length)], body);
            assert_eq!(response.error(), 41300, "{length}: {}", response.text());
            assert_eq!(response.header("connection"), Some("close"), "{length}");
            assert!(connection.is_closed_by_server(), "{length}");
        }
    }
    let (mut connection, response) = create(ada, &[("Content-Length", LARGEST)], "");
    assert_eq!((response.status, response.text()), (431, ""), "the library cannot count that far");
    assert!(connection.is_closed_by_server());
    assert_eq!(ada.ids(), [0_i64; 0]);
});

engine_test!(large_content_length_is_rejected_with_413_over_http2, |Garden { server, ada, .. }: &Garden| {
    let mut connection = Frames::open(server.address(), &[]);
    let announce = |length| head(ada, "POST", "/plants", &[JSON, ("content-length", length)]);
    connection.send(HEADERS, END_HEADERS, 1, &announce("9999999999999999999"));
    assert!(connection.body(1).contains("41300"));
    // The library rejects more digits as malformed and resets the stream.
    connection.send(HEADERS, END_HEADERS, 3, &announce(LARGEST));
    let reset = std::iter::repeat_with(|| connection.next_of(RST_STREAM)).find(|reset| reset.stream == 3).unwrap();
    assert_eq!(reset.reason(), PROTOCOL_ERROR);
    connection.send(HEADERS, END_HEADERS | END_STREAM, 5, &head(ada, "GET", "/plants", &[]));
    assert_eq!(connection.body(5), "[]", "the connection stays usable");
});

engine_test!(malformed_host_is_rejected_with_400, |Service { store, server }: &Service| {
    let token = store.token("ada", &[]);
    let ask = |path: &str, host: &str| {
        let mut connection = Connection::open(server.address());
        connection.ask(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"))
    };
    let malformed =
        ["a b", "a/b", "a\tb", "user@a", "a:b", "a:80:90", "a?b", "a#b", "a\\b", "<a>", "é", "[::1", "::1", "[a b]"];
    for host in malformed {
        for path in ["/plants", "/livez", "/nothing"] {
            let response = ask(path, host);
            assert_eq!(response.error(), 40007, "{path} of {host:?}");
            assert!(response.message().contains("`Host`"), "{}", response.message());
        }
    }
    let well_formed = [
        "a",
        "a.example",
        "a:8080",
        "a:",
        "",
        "127.0.0.1:80",
        "[::1]",
        "[2001:db8::1]:8080",
        "a_b-c.example",
        "a%20b",
        "xn--bcher-kva.example",
    ];
    for host in well_formed {
        assert_eq!(ask("/plants", host).text(), "[]", "{host:?}");
    }
});

engine_test!(malformed_host_is_rejected_with_400_over_http2, |Service { store, server }: &Service| {
    let bearer = format!("Bearer {}", store.token("ada", &[]));
    let mut connection = Frames::open(server.address(), &[]);
    let mut stream = 1;
    for (host, expected) in [("a b", "40007"), ("a@b", "40007"), ("a:8080", "[]")] {
        let fields =
            [(":method", "GET"), (":scheme", "http"), (":path", "/plants"), ("host", host), ("authorization", &bearer)];
        let block: Vec<u8> = fields.into_iter().flat_map(|(name, value)| field(name, value)).collect();
        connection.send(HEADERS, END_HEADERS | END_STREAM, stream, &block);
        assert!(connection.body(stream).contains(expected), "{host}");
        stream += 2;
    }
});

engine_test!(every_content_encoding_line_counts, |Garden { ada, .. }: &Garden| {
    let encoded: [&[&str]; 6] = [
        &["gzip"],
        &["identity", "gzip"],
        &["gzip", "identity"],
        &["identity, gzip"],
        &["identity", "identity", "br"],
        &[""],
    ];
    for lines in encoded {
        let headers: Vec<_> = [JSON].into_iter().chain(lines.iter().map(|line| ("Content-Encoding", *line))).collect();
        let response = ada.call("POST", "/plants", &headers, Some(br#"{"id":1,"name":"Rose"}"#));
        assert_eq!(response.error(), 41500, "{lines:?}");
    }
    let plain: [&[&str]; 4] = [&["identity"], &["Identity"], &["identity", "identity"], &["identity, IDENTITY"]];
    for (id, lines) in plain.into_iter().enumerate() {
        let headers: Vec<_> = [JSON].into_iter().chain(lines.iter().map(|line| ("Content-Encoding", *line))).collect();
        let body = format!(r#"{{"id":{id},"name":"Rose"}}"#);
        assert_eq!(ada.call("POST", "/plants", &headers, Some(body.as_bytes())).status, 200, "{lines:?}");
    }
});

engine_test!(every_content_encoding_line_counts_over_http2, |Garden { server, ada, .. }: &Garden| {
    let mut connection = Frames::open(server.address(), &[]);
    let encodings = [("content-encoding", "identity"), ("content-encoding", "gzip")];
    connection.send(HEADERS, END_HEADERS, 1, &head(ada, "POST", "/plants", &[&[JSON], &encodings[..]].concat()));
    connection.send(DATA, END_STREAM, 1, br#"{"id":1,"name":"Rose"}"#);
    assert!(connection.body(1).contains("41500"));
});

engine_test!(transfer_encoding_other_than_chunked_is_rejected_and_the_connection_closed, |store: &Store| {
    let server = store.serve(&[]);
    let ada = server.client(&store.token("ada", &[]));
    let body = "16\r\n{\"id\":1,\"name\":\"Rose\"}\r\n0\r\n\r\n";
    let rejected: [&[&str]; 8] = [
        &["gzip, chunked"],
        &["chunked, chunked"],
        &["gzip", "chunked"],
        &["chunked", "chunked"],
        &["identity, chunked"],
        &["gzip,chunked"],
        &["chunked;q=1, chunked"],
        &["gzip"],
    ];
    for lines in rejected {
        let headers: Vec<_> = lines.iter().map(|line| ("Transfer-Encoding", *line)).collect();
        let (mut connection, response) = create(&ada, &headers, body);
        // The library itself rejects a last coding that is not `chunked`.
        assert!(response.status == 400 && (lines == ["gzip"] || response.error() == 40007), "{lines:?}");
        assert_eq!(response.header("connection"), Some("close"), "{lines:?}");
        assert!(connection.is_closed_by_server(), "{lines:?}");
    }
    let without_token = server.anonymous().call("GET", "/livez", &[("Transfer-Encoding", "gzip, chunked")], None);
    assert_eq!(without_token.error(), 40007);
    assert_eq!(ada.ids(), [0_i64; 0]);
    for (id, coding) in ["chunked", "Chunked", " CHUNKED "].into_iter().enumerate() {
        let body = format!("16\r\n{{\"id\":{id},\"name\":\"Rose\"}}\r\n0\r\n\r\n");
        let (mut connection, response) = create(&ada, &[("Transfer-Encoding", coding)], &body);
        assert_eq!(response.status, 200, "{coding}");
        // The connection stays usable.
        assert_eq!(connection.ask(ada.bytes("GET", "/plants?limit=0", &[], None)).text(), "[]");
    }
});

engine_test!(if_match_on_delete_is_ignored_as_documented, |Garden { server, ada, .. }: &Garden| {
    let documented = server.anonymous().get("/openapi.json").json();
    let description = documented["paths"]["/plants/{id}"]["delete"]["description"].as_str().unwrap().to_owned();
    assert!(description.contains("`If-Match`") && description.contains("ignored"), "{description}");
    for (id, tag) in [r#""cannot-match""#, r#"W/"cannot-match""#, "*", ""].into_iter().enumerate() {
        ada.plant(i64::try_from(id).unwrap(), "Rose");
        assert_eq!(ada.call("DELETE", &format!("/plants/{id}"), &[("If-Match", tag)], None).status, 204, "{tag}");
    }
    assert_eq!(ada.call("DELETE", "/plants/1", &[("If-Match", "*")], None).error(), 40400);
});
