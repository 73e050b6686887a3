//! Requests of `tests/corpus/requests`, mutated at random: each gets a response that is no server error, and the engines respond with
//! the same bytes to the same requests.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use rstest::rstest;

use crate::support::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, head};
use crate::support::tools::in_tests;
use crate::support::{Client, Engine, Fault, Garden, JSON, Random, TIMEOUT};

/// The limit of failed authentications would depend on time.
const OPTIONS: &[&str] = &["--log-level", "error", "--auth-failure-rate", "1000000", "--auth-failure-burst", "1000000"];
/// A second request on the connection, whose response shows that the first one is complete.
const LAST: &[u8] = b"GET /livez HTTP/1.1\r\nHost: last\r\nConnection: close\r\n\r\n";
/// Time after which a request counts as incomplete. It is longer if the engines disagree: one may have been slow.
const INCOMPLETE: Duration = Duration::from_millis(400);
const SURELY_INCOMPLETE: Duration = Duration::from_secs(20);

/// Texts that parsers treat in a special way.
const WORDS: [&str; 24] = [
    "-9223372036854775808",
    "18446744073709551616",
    "1e9",
    "-0",
    "null",
    "\\ud800",
    "%00",
    "%ff",
    "%",
    "+",
    "&owner=ada",
    "&limit=",
    "?",
    "../",
    "\0",
    "\r\n",
    "\r\n\r\n",
    "\"",
    "{",
    "é",
    "\u{202e}",
    "\r\nTransfer-Encoding: chunked",
    "\r\nContent-Length: 5",
    "\r\nAuthorization: Bearer x",
];

/// Parameters of the query, and header fields.
const PARAMETERS: [&str; 6] = ["limit", "after", "owner", "tag", "include", "%6cimit"];
const FIELDS: [&str; 14] = [
    "Accept",
    "Accept-Encoding",
    "Authorization",
    "Content-Encoding",
    "Content-Length",
    "Content-Type",
    "Expect",
    "Forwarded",
    "Host",
    "Idempotency-Key",
    "If-None-Match",
    "Origin",
    "Transfer-Encoding",
    "X-Request-Id",
];

fn corpus() -> Vec<Vec<u8>> {
    let mut files: Vec<_> =
        std::fs::read_dir(in_tests("corpus/requests")).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read_to_string(file).unwrap().replace('\n', "\r\n").into_bytes()).collect()
}

/// Changes bytes, repeats or removes a part, inserts a word, a parameter or a header field, or appends the end of another request.
fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len().max(1));
    let end = (at + 1 + random.below(12)).min(bytes.len());
    let word = WORDS[random.below(WORDS.len())];
    match random.below(8) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => drop(bytes.drain(at..end)),
        2 => {
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part.repeat(1 + random.below(40)));
        }
        3 | 4 => drop(bytes.splice(at..at, word.bytes())),
        5 => {
            let sign = if bytes.contains(&b'?') { '&' } else { '?' };
            insert_before(bytes, " HTTP/", &format!("{sign}{}={word}", PARAMETERS[random.below(PARAMETERS.len())]));
        }
        6 => insert_before(bytes, "\r\n", &format!("\r\n{}: {word}", FIELDS[random.below(FIELDS.len())])),
        _ => {
            let other = &others[random.below(others.len())];
            bytes.truncate(at);
            bytes.extend_from_slice(&other[random.below(other.len())..]);
        }
    }
}

/// Inserts a text before the first `end`, if there is one.
fn insert_before(bytes: &mut Vec<u8>, end: &str, text: &str) {
    if let Some(at) = bytes.windows(end.len()).position(|window| window == end.as_bytes()) {
        bytes.splice(at..at, text.bytes());
    }
}

/// Returns the responses without what differs between two servers, and whether the request was complete.
fn exchange(client: &Client, request: &[u8], key: &str, incomplete: Duration) -> (String, bool) {
    let request = replace(request, b"{token}", client.token.as_ref().unwrap().as_bytes());
    let request = [&replace(&request, b"{key}", key.as_bytes()), LAST].concat();
    let mut stream = TcpStream::connect(client.address).unwrap();
    stream.set_read_timeout(Some(incomplete)).unwrap();
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(&request);
    let mut received = Vec::new();
    let mut is_complete = true;
    loop {
        let mut buffer = [0; 16 * 1024];
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => received.extend_from_slice(&buffer[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) && is_complete => {
                is_complete = false;
                let _ = stream.shutdown(Shutdown::Write);
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{}", String::from_utf8_lossy(&request));
                break;
            }
        }
    }
    let differs = |line: &&str| !["date:", "x-request-id:", "etag:"].iter().any(|name| line.starts_with(name));
    let text = String::from_utf8_lossy(&received).to_lowercase();
    (text.lines().filter(differs).collect::<Vec<_>>().join("\n"), is_complete)
}

