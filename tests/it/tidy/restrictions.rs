//! Code that only some files may contain: the architecture's rules about SQL, status codes, printing and crates.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::modules::{Crate, Target};
use super::source::{Found, code_tokens, scan};
use super::workspace::{crates, source_files};

/// Restricted code, and the only files that may contain it. `a/b` stands for `a/b.rs` and all files below `a/b/`.
const RULES: &[(Restricted, &[&str])] = &[
    (Restricted::Sql, &["crates/store"]),
    (Restricted::Path("rusqlite"), &["crates/store"]),
    (Restricted::Path("tokio_postgres"), &["crates/store"]),
    // Other modules may pass the type on and record it, but only `api` chooses the status of a response. Issuers and
    // collectors respond with statuses, too.
    (
        Restricted::Name("StatusCode"),
        &["crates/server/src/api", "crates/server/src/observe", "crates/server/src/auth/oidc/issuer", "crates/client"],
    ),
    (
        Restricted::Member("StatusCode"),
        &["crates/server/src/api", "crates/server/src/auth/oidc/issuer", "crates/server/src/observe/traces/export"],
    ),
    // Metrics have labels for statuses, and clients receive them.
    (
        Restricted::StatusNumber,
        &["crates/server/src/api", "crates/server/src/observe/metrics", "crates/check", "src/cli/remote"],
    ),
    (Restricted::Sequence(&["fn", "into_response"]), &["crates/server/src/api/error"]),
    (Restricted::Path("axum"), &["crates/server"]),
    (Restricted::Path("utoipa"), &["crates/model", "crates/server/src/api"]),
    (Restricted::Path("h2"), &["crates/server/src/transport/http2"]),
    (Restricted::Path("rustls"), &["crates/client", "crates/store/src/postgres", "crates/server/src/transport/tls"]),
    (Restricted::Path("ring"), &["crates/server/src/auth/oidc"]),
    (Restricted::Path("base64"), &["crates/server/src/auth/oidc"]),
    (
        Restricted::Path("getrandom"),
        &[
            "crates/model/src/token",
            "crates/store",
            "crates/server/src/observe",
            "crates/check/src/cleanup_tracker",
            "src/cli/remote",
        ],
    ),
    (Restricted::Path("anyhow"), &["src"]),
    (Restricted::Path("std::env"), &["src"]),
    // These macros panic if standard output or error is closed.
    (Restricted::Macro("print"), &[]),
    (Restricted::Macro("println"), &[]),
    (Restricted::Macro("eprint"), &[]),
    (Restricted::Macro("eprintln"), &[]),
    (Restricted::Macro("dbg"), &[]),
    (Restricted::Path("std::io::stdin"), &["src"]),
    (Restricted::Path("std::io::stdout"), &["src"]),
    (Restricted::Path("std::io::stderr"), &["src", "crates/telemetry/src/logging"]),
    (
        Restricted::Path("std::process::exit"),
        &["src", "crates/store/src/sqlite/connection", "crates/store/src/postgres/write/writer"],
    ),
    (Restricted::Path("std::process::abort"), &[]),
];

