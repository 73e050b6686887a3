//! The rules of the house that a machine can check: who may know whom, and what may stand where.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(directory: &str, ending: &str) -> Vec<(String, String)> {
    fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut paths = Vec::new();
    walk(&root().join(directory), &mut paths);
    paths.sort();
    let relative = |path: &Path| path.strip_prefix(root()).unwrap().display().to_string();
    let ending = std::ffi::OsStr::new(ending);
    paths.iter().filter(|path| path.extension() == Some(ending)).map(|path| (relative(path), read(path))).collect()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

/// The part of a source file that is compiled into the service, without comments.
fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]").unwrap_or(text.len());
    let lines = text[..end].lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The source files of the program and its crates.
fn sources() -> Vec<(String, String)> {
    let mut sources = files("src", "rs");
    sources.extend(files("crates", "rs"));
    sources
}

#[test]
fn things_stand_where_they_belong() {
    // What, and where alone it may stand.
    let rules: &[(&[&str], &str)] = &[
        (
            &["SELECT ", "INSERT INTO", "UPDATE ", "DELETE FROM", "PRAGMA ", "rusqlite", "tokio_postgres"],
            "crates/store/",
        ),
        (&["rustls"], "crates/client/ crates/store/ crates/server/src/tls.rs"),
        (&["h2::"], "crates/server/src/http2"),
        (&["StatusCode", "axum::"], "crates/server/ crates/client/"),
        (&["hyper::"], "crates/server/ crates/client/ crates/check/src/client.rs"),
        (&["println!", "print!(", "stdout()", "stdin()", "std::env"], "src/cli"),
        (&["anyhow"], "src/cli"),
        (&["utoipa"], "crates/server/"),
        (&["use ring", "base64"], "crates/server/src/oidc/ crates/client/src/trust.rs"),
        (&["process::exit"], "src/cli crates/store/src/sqlite/fault.rs crates/store/src/postgres/writer.rs"),
        (&["stderr()"], "src/cli crates/telemetry/src/logging.rs"),
        (
            &["getrandom"],
            "crates/model/src/token.rs crates/store/src/new_file.rs crates/server/src/context.rs crates/server/src/traces/id.rs crates/store/src/postgres crates/check/src/cleanup.rs",
        ),
        (&["fn into_response", "StatusCode::BAD_REQUEST"], "crates/server/src/error.rs"),
    ];
    for (file, text) in sources() {
        let code = code(&text);
        for (words, places) in rules {
            if places.split(' ').any(|place| file.starts_with(place)) {
                continue;
            }
            for word in *words {
                assert!(!code.contains(word), "{file}: `{word}` belongs into {places}");
            }
        }
    }
}

/// A node of an earlier release works beside a later one that has added a column: nobody asks for all of them.
#[test]
fn statements_name_their_columns() {
    for (file, text) in files("crates/store", "rs") {
        let code = code(&text);
        assert!(!code.contains("SELECT *") && !code.contains("RETURNING *"), "{file} names the columns");
        for insert in code.split("INSERT INTO ").skip(1) {
            let table_and_columns = insert.split(['\n', ')']).next().unwrap();
            assert!(table_and_columns.contains('('), "{file}: INSERT INTO {table_and_columns}");
        }
    }
}

#[test]
fn nothing_is_unfinished_or_skipped() {
    // Put together, so that this file does not find itself.
    let marks = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("#[ig", "nore"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
    ];
    for (file, text) in sources().into_iter().chain(files("tests", "rs")) {
        for mark in marks {
            assert!(!text.contains(mark), "{file}: {mark}");
        }
    }
}

#[test]
fn files_have_one_subject() {
    for (file, text) in sources() {
        assert!(text.starts_with("//! "), "{file} says what it is about");
        assert!(text.lines().count() <= 500, "{file} has more than 500 lines");
        assert!(!file.ends_with("/mod.rs"), "{file}: modules are `name.rs` beside `name/`");
    }
}

