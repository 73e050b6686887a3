//! Rules for single files: sources, statements, the console, migrations.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};

use super::source::{Found, code_tokens, files, read, scan};
use super::workspace::{crates, source_files};

const CONSOLE: &str = "crates/server/src/web/console";
const MAX_LINES: usize = 500;

#[test]
fn files_are_short_and_start_with_their_subject() {
    for (file, text) in source_files() {
        let first = text.lines().next().unwrap_or_default();
        assert!(
            first.starts_with("//! ") && first.len() > "//! ".len(),
            "{file} does not start with a doc comment about its subject"
        );
        assert!(text.lines().count() <= MAX_LINES, "{file} has more than {MAX_LINES} lines");
        assert!(!file.ends_with("/mod.rs"), "{file}: modules are `name.rs` beside `name/`");
    }
}

#[test]
fn every_source_file_is_part_of_a_crate() {
    let files = source_files();
    let used: BTreeSet<_> =
        crates().iter().flat_map(|package| package.parsed.contents()).map(|(_, file, _)| file).collect();
    let unused: Vec<_> = files.keys().filter(|file| !used.contains(&***file) && !file.ends_with("/build.rs")).collect();
    assert!(unused.is_empty(), "these files are in no module, or only in a module for tests: {unused:?}");
}

/// `scripts/static` would do without counts of another version.
#[test]
fn counts_for_the_optimization_are_of_this_version() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/profile");
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<_> = names.collect();
    let version = concat!("x86_64-plantstore-", env!("CARGO_PKG_VERSION"), "-rustc-");
    assert!(names.len() == 1 && names[0].starts_with(version), "run scripts/profile, which replaces {names:?}");
}

/// Nodes of an earlier release must work after a later release has added a column.
#[test]
fn statements_name_their_columns() {
    let mut inserts = 0;
    for (file, text) in files("crates/store/src", "rs") {
        for found in scan(code_tokens(&file, &text)) {
            let Found::Text(text) = found else { continue };
            assert!(!selects_all(&text), "{file} does not name the columns: {text}");
            inserts += count_inserts(&text).unwrap_or_else(|| panic!("{file} does not name the columns: {text}"));
        }
    }
    assert!(inserts > 10, "the statements were not found");
}

/// Returns true if a statement has `*` in place of a list of columns. `count(*)` and comments do not count.
fn selects_all(statement: &str) -> bool {
    let statement = statement.to_ascii_lowercase().replace("/*", " ").replace("*/", " ");
    let statement = statement.replace(',', " , ").replace('*', " * ");
    let words: Vec<_> = statement.split_whitespace().collect();
    let before_all = |word: &str| {
        ["select", "returning", "distinct"].iter().any(|keyword| word.ends_with(keyword))
            || word == ","
            || word.ends_with('.')
    };
    words.windows(2).any(|pair| pair[1] == "*" && before_all(pair[0]))
}

/// Counts the inserts; `None` if one does not name its columns.
fn count_inserts(statement: &str) -> Option<usize> {
    let statement = statement.to_ascii_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    let statement = statement.replace("insert or ignore into ", "insert into ");
    let mut inserts = statement.split("insert into ").skip(1);
    let names_columns = |insert: &str| {
        let (table, rest) = insert.split_at(insert.find([' ', '(']).unwrap_or(insert.len()));
        let alias =
            rest.strip_prefix(" as ").map_or(rest, |alias| alias.trim_start_matches(|c: char| c.is_alphanumeric()));
        !table.is_empty() && alias.trim_start().starts_with('(')
    };
    inserts.try_fold(0, |count, insert| names_columns(insert).then_some(count + 1))
}

#[test]
fn statements_that_do_not_name_their_columns_are_found() {
    for statement in [
        "SELECT *",
        "select p.*, a\nFROM p",
        "INSERT INTO a (b) VALUES (1) RETURNING *",
        "(SELECT * FROM a)",
        "SELECT a,*",
    ] {
        assert!(selects_all(statement), "{statement}");
    }
    assert!(!selects_all("SELECT count(*), a * b FROM c") && !selects_all("any * text"));
    assert_eq!(count_inserts("INSERT INTO a VALUES (1)"), None);
    assert_eq!(count_inserts("INSERT INTO a AS b SELECT c"), None);
    assert_eq!(count_inserts("INSERT INTO a.b AS c (d) SELECT e"), Some(1));
    assert_eq!(count_inserts("insert into a\n (b) VALUES (1); INSERT INTO {b}(c) SELECT d"), Some(2));
}

