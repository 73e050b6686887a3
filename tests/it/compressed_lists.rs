//! Large lists as gzip, for clients that accept it.

use std::io::Read;
use std::net::TcpStream;
use std::process::Command;
use std::time::Instant;

use flate2::read::GzDecoder;
use rstest::rstest;

use crate::support::http2::Http2;
use crate::support::tools::{external, succeed};
use crate::support::{Engine, Response, Store, engine_test, wait_for, wait_until};

const GZIP: (&str, &str) = ("Accept-Encoding", "gzip");
const VARY: &str = "Authorization, Accept-Encoding";
const NAME: &str = "a plant of this name and number ";

/// A user with this many plants; returns the token.
fn garden(store: &Store, plants: u32) -> String {
    let token = store.token("ada", &[]);
    store.insert_plants(plants, NAME);
    token
}

#[track_caller]
fn decompress(response: &Response) -> Vec<u8> {
    assert_eq!((response.status, response.header("content-encoding")), (200, Some("gzip")));
    let mut bytes = Vec::new();
    let mut decoder = GzDecoder::new(response.body.as_slice());
    decoder.read_to_end(&mut bytes).expect("gzip");
    assert!(decoder.into_inner().is_empty(), "one member, which not every client looks beyond");
    bytes
}

engine_test!(large_lists_are_compressed_for_clients_that_accept_it, |store: &Store| {
    let token = garden(store, 20_000);
    let server = store.serve(&[]);
    let ada = server.client(&token);
    for path in ["/plants", "/plants?include=id,owner", "/plants?limit=5000"] {
        let plain = ada.get(path);
        assert_eq!((plain.header("content-encoding"), plain.header("vary")), (None, Some(VARY)), "{path}");
        let compressed = ada.call("GET", path, &[GZIP], None);
        assert!(decompress(&compressed) == plain.body, "{path}: the same list");
        assert!(compressed.body.len() * 3 < plain.body.len(), "{} bytes", compressed.body.len());
        for name in ["vary", "etag", "link", "content-type", "cache-control"] {
            assert_eq!(compressed.header(name), plain.header(name), "{path}: {name}");
        }
        let over_http2 = Http2::open(&ada).call("GET", path, &[GZIP], None);
        assert!(decompress(&over_http2) == plain.body, "{path} over HTTP/2");
        for accepted in
            ["", "identity", "br", "gzip;q=0", "*;q=0", "gzip;q=0.1, identity;q=0.2", "gzip;q=2", "gzip;q=inf"]
        {
            let response = ada.call("GET", path, &[("Accept-Encoding", accepted)], None);
            assert!(response.header("content-encoding").is_none() && response.body == plain.body, "{accepted}");
        }
    }
});

engine_test!(head_and_conditional_requests_agree_with_compressed_lists, |store: &Store| {
    let token = garden(store, 5_000);
    let server = store.serve(&[]);
    let ada = server.client(&token);
    let whole = ada.call("GET", "/plants", &[GZIP], None);
    let head = ada.call("HEAD", "/plants", &[GZIP], None);
    for name in ["content-encoding", "vary", "etag", "content-type", "cache-control", "content-length"] {
        assert_eq!(head.header(name), whole.header(name), "{name}");
    }
    // The tag is weak: it stands for the list, in either coding.
    let tag = whole.header("etag").expect("a tag");
    for headers in [vec![("If-None-Match", tag)], vec![("If-None-Match", tag), GZIP]] {
        let response = ada.call("GET", "/plants", &headers, None);
        assert_eq!((response.status, response.header("vary"), response.header("etag")), (304, Some(VARY), Some(tag)));
        assert_eq!(response.header("content-encoding"), None);
    }
    ada.plant(-1, "Rose");
    assert_eq!(ada.call("GET", "/plants", &[("If-None-Match", tag), GZIP], None).status, 200);
});

engine_test!(small_lists_are_the_same_for_all_clients, |store: &Store| {
    let token = garden(store, 500);
    let server = store.serve(&[]);
    let ada = server.client(&token);
    // From the store and, where there is one, from the cache.
    for _ in 0..2 {
        let (plain, asked) = (ada.get("/plants"), ada.call("GET", "/plants", &[GZIP], None));
        assert_eq!(plain.wire(), asked.wire());
        assert_eq!(plain.header("vary"), Some("Authorization"));
    }
});