/// What the console's policy forbids never works: it is not even written. And a file that is not served is not there.
#[test]
fn the_console_is_what_its_policy_allows() {
    let served = read(root().join("crates/server/src/console.rs"));
    for ending in ["html", "css", "js", "svg"] {
        for (file, text) in files("crates/server/src/console", ending) {
            let name = file.rsplit('/').next().unwrap();
            let included = [format!("asset!(\"{name}\""), format!("include_str!(\"console/{name}\")")];
            assert!(included.iter().any(|included| served.contains(included)), "{file} is not served");
            assert!(text.lines().count() <= 500, "{file} has more than 500 lines");
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for forbidden in ["innerHTML", "eval(", "style=", "<style", "onclick=\"", "cookie", "http://", "https://"] {
                assert!(!text.contains(forbidden), "{file}: {forbidden}");
            }
        }
    }
}

#[test]
fn every_migration_is_embedded_in_its_order() {
    for engine in ["sqlite", "postgres"] {
        let schema = read(root().join(format!("crates/store/src/{engine}/schema.rs")));
        let mut last = 0;
        for (number, (file, _)) in files(&format!("migrations/{engine}"), "sql").iter().enumerate() {
            let name = file.rsplit('/').next().unwrap();
            assert!(name.starts_with(&format!("{:04}_", number + 1)), "{name} is numbered without a gap");
            let at = schema.find(name).unwrap_or_else(|| panic!("{name} is not embedded"));
            assert!(at > last, "{name} is out of order");
            last = at;
        }
    }
}

/// The numbers in the code, in the documentation, and those that some test expects.
#[test]
fn every_error_number_is_documented_and_tested() {
    let numbers = |text: &str| -> BTreeSet<u32> {
        let digits = text.split(|character: char| !character.is_ascii_digit());
        digits
            .filter(|word| word.len() == 5)
            .filter_map(|word| word.parse().ok())
            .filter(|n| (40_000..60_000).contains(n))
            .collect()
    };
    let source = code(&read(root().join("crates/server/src/error.rs")));
    let given = numbers(&source);
    let documented = numbers(&read(root().join("docs/errors.md")));
    assert!(given.is_subset(&documented), "undocumented: {:?}", given.difference(&documented));
    let tests: String = files("tests/it", "rs")
        .into_iter()
        .filter(|(file, _)| !file.ends_with("tidy.rs"))
        .map(|(_, text)| text)
        .collect();
    let expected = numbers(&tests);
    let untested: BTreeSet<_> = given.difference(&expected).collect();
    assert!(untested.is_empty(), "no test expects {untested:?}");
}

#[test]
fn every_option_is_in_the_readme() {
    let readme = read(root().join("README.md"));
    let commands: String = files("src/cli", "rs").into_iter().map(|(_, text)| text).collect();
    for variable in commands.split('"').filter(|word| word.starts_with("PLANTSTORE_")) {
        let option = format!("--{}", variable.trim_start_matches("PLANTSTORE_").replace('_', "-").to_lowercase());
        assert!(readme.contains(&option), "{option} is not in the README");
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    let documents = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "docs/check.md",
        "docs/console.md",
        "docs/data.md",
        "docs/errors.md",
        "docs/limits-and-browsers.md",
        "docs/monitoring.md",
        "docs/openid-connect.md",
        "docs/operations.md",
        "docs/paging.md",
        "docs/rereads.md",
        "docs/sharing.md",
        "docs/scaling.md",
        "docs/postgresql.md",
        "docs/retries.md",
        "docs/tls.md",
    ];
    for document in documents {
        let text = read(root().join(document));
        let directory = root().join(document).parent().unwrap().to_owned();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let pictures = ["src=\"", "srcset=\""].into_iter().flat_map(|name| text.split(name).skip(1));
        for target in links.chain(pictures.filter_map(|rest| rest.split('"').next())) {
            let path = target.split('#').next().unwrap();
            assert!(path.is_empty() || directory.join(path).exists(), "{document} links to {target}");
        }
    }
}
