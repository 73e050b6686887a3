//! Heads of requests: id and user in the path, query, cursor, and header fields. The first line of the input is the path with its
//! query, in which a cursor `after=` at the end gets the right checksum; each other line is a header field.
#![no_main]

use hyper::Request;
use hyper::header::{HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let Ok(target) = str::from_utf8(lines.next().unwrap_or_default()) else { return };
    let mut target = target.to_owned();
    if let Some((_, cursor)) = target.rsplit_once("after=") {
        target += &format!("{:08x}", crc32fast::hash(cursor.as_bytes()));
    }
    let Ok(request) = Request::post(target).body(()) else { return };
    let mut parts = request.into_parts().0;
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let Ok(name) = HeaderName::from_bytes(&line[..colon]) else { return };
        let Ok(value) = HeaderValue::from_bytes(&line[colon + 1..]) else { return };
        parts.headers.append(name, value);
    }
    plantstore_server::fuzz_head(parts);
});