// The length would tell one owner about the plants of another.
engine_test!(lists_of_several_owners_are_not_compressed, |store: &Store| {
    let token = garden(store, 10_000);
    let server = store.serve(&[]);
    for owner in ["ben", "eve", "zoe"] {
        let client = server.client(&store.token(owner, &[]));
        (1..=200).for_each(|id| client.plant(id * 30, owner));
        store.share(owner, "ada", "reader");
    }
    let ada = server.client(&token);
    wait_until("the shares", || ada.get("/plants?owner=zoe").status.eq(&200));
    wait_until("all of them", || {
        let plain = ada.get("/plants?include=owner");
        plain.json().as_array().expect("a list").len() == 10_600
    });
    for path in ["/plants?include=id,owner", "/plants?include=id,owner&limit=9000"] {
        let plain = ada.get(path);
        for asked in [ada.call("GET", path, &[GZIP], None), Http2::open(&ada).call("GET", path, &[GZIP], None)] {
            assert_eq!((asked.header("content-encoding"), asked.header("link")), (None, plain.header("link")));
            assert!(asked.body == plain.body, "{path}");
        }
    }
    let own = "/plants?include=id,owner&owner=ada";
    assert!(decompress(&ada.call("GET", own, &[GZIP], None)) == ada.get(own).body);
});

engine_test!(a_slow_reader_holds_no_compressor, |store: &Store| {
    const READERS: usize = 30;
    let token = garden(store, 200_000);
    // Compressing until the buffers are full takes a while in a debug build.
    let server = store.serve(&["--metrics-listen", "0", "--write-timeout", "10m"]);
    let metrics = server.metrics();
    let ada = server.client(&token);
    // The first readers may also make the server start threads, each with one compressor, and memory that these have released
    // stays with the process. Of the later readers, each would need a compressor of its own.
    let mut unread: Vec<TcpStream> = Vec::new();
    let is_small = (0..8).any(|_| {
        let before = server.resident();
        unread.extend((0..READERS).map(|_| ada.unread_list(&[GZIP])));
        metrics.wait_for("plantstore_lists_streaming", &[], i64::try_from(unread.len()).unwrap());
        let opened = Instant::now();
        // A list that is still being compressed needs more memory, until the buffers of its connection are full.
        wait_for("the memory of the readers", || {
            let each = server.resident().saturating_sub(before) / READERS as u64;
            (each <= 128 || opened.elapsed().as_secs() > 10).then_some(each <= 128)
        })
    });
    assert!(is_small, "a reader holds more than 128 KiB");
});

engine_test!(a_compressed_list_that_fails_midway_is_cut, |store: &Store| {
    let token = garden(store, 200_000);
    let server = store.serve(&[]);
    let mut stream = server.client(&token).unread_list(&[GZIP]);
    store.execute("ALTER TABLE plants RENAME TO gone");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"0\r\n\r\n"), "the response has no end");
    server.wait_for_log("list response aborted");
});

#[rstest]
#[case::requires_curl(curl)]
#[case::requires_node(node)]
#[case::requires_python(python)]
fn other_clients_decompress_lists(#[case] client: fn(&str, &str) -> Command) {
    let store = Store::new(Engine::Sqlite);
    let token = garden(&store, 20_000);
    let server = store.serve(&[]);
    let plain = server.client(&token).get("/plants").body;
    let url = format!("http://{}/plants", server.address());
    let received = succeed(&mut client(&url, &token));
    assert!(received.trim_end().as_bytes() == plain, "{} of {} bytes", received.len(), plain.len());
    let line = wait_for("its line", || {
        let log = server.log();
        let lists = log.lines().filter(|line| line.contains(r#""route":"/plants""#)).collect::<Vec<_>>();
        (lists.len() == 2).then(|| lists[1].to_owned())
    });
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert!(line["bytes"].as_u64().unwrap() * 3 < plain.len() as u64, "it was sent compressed: {line}");
}

fn curl(url: &str, token: &str) -> Command {
    let mut command = external("curl");
    command.args(["--silent", "--fail", "--compressed", "--header", &format!("Authorization: Bearer {token}"), url]);
    command
}

fn node(url: &str, token: &str) -> Command {
    let program = "const [url, token] = process.argv.slice(1);
        const response = await fetch(url, { headers: { authorization: `Bearer ${token}` } });
        process.stdout.write(await response.text());";
    let mut command = external("node");
    command.args(["--input-type=module", "--eval", program, url, token]);
    command
}

fn python(url: &str, token: &str) -> Command {
    let program = "import gzip, sys, urllib.request
headers = {'Authorization': 'Bearer ' + sys.argv[2], 'Accept-Encoding': 'gzip'}
with urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers=headers)) as response:
    assert response.headers['Content-Encoding'] == 'gzip'
    sys.stdout.buffer.write(gzip.decompress(response.read()))";
    let mut command = external("python3");
    command.args(["-c", program, url, token]);
    command
}