/// Code that a rule restricts to some files.
#[derive(Clone, Copy, Debug)]
enum Restricted {
    /// This path or one below it, also if it is imported under another name.
    Path(&'static str),
    /// Item of this name from another crate.
    Name(&'static str),
    /// Constant or function of an item of this name from another crate.
    Member(&'static str),
    Macro(&'static str),
    /// Consecutive identifiers.
    Sequence(&'static [&'static str]),
    /// String literal with an SQL statement.
    Sql,
    /// HTTP status as a number, or within a status line.
    StatusNumber,
}

#[test]
fn restricted_code_is_only_in_its_files() {
    let files = source_files();
    let mut containing_files = BTreeMap::new();
    for package in crates() {
        for (module, file, found) in package.parsed.contents() {
            let content = Content::new(&package.parsed, module, found);
            for (rule, (restricted, _)) in RULES.iter().enumerate() {
                let occurs = match restricted {
                    Restricted::StatusNumber => has_status_number(file, &files[file]),
                    restricted => content.contains(*restricted),
                };
                if occurs {
                    containing_files.entry(rule).or_insert_with(BTreeSet::new).insert(file.to_owned());
                }
            }
        }
    }
    let mut report = Vec::new();
    for (rule, (restricted, allowed)) in RULES.iter().enumerate() {
        let containing_files = containing_files.remove(&rule).unwrap_or_default();
        let misplaced = containing_files.iter().filter(|file| !allowed.iter().any(|path| is_within(file, path)));
        report.extend(misplaced.map(|file| format!("{file} contains {restricted:?}, which only {allowed:?} may")));
        let unused = allowed.iter().filter(|path| !containing_files.iter().any(|file| is_within(file, path)));
        report.extend(
            unused.map(|path| format!("{path} may contain {restricted:?}, and does not: remove it from the rule")),
        );
    }
    assert!(report.is_empty(), "{}", report.join("\n"));
}

fn is_within(file: &str, path: &str) -> bool {
    file.strip_prefix(path).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Content of a module, with its paths resolved.
struct Content<'a> {
    found: &'a [Found],
    /// Paths into other crates.
    external: BTreeSet<Vec<String>>,
}

impl<'a> Content<'a> {
    fn new(parsed: &Crate, module: usize, found: &'a [Found]) -> Self {
        let targets = found.iter().flat_map(|found| match found {
            Found::Path(path) | Found::Macro(path) | Found::Import(path, _) | Found::Glob(path) => {
                parsed.resolve(module, path)
            }
            Found::Text(_) | Found::Number(_) => BTreeSet::new(),
        });
        let external = targets.filter_map(|target| match target {
            Target::External(path) => Some(path),
            _ => None,
        });
        Self { found, external: external.collect() }
    }

    fn contains(&self, restricted: Restricted) -> bool {
        let any = |matches: &dyn Fn(&Found) -> bool| self.found.iter().any(matches);
        match restricted {
            Restricted::Path(wanted) => {
                let wanted: Vec<_> = wanted.split("::").collect();
                // A glob import of a parent module counts, too.
                any(&|found| matches!(found, Found::Glob(path) if begins(&wanted, path)))
                    || self.external.iter().any(|path| begins(path, &wanted))
            }
            Restricted::Name(name) => self.external.iter().flatten().any(|segment| segment == name),
            Restricted::Member(name) => {
                self.external.iter().any(|path| path.iter().rev().skip(1).any(|part| part == name))
            }
            Restricted::Macro(name) => {
                any(&|found| matches!(found, Found::Macro(path) if path.ends_with(&[name.to_owned()])))
            }
            Restricted::Sequence(names) => self.found.windows(names.len()).any(|window| {
                window.iter().zip(names).all(|(found, name)| matches!(found, Found::Path(path) if *path == [*name]))
            }),
            Restricted::Sql => any(&|found| matches!(found, Found::Text(text) if is_sql(text))),
            Restricted::StatusNumber => unreachable!("`has_status_number` finds it"),
        }
    }
}

fn begins<A: AsRef<str>, B: AsRef<str>>(path: &[A], prefix: &[B]) -> bool {
    path.len() >= prefix.len() && path.iter().zip(prefix).all(|(one, other)| one.as_ref() == other.as_ref())
}

/// Returns true if the text has the keywords of an SQL statement, in upper or lower case.
fn is_sql(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let words: Vec<_> = text.split(|character: char| !character.is_alphanumeric() && character != '_').collect();
    let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
    let pair = |first: &str, second: &str| words.windows(2).any(|pair| pair == [first, second]);
    let begins_with = |first: &str, later: &str| words.first() == Some(&first) && words.contains(&later);
    let definition = ["create", "alter", "drop"].iter().any(|verb| pair(verb, "table") || pair(verb, "index"));
    pair("insert", "into")
        || pair("delete", "from")
        || definition
        || begins_with("select", "from")
        || begins_with("with", "select")
        || begins_with("update", "set")
        || words.first() == Some(&"pragma")
}

/// Returns true if a number from 100 to 599 is in an expression with an identifier like `status` or in a status line.
fn has_status_number(file: &str, text: &str) -> bool {
    let tokens = code_tokens(file, text);
    let in_status_line = |text: &str| {
        let lines = text.split("HTTP/1.").skip(1);
        lines.filter_map(|line| line.get(1..5)).any(|code| code.trim_start().parse().is_ok_and(is_status))
    };
    let texts = scan(tokens.clone());
    has_status_expression(tokens)
        || texts.iter().any(|found| matches!(found, Found::Text(text) if in_status_line(text)))
}

fn is_status(number: u64) -> bool {
    (100..=599).contains(&number)
}

fn has_status_expression(tokens: TokenStream) -> bool {
    let is_end = |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if matches!(punct.as_char(), ';' | ','));
    let is_block =
        |token: &TokenTree| matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
    let tokens: Vec<_> = tokens.into_iter().collect();
    for expression in tokens.split(|token| is_end(token)) {
        for part in expression.split_inclusive(is_block) {
            let is_match = part.iter().any(|token| matches!(token, TokenTree::Ident(ident) if ident == "match"));
            let (mut names_status, mut has_number) = (false, false);
            inspect(part, is_match, &mut names_status, &mut has_number);
            if names_status && has_number {
                return true;
            }
        }
    }
    let groups = tokens.into_iter().filter_map(|token| match token {
        TokenTree::Group(group) => Some(group.stream()),
        _ => None,
    });
    groups.into_iter().any(has_status_expression)
}

/// Searches the blocks of a `match` for numbers, but not the blocks within them.
fn inspect(tokens: &[TokenTree], is_match: bool, names_status: &mut bool, has_number: &mut bool) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                let name = ident.to_string().to_ascii_lowercase();
                *names_status |= name.contains("status") || name == "as_u16";
            }
            TokenTree::Literal(literal) => {
                if let syn::Lit::Int(number) = syn::Lit::new(literal.clone()) {
                    *has_number |= number.base10_parse().is_ok_and(is_status);
                }
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let numbers =
                    group.stream().into_iter().filter(|token| is_match && matches!(token, TokenTree::Literal(_)));
                inspect(&numbers.collect::<Vec<_>>(), false, names_status, has_number);
            }
            TokenTree::Group(group) => {
                inspect(&group.stream().into_iter().collect::<Vec<_>>(), is_match, names_status, has_number);
            }
            TokenTree::Punct(_) => {}
        }
    }
}