fn replace(bytes: &[u8], name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut replaced = bytes.to_vec();
    while let Some(at) = replaced.windows(name.len()).position(|window| window == name) {
        replaced.splice(at..at + name.len(), value.iter().copied());
    }
    replaced
}

#[rstest]
#[case::requires_postgres()]
fn engines_respond_alike_to_mutated_requests() {
    let gardens = [Engine::Sqlite, Engine::Postgres].map(|engine| Garden::new(engine, OPTIONS));
    let scopes = "plants:read,plants:write,plants:delete,tokens:manage,shares:manage";
    let arguments = ["--scope", scopes, "--expires", "never"];
    let clients = gardens.each_ref().map(|garden| garden.server.client(&garden.store.token("ada", &arguments)));
    let corpus = corpus();
    let fault = Fault::new("mutated request", 400);
    let (mut key, mut compared) = (0, 0);
    for _ in 0..fault.rounds {
        let mut random = fault.begin_round();
        let mut request = corpus[random.below(corpus.len())].clone();
        for _ in 0..random.below(4) {
            mutate(&mut request, &corpus, &mut random);
        }
        let about = String::from_utf8_lossy(&request);
        let send = |key: usize, incomplete: Duration| {
            clients.each_ref().map(|client| exchange(client, &request, &format!("key-{key}"), incomplete))
        };
        let clear =
            || clients.iter().for_each(|client| client.ids().into_iter().for_each(|id| drop(client.delete(id))));
        let mut exchanges = send(key, INCOMPLETE);
        if exchanges[0].1 != exchanges[1].1 {
            key += 1;
            clear();
            exchanges = send(key, SURELY_INCOMPLETE);
        }
        let [(sqlite, is_complete), (postgres, other)] = exchanges;
        assert!(![&sqlite, &postgres].iter().any(|text| text.contains("http/1.1 5")), "{about}\n{sqlite}\n{postgres}");
        assert_eq!(is_complete, other, "one engine does not respond: {about}\n{sqlite}\n{postgres}");
        if is_complete {
            compared += 1;
            assert_eq!(sqlite, postgres, "{about}");
        } else {
            // It is unknown whether the server has noticed the end of an incomplete request before the request.
            key += 1;
            clear();
        }
        fault.count(2, 2 * usize::from(sqlite.contains("http/1.1 2")));
    }
    assert_eq!(clients[0].ids(), clients[1].ids());
    assert!(compared * 4 > fault.rounds * 3, "{compared} of {} requests were complete", fault.rounds);
    for garden in &gardens {
        assert!(garden.server.ended().is_none() && garden.server.logged("\"ERROR\"") == 0, "{}", garden.server.log());
    }
}

#[test]
fn mutated_frames_do_not_harm_the_service() {
    let Garden { server, ada, .. } = &Garden::new(Engine::Sqlite, OPTIONS);
    let frames = [
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &head(ada, "POST", "/plants", &[JSON])),
        frame(DATA, END_STREAM, 1, br#"{"id":1,"name":"Rose"}"#),
        frame(HEADERS, END_HEADERS | END_STREAM, 3, &head(ada, "GET", "/plants", &[])),
    ];
    let fault = Fault::new("mutated frames of HTTP/2", 300);
    for _ in 0..fault.rounds {
        let mut random = fault.begin_round();
        let mut bytes = frames.concat();
        for _ in 0..=random.below(3) {
            mutate(&mut bytes, &frames, &mut random);
        }
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let _ = stream.write_all(&[PREFACE, &bytes].concat());
        let _ = stream.shutdown(Shutdown::Write);
        let mut received = Vec::new();
        if let Err(error) = stream.read_to_end(&mut received) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{bytes:?}");
        }
        fault.count(2, 0);
    }
    ada.plant(-1, "Fern");
    assert!(ada.ids().contains(&-1));
    assert_eq!(server.log(), "");
}
