//! Pages, their files and the OpenAPI document as gzip, for clients that accept it.

use std::io::Read as _;

use flate2::read::GzDecoder;

use crate::support::http2::Http2;
use crate::support::{Client, Response, Service, sqlite_test};

const ADDRESSES: [&str; 9] = [
    "/openapi.json",
    "/docs",
    "/docs/",
    "/docs/page.css",
    "/docs/start.js",
    "/docs/swagger-ui.css",
    "/docs/swagger-ui-bundle.js",
    "/",
    "/console/app.js",
];

fn get(client: &Client, path: &str, accepted: &str) -> Response {
    client.call("GET", path, &[("Accept-Encoding", accepted)], None)
}

fn decompress(response: &Response) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(response.body.as_slice()).read_to_end(&mut bytes).expect("gzip");
    bytes
}

sqlite_test!(pages_and_the_document_are_sent_as_gzip_where_it_is_accepted, |Service { server, .. }: &Service| {
    let client = server.anonymous();
    let (mut plain_bytes, mut sent_bytes) = (0, 0);
    for path in ADDRESSES {
        let plain = client.get(path);
        let compressed = get(&client, path, "gzip, deflate, br");
        assert_eq!((plain.status, compressed.status), (200, 200), "{path}");
        assert_eq!(plain.header("content-encoding"), None, "{path}");
        assert_eq!(compressed.header("content-encoding"), Some("gzip"), "{path}");
        assert!(decompress(&compressed) == plain.body, "{path}: the same bytes");
        assert_eq!(compressed.header("content-type"), plain.header("content-type"), "{path}");
        for response in [&plain, &compressed] {
            assert_eq!(response.header("vary"), Some("Accept-Encoding"), "{path}");
        }
        assert_ne!(compressed.header("etag"), plain.header("etag"), "{path}: each representation has its own tag");
        let length = compressed.body.len().to_string();
        let head = client.call("HEAD", path, &[("Accept-Encoding", "gzip")], None);
        assert_eq!((head.header("content-length"), head.header("content-encoding")), (Some(&*length), Some("gzip")));
        let over_http2 = Http2::open(&client).call("GET", path, &[("Accept-Encoding", "gzip")], None);
        assert_eq!(over_http2.body, compressed.body, "{path}");
        (plain_bytes, sent_bytes) = (plain_bytes + plain.body.len(), sent_bytes + compressed.body.len());
    }
    assert!(sent_bytes * 3 < plain_bytes, "{sent_bytes} of {plain_bytes} bytes");
});

sqlite_test!(each_representation_is_revalidated_by_its_own_tag, |Service { server, .. }: &Service| {
    let client = server.anonymous();
    for path in ADDRESSES {
        let tags = ["identity", "gzip"].map(|accepted| get(&client, path, accepted).header("etag").unwrap().to_owned());
        for (accepted, tag, status) in
            [("identity", &tags[0], 304), ("gzip", &tags[1], 304), ("identity", &tags[1], 200), ("gzip", &tags[0], 200)]
        {
            let headers = [("Accept-Encoding", accepted), ("If-None-Match", tag.as_str())];
            let response = client.call("GET", path, &headers, None);
            assert_eq!(response.status, status, "{path} as {accepted} by {tag}");
            assert_eq!(response.header("vary"), Some("Accept-Encoding"), "{path}");
            assert_eq!(response.body.is_empty(), status == 304);
        }
    }
});

sqlite_test!(accept_encoding_weights_are_respected, |Service { store, server }: &Service| {
    let client = server.anonymous();
    for accepted in [
        "gzip",
        "GZIP",
        "x-gzip",
        "*",
        "br, gzip",
        "gzip;q=0.1",
        "gzip ; q=1.0",
        "*;q=0.5, br",
        "gzip;q=0.5, identity;q=0.5",
    ] {
        assert_eq!(get(&client, "/docs", accepted).header("content-encoding"), Some("gzip"), "{accepted}");
    }
    for accepted in
        ["", "identity", "br", "gzip;q=0", "gzip;q=0.000, *", "*;q=0", "gzip;q=0.5, identity", "gzipped", "gzip;q=x"]
    {
        assert_eq!(get(&client, "/docs", accepted).header("content-encoding"), None, "{accepted}");
    }
    let lines = [("Accept-Encoding", "br"), ("Accept-Encoding", "gzip")];
    // All header lines are read.
    assert_eq!(client.call("GET", "/docs", &lines, None).header("content-encoding"), Some("gzip"));
    let picture = get(&client, "/docs/favicon-32x32.png", "gzip");
    // A compressed file format is not compressed again.
    assert_eq!((picture.status, picture.header("content-encoding")), (200, None));
    let ada = server.client(&store.token("ada", &[]));
    assert_eq!(get(&ada, "/plants", "gzip").header("content-encoding"), None, "small lists are not compressed");
});
