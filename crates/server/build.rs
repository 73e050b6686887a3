//! Unpacks the files of Swagger UI that the program serves.

use std::error::Error;
use std::io::Read;
use std::path::Path;

use flate2::bufread::DeflateDecoder;
use utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED as ARCHIVE;

const FILES: [&str; 3] = ["favicon-32x32.png", "swagger-ui-bundle.js", "swagger-ui.css"];
/// Signature of the entry of a file in the directory of an archive.
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const IS_COMPRESSED: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    #[expect(clippy::disallowed_methods, reason = "set by Cargo")]
    let directory = std::env::var("OUT_DIR")?;
    for name in FILES {
        let path = Path::new(&directory).join(name);
        std::fs::write(path, unpack(&format!("/dist/{name}")).ok_or("not in the archive")??)?;
    }
    Ok(())
}

/// Returns the file whose path in the archive ends so.
fn unpack(path: &str) -> Option<std::io::Result<Vec<u8>>> {
    let is_entry = |at: &usize| {
        let entry = &ARCHIVE[*at..];
        entry.starts_with(&ENTRY)
            && entry.get(46..46 + number(entry, 28, 2)).is_some_and(|name| name.ends_with(path.as_bytes()))
    };
    let entry = &ARCHIVE[(0..ARCHIVE.len() - 46).find(is_entry)?..];
    let header = &ARCHIVE[number(entry, 42, 4)..];
    let start = 30 + number(header, 26, 2) + number(header, 28, 2);
    let mut content = &header[start..][..number(entry, 20, 4)];
    let mut unpacked = Vec::new();
    let read = match number(entry, 10, 2) {
        IS_COMPRESSED => DeflateDecoder::new(content).read_to_end(&mut unpacked),
        _ => content.read_to_end(&mut unpacked),
    };
    Some(read.map(|_| unpacked))
}

/// Reads a little-endian number.
fn number(bytes: &[u8], at: usize, size: usize) -> usize {
    bytes[at..at + size].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}
