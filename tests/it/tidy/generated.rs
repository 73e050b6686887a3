//! Parts of documents that are generated from the code. `scripts/reference` rewrites them; the tests compare them.

use std::fs;

use super::source::{read, root};

const END: &str = "<!-- end of generated text -->";

/// Compares the generated text of this name in a document, or rewrites it if `scripts/reference` runs the tests.
pub(super) fn check(document: &str, name: &str, expected: &str) {
    let text = read(document);
    let (before, found, after) = parts(&text, name).unwrap_or_else(|| panic!("{document} has no text named {name}"));
    let expected = format!("\n{}\n\n", expected.trim());
    #[expect(clippy::disallowed_methods, reason = "set by a script; no option of the program")]
    let rewrite = std::env::var_os("REWRITE_GENERATED").is_some();
    if rewrite {
        fs::write(root().join(document), [before, &expected, after].concat()).unwrap();
        return;
    }
    let differs = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{document} is out of date: run scripts/reference; the first difference is {differs:#?}"
    );
}

/// Splits a document into the text up to the opening marker, the generated text, and the rest.
fn parts<'a>(text: &'a str, name: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let marker = format!("<!-- generated: {name} -->\n");
    let begin = text.find(&marker)? + marker.len();
    let end = begin + text[begin..].find(END)?;
    Some((&text[..begin], &text[begin..end], &text[end..]))
}

#[test]
fn generated_text_is_found_by_its_name() {
    let text = "a\n<!-- generated: x -->\n\nb\n<!-- end of generated text -->\nc";
    assert_eq!(parts(text, "x"), Some(("a\n<!-- generated: x -->\n", "\nb\n", "<!-- end of generated text -->\nc")));
    assert_eq!(parts(text, "y"), None);
}