#[test]
fn restricted_code_is_found_under_any_name() {
    let contains = |restricted: Restricted, text: &str| {
        let files = [("src/lib.rs".to_owned(), text.to_owned())].into();
        let parsed = Crate::parse("src/lib.rs", &files);
        let (module, _, found) = parsed.contents().next().unwrap();
        Content::new(&parsed, module, found).contains(restricted)
    };
    let exit = Restricted::Path("std::process::exit");
    assert!(contains(exit, "fn f() { std::process::exit(1) }"));
    assert!(contains(exit, "use std::process; fn f() { process::exit(1) }"));
    assert!(contains(exit, "use std::process::{self}; fn f() { process::exit(1) }"));
    assert!(contains(exit, "use std::{process as p}; fn f() { p::exit(1) }"));
    assert!(contains(exit, "#[cfg(test)] mod tests {} use std::process::{exit as leave};"));
    assert!(contains(exit, "use std::process::*; fn f() { exit(1) }"));
    assert!(!contains(exit, "use std::process::ExitCode; /// `std::process::exit`\nfn exit() { exit() }"));
    assert!(!contains(exit, "#[cfg(test)] fn f() { std::process::exit(1) }"));
    assert!(contains(Restricted::Path("anyhow"), "fn f() { anyhow::bail!(1) }"));
    assert!(contains(Restricted::Path("anyhow"), "#[anyhow::derive] struct A;"));
    assert!(contains(Restricted::Macro("println"), "fn f() { vec![println!()]; }"));
    assert!(contains(Restricted::Member("StatusCode"), "use hyper::StatusCode as Code; fn f() { Code::OK }"));
    assert!(!contains(Restricted::Member("StatusCode"), "use hyper::StatusCode as Code; fn f(_: Code) {}"));
    assert!(contains(Restricted::Sql, "const Q: &str = concat!(\"select a\\n FROM b\");"));
    assert!(!contains(
        Restricted::Sql,
        "const Q: [&str; 2] = [\"DELETE\", \"select one of the files\"]; // SELECT a FROM b"
    ));
    for status in ["if r.status == 404 {}", "match r.status().as_u16() { 200 => {} _ => {} }", "expect_status(&r, 204)"]
    {
        assert!(has_status_number("", &format!("fn f() {{ {status} }}")), "{status}");
    }
    assert!(has_status_number("", "const LINE: &[u8] = b\"HTTP/1.1 400 Bad Request\";"));
    assert!(!has_status_number("", "fn f() { let n = 200; report(r.status); status(wait(n), || { 404 }) }"));
}
