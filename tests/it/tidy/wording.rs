//! Wording of sources, scripts and documents: words and openings of doc comments that the style rules out.

use super::source::{Files, files, read};

/// Pronouns and metaphors that have a plain replacement. Concatenated, so that the test does not find this file.
const WORDS: [&str; 6] = [
    concat!("who", "ever"),
    concat!("no", "body"),
    concat!("some", "body"),
    concat!("any", "body"),
    concat!("who", "m"),
    concat!("pat", "ience"),
];

/// First words of doc comments that hide the subject: a doc comment starts with a verb or a noun phrase.
const OPENINGS: [&str; 7] = ["What", "Whether", "Whose", concat!("Who", "ever"), "How", "Where", "Who"];

/// Lines that may contain a word: the file, a part of the line, and the reason.
const ALLOWED: [(&str, &str, &str); 2] = [
    ("benches/suite/references/postgresql.py", concat!("no", "body"), "the system account that runs PostgreSQL"),
    ("tests/it/support/postgres.sh", concat!("no", "body"), "the system account that runs PostgreSQL"),
];

#[test]
fn wording_is_plain() {
    let mut all = Files::new();
    for extension in ["rs", "md", "mjs", "py", "sh"] {
        all.extend(files("", extension));
    }
    let scripts = std::fs::read_dir(super::source::root().join("scripts")).unwrap();
    let scripts = scripts.map(|entry| format!("scripts/{}", entry.unwrap().file_name().to_str().unwrap()));
    all.extend(scripts.chain([".ci/run".to_owned()]).map(|path| (path.clone(), read(&path))));
    let found: Vec<_> = all.iter().flat_map(|(path, text)| violations(path, text)).collect();
    assert!(found.is_empty(), "{} lines are not worded plainly:\n{}", found.len(), found.join("\n"));
    for (path, part, reason) in ALLOWED {
        let is_used =
            all.get(path).is_some_and(|text| text.lines().any(|line| line.contains(part) && word(line).is_some()));
        assert!(is_used, "{path} needs no exception any more: {reason}");
    }
}

fn violations(path: &str, text: &str) -> Vec<String> {
    let is_allowed = |line: &str| ALLOWED.iter().any(|(file, part, _)| *file == path && line.contains(part));
    let mut found = Vec::new();
    let mut previous = None;
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(word) = word(line).filter(|_| !is_allowed(line)) {
            found.push(format!("{path}:{number}: the word `{word}`"));
        }
        let comment = doc_comment(line);
        if let Some((marker, content)) = comment.filter(|(marker, _)| previous != Some(*marker)) {
            let first = content.split(|character: char| !character.is_alphabetic()).next().unwrap_or_default();
            if OPENINGS.contains(&first) {
                found.push(format!("{path}:{number}: `{marker} {first}` opens a doc comment"));
            }
        }
        previous = comment.map(|(marker, _)| marker);
    }
    found
}

/// Finds a ruled-out word, also as a part of an identifier.
fn word(line: &str) -> Option<&'static str> {
    let line = line.to_lowercase();
    let mut words = line.split(|character: char| !character.is_alphanumeric());
    words.find_map(|word| WORDS.into_iter().find(|known| *known == word))
}

fn doc_comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    ["///", "//!"].into_iter().find_map(|marker| Some((marker, line.strip_prefix(marker)?.trim_start())))
}

#[test]
fn odd_wording_is_found_by_line() {
    let text = format!(
        "//! Where it is.\n//! How it is.\n\n/// Somewhere.\nfn a_{}_reads() {{}}\n    /// What follows.\n// {} else\n",
        WORDS[1],
        WORDS[0].to_uppercase()
    );
    let expected = [
        "a.rs:1: `//! Where` opens a doc comment".to_owned(),
        format!("a.rs:5: the word `{}`", WORDS[1]),
        "a.rs:6: `/// What` opens a doc comment".to_owned(),
        format!("a.rs:7: the word `{}`", WORDS[0]),
    ];
    assert_eq!(violations("a.rs", &text), expected);
    assert_eq!(violations("tests/it/support/postgres.sh", WORDS[1]), [""; 0]);
}
