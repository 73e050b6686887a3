//! Things that may stand in some files only: the architecture's invariants about SQL, status codes, printing and crates.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::modules::{Crate, Target};
use super::source::{Found, code_tokens, scan};
use super::workspace::{crates, source_files};

/// Each thing, and the only files and directories that it may stand in. `a/b` stands for `a/b.rs` and all below `a/b/`.
const RULES: &[(Thing, &[&str])] = &[
    (Thing::Sql, &["crates/store"]),
    (Thing::Path("rusqlite"), &["crates/store"]),
    (Thing::Path("tokio_postgres"), &["crates/store"]),
    // The type may be passed on and recorded; the meaning of the service's own statuses is decided in one module. Issuers and
    // collectors respond with statuses, too.
    (
        Thing::Name("StatusCode"),
        &["crates/server/src/api", "crates/server/src/observe", "crates/server/src/auth/oidc/issuer", "crates/client"],
    ),
    (
        Thing::Member("StatusCode"),
        &["crates/server/src/api", "crates/server/src/auth/oidc/issuer", "crates/server/src/observe/traces/export"],
    ),
    // Metrics have labels for statuses, and HTTP/2 frames responses by them.
    (
        Thing::StatusNumber,
        &[
            "crates/server/src/api",
            "crates/server/src/observe/request_metrics",
            "crates/server/src/transport/http2",
            "crates/check",
        ],
    ),
    (Thing::Sequence(&["fn", "into_response"]), &["crates/server/src/api/error"]),
    (Thing::Path("axum"), &["crates/server"]),
    (Thing::Path("utoipa"), &["crates/server/src/api", "crates/server/src/routes", "crates/server/src/web/docs"]),
    (Thing::Path("h2"), &["crates/server/src/transport/http2"]),
    (Thing::Path("rustls"), &["crates/client", "crates/store/src/postgres", "crates/server/src/transport/tls"]),
    (Thing::Path("ring"), &["crates/server/src/auth/oidc"]),
    (Thing::Path("base64"), &["crates/server/src/auth/oidc"]),
    (
        Thing::Path("getrandom"),
        &["crates/model/src/token", "crates/store", "crates/server/src/observe", "crates/check/src/cleanup"],
    ),
    (Thing::Path("anyhow"), &["src"]),
    (Thing::Path("std::env"), &["src"]),
    // These panic when the reader has gone.
    (Thing::Macro("print"), &[]),
    (Thing::Macro("println"), &[]),
    (Thing::Macro("eprint"), &[]),
    (Thing::Macro("eprintln"), &[]),
    (Thing::Macro("dbg"), &[]),
    (Thing::Path("std::io::stdin"), &["src"]),
    (Thing::Path("std::io::stdout"), &["src"]),
    (Thing::Path("std::io::stderr"), &["src", "crates/telemetry/src/logging"]),
    (
        Thing::Path("std::process::exit"),
        &["src", "crates/store/src/sqlite/database_error", "crates/store/src/postgres/writer"],
    ),
    (Thing::Path("std::process::abort"), &[]),
];