#[test]
fn no_code_is_unfinished_and_no_test_ignored() {
    // Concatenated, so that the test does not find this file.
    let marks = [concat!("FIX", "ME"), concat!("XX", "X"), concat!("TO", "DO")];
    for (file, text) in files("", "rs") {
        let words: BTreeSet<_> = text.split(|character: char| !character.is_alphanumeric()).collect();
        for mark in marks {
            assert!(!words.contains(mark), "{file}: {mark}");
        }
        let tokens = text.parse::<TokenStream>().unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(!has_ignored_test(tokens.clone()), "{file}: a test is ignored");
        for found in scan(tokens) {
            let is_unfinished = |name: &String| matches!(&**name, "todo" | "unimplemented");
            assert!(!matches!(&found, Found::Macro(path) if path.iter().any(is_unfinished)), "{file}: {found:?}");
        }
    }
}

/// Finds `#[ignore]`, also within `cfg_attr` and macros.
fn has_ignored_test(tokens: TokenStream) -> bool {
    let mut after_hash = false;
    tokens.into_iter().any(|token| {
        let is_attribute = after_hash;
        after_hash = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '#');
        let TokenTree::Group(group) = token else { return false };
        let names_ignore = scan(group.stream()).contains(&Found::Path(vec!["ignore".to_owned()]));
        (is_attribute && names_ignore) || has_ignored_test(group.stream())
    })
}

#[test]
fn ignored_tests_are_found() {
    let ignored = |text: &str| has_ignored_test(text.parse().unwrap());
    assert!(ignored("mod a { #[test] #[ignore = \"slow\"] fn f() {} }"));
    assert!(ignored("every_engine! { #[cfg_attr(unix, ignore)] fn f() {} }"));
    assert!(!ignored("#[test] fn ignore() { let a = [ignore]; /* #[ignore] */ }"));
}

/// The console's files use nothing that its policy forbids, and every file is served.
#[test]
fn console_files_comply_with_their_policy() {
    let source = format!("{CONSOLE}.rs");
    let literals = scan(code_tokens(&source, &read(&source)));
    let mut count = 0;
    for extension in ["html", "css", "js", "svg"] {
        for (file, text) in files(CONSOLE, extension) {
            let name = file.strip_prefix(CONSOLE).unwrap().trim_start_matches('/');
            let is_served = |found: &Found| matches!(found, Found::Text(text) if text == name || *text == format!("console/{name}"));
            assert!(literals.iter().any(is_served), "{file} is not served");
            assert!(text.lines().count() <= MAX_LINES, "{file} has more than {MAX_LINES} lines");
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for forbidden in ["innerHTML", "eval(", "style=", "<style", "onclick=\"", "cookie", "http://", "https://"] {
                assert!(!text.contains(forbidden), "{file}: {forbidden}");
            }
            count += 1;
        }
    }
    assert!(count > 3, "the console's files were not found");
}

#[test]
fn every_migration_is_embedded_in_its_order() {
    let sources = files("crates/store/src", "rs");
    for engine in ["sqlite", "postgres"] {
        let directory = format!("migrations/{engine}/");
        let literals = sources.iter().flat_map(|(file, text)| scan(code_tokens(file, text)));
        let embedded: Vec<_> = literals
            .filter_map(|found| match found {
                Found::Text(text) => text.split_once(&directory).map(|(_, name)| name.to_owned()),
                _ => None,
            })
            .collect();
        let names: Vec<_> =
            files(&directory, "sql").into_keys().map(|file| file[directory.len()..].to_owned()).collect();
        assert!(!names.is_empty() && embedded == names, "{engine} embeds {embedded:?} of {names:?}");
        for (number, name) in names.iter().enumerate() {
            assert!(name.starts_with(&format!("{:04}_", number + 1)), "{name} does not have the next number");
        }
    }
}

/// The store sends each statement of a migration in its own message, and splits the file after `;` at the end of a line.
#[test]
fn migrations_of_postgres_are_split_into_single_statements() {
    for (file, text) in files("migrations/postgres", "sql") {
        for statement in text.split_inclusive(";\n") {
            let lines: Vec<_> = statement.lines().filter(|line| !line.starts_with("--") && !line.is_empty()).collect();
            let first = lines.first().copied().unwrap_or_default();
            let words = ["CREATE ", "ALTER ", "INSERT ", "UPDATE ", "DELETE "];
            assert!(words.iter().any(|word| first.starts_with(word)), "{file}: {statement}");
            assert_eq!(lines.iter().filter(|line| line.contains(';')).count(), 1, "{file}: {statement}");
            assert!(!statement.contains("$$"), "{file}: {statement}");
        }
    }
}