#[derive(Clone, Copy, Debug)]
enum Thing {
    /// This path or one below it, under any name in the file.
    Path(&'static str),
    /// Item of this name of some other crate.
    Name(&'static str),
    /// Constant or function of an item of this name of some other crate.
    Member(&'static str),
    Macro(&'static str),
    /// Identifiers in a row.
    Sequence(&'static [&'static str]),
    /// String literal that holds an SQL statement.
    Sql,
    /// HTTP status as a number, or within a status line.
    StatusNumber,
}

#[test]
fn restricted_items_stand_only_in_their_files() {
    let files = source_files();
    let mut holders = BTreeMap::new();
    for package in crates() {
        for (module, file, found) in package.parsed.contents() {
            let content = Content::new(&package.parsed, module, found);
            for (rule, (thing, _)) in RULES.iter().enumerate() {
                let occurs = match thing {
                    Thing::StatusNumber => holds_status_number(file, &files[file]),
                    thing => content.holds(*thing),
                };
                if occurs {
                    holders.entry(rule).or_insert_with(BTreeSet::new).insert(file.to_owned());
                }
            }
        }
    }
    let mut report = Vec::new();
    for (rule, (thing, places)) in RULES.iter().enumerate() {
        let holders = holders.remove(&rule).unwrap_or_default();
        let misplaced = holders.iter().filter(|file| !places.iter().any(|place| is_within(file, place)));
        report.extend(misplaced.map(|file| format!("{thing:?} stands in {file}, and belongs into {places:?}")));
        let unused = places.iter().filter(|place| !holders.iter().any(|file| is_within(file, place)));
        report.extend(unused.map(|place| format!("{thing:?} may stand in {place}, and does not")));
    }
    assert!(report.is_empty(), "{}", report.join("\n"));
}

fn is_within(file: &str, place: &str) -> bool {
    file.strip_prefix(place).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
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

    fn holds(&self, thing: Thing) -> bool {
        let any = |matches: &dyn Fn(&Found) -> bool| self.found.iter().any(matches);
        match thing {
            Thing::Path(wanted) => {
                let wanted: Vec<_> = wanted.split("::").collect();
                // An import of everything in a module above it counts, too.
                any(&|found| matches!(found, Found::Glob(path) if begins(&wanted, path)))
                    || self.external.iter().any(|path| begins(path, &wanted))
            }
            Thing::Name(name) => self.external.iter().flatten().any(|segment| segment == name),
            Thing::Member(name) => self.external.iter().any(|path| path.iter().rev().skip(1).any(|part| part == name)),
            Thing::Macro(name) => {
                any(&|found| matches!(found, Found::Macro(path) if path.ends_with(&[name.to_owned()])))
            }
            Thing::Sequence(names) => self.found.windows(names.len()).any(|window| {
                window.iter().zip(names).all(|(found, name)| matches!(found, Found::Path(path) if *path == [*name]))
            }),
            Thing::Sql => any(&|found| matches!(found, Found::Text(text) if is_sql(text))),
            Thing::StatusNumber => unreachable!("looked for in the tokens"),
        }
    }
}

fn begins<A: AsRef<str>, B: AsRef<str>>(path: &[A], prefix: &[B]) -> bool {
    path.len() >= prefix.len() && path.iter().zip(prefix).all(|(one, other)| one.as_ref() == other.as_ref())
}

/// Returns true if the text holds the keywords of an SQL statement, in upper or lower case.
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

/// Returns true if a number from 100 to 599 stands in one expression with something called a status, or in a status line.
fn holds_status_number(file: &str, text: &str) -> bool {
    let tokens = code_tokens(file, text);
    let in_status_line = |text: &str| {
        let lines = text.split("HTTP/1.").skip(1);
        lines.filter_map(|line| line.get(1..5)).any(|code| code.trim_start().parse().is_ok_and(is_status))
    };
    let texts = scan(tokens.clone());
    holds_status_expression(tokens)
        || texts.iter().any(|found| matches!(found, Found::Text(text) if in_status_line(text)))
}

fn is_status(number: u64) -> bool {
    (100..=599).contains(&number)
}

fn holds_status_expression(tokens: TokenStream) -> bool {
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
    groups.into_iter().any(holds_status_expression)
}

/// Looks into the blocks of a `match` for numbers, but not further.
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
fn things_are_recognized_under_any_name() {
    let holds = |thing: Thing, text: &str| {
        let files = [("src/lib.rs".to_owned(), text.to_owned())].into();
        let parsed = Crate::parse("src/lib.rs", &files);
        let (module, _, found) = parsed.contents().next().unwrap();
        Content::new(&parsed, module, found).holds(thing)
    };
    let exit = Thing::Path("std::process::exit");
    assert!(holds(exit, "fn f() { std::process::exit(1) }"));
    assert!(holds(exit, "use std::process; fn f() { process::exit(1) }"));
    assert!(holds(exit, "use std::process::{self}; fn f() { process::exit(1) }"));
    assert!(holds(exit, "use std::{process as p}; fn f() { p::exit(1) }"));
    assert!(holds(exit, "#[cfg(test)] mod tests {} use std::process::{exit as leave};"));
    assert!(holds(exit, "use std::process::*; fn f() { exit(1) }"));
    assert!(!holds(exit, "use std::process::ExitCode; /// `std::process::exit`\nfn exit() { exit() }"));
    assert!(!holds(exit, "#[cfg(test)] fn f() { std::process::exit(1) }"));
    assert!(holds(Thing::Path("anyhow"), "fn f() { anyhow::bail!(1) }"));
    assert!(holds(Thing::Path("anyhow"), "#[anyhow::derive] struct A;"));
    assert!(holds(Thing::Macro("println"), "fn f() { vec![println!()]; }"));
    assert!(holds(Thing::Member("StatusCode"), "use hyper::StatusCode as Code; fn f() { Code::OK }"));
    assert!(!holds(Thing::Member("StatusCode"), "use hyper::StatusCode as Code; fn f(_: Code) {}"));
    assert!(holds(Thing::Sql, "const Q: &str = concat!(\"select a\\n FROM b\");"));
    assert!(!holds(Thing::Sql, "const Q: [&str; 2] = [\"DELETE\", \"select one of the files\"]; // SELECT a FROM b"));
    for status in ["if r.status == 404 {}", "match r.status().as_u16() { 200 => {} _ => {} }", "expect_status(&r, 204)"]
    {
        assert!(holds_status_number("", &format!("fn f() {{ {status} }}")), "{status}");
    }
    assert!(holds_status_number("", "const LINE: &[u8] = b\"HTTP/1.1 400 Bad Request\";"));
    assert!(!holds_status_number("", "fn f() { let n = 200; report(r.status); status(wait(n), || { 404 }) }"));
}
