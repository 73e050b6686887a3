//! Reference page of the log, generated from the events in the source.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::LitStr;

use super::generated;
use super::source::{Found, code_tokens, files, read, scan};

const DOCUMENT: &str = "docs/reference/logs.md";
const TROUBLESHOOTING: &str = "docs/how-to/troubleshooting.md";
/// Headings of `TROUBLESHOOTING`, with the column of their table that quotes messages.
const QUOTING: [(&str, usize); 3] =
    [("The service does not start", 1), ("Clients get errors", 2), ("The log has a warning or an error", 1)];
/// From the most severe to the least.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Level, as the position in `LEVELS`, and message.
type Event = (usize, String);
/// Names of the fields of every event.
type Events = BTreeMap<Event, BTreeSet<String>>;

fn events() -> Events {
    let mut events = Events::new();
    for (path, text) in files("crates", "rs").into_iter().chain(files("src", "rs")) {
        collect(code_tokens(&path, &text), &mut events);
    }
    events
}

/// Finds `tracing::LEVEL!(…)`.
fn collect(tokens: TokenStream, events: &mut Events) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        let before = tokens[at.saturating_sub(6)..at].iter().map(ToString::to_string).collect::<String>();
        let level = before.rsplit_once("tracing::").and_then(|(_, name)| name.strip_suffix('!'));
        if let Some(level) = level.and_then(|level| LEVELS.iter().position(|known| *known == level)) {
            let (message, fields) = arguments(group.stream());
            events.entry((level, message)).or_default().extend(fields);
        }
        collect(group.stream(), events);
    }
}

/// Returns the message of an event, with `…` for values in it, and the names of its fields.
fn arguments(tokens: TokenStream) -> (String, Vec<String>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut message = String::new();
    let mut fields = Vec::new();
    for argument in tokens.split(|token| token.to_string() == ",") {
        if argument.get(1).is_some_and(|token| token.to_string() == ":") {
            // `target: …`
            continue;
        }
        // `name`, `%name`, `?name` or `name = value`.
        let name = argument.iter().find(|token| !matches!(token, TokenTree::Punct(_)));
        match name {
            Some(TokenTree::Literal(literal)) => {
                let text = syn::parse_str::<LitStr>(&literal.to_string()).expect("a message").value();
                let mut pieces = text.split('{');
                pieces.next().unwrap_or_default().clone_into(&mut message);
                message.extend(
                    pieces.map(|piece| piece.split_once('}').map_or("…".to_owned(), |(_, rest)| format!("…{rest}"))),
                );
            }
            Some(name) => fields.push(name.to_string()),
            None => {}
        }
    }
    (message, fields)
}

#[test]
fn log_reference_lists_every_event() {
    let mut rows = vec!["| level | message | fields |".to_owned(), "| --- | --- | --- |".to_owned()];
    for ((level, message), fields) in events() {
        if message == "…" {
            continue;
        }
        let fields: Vec<_> = fields.iter().map(|field| format!("`{field}`")).collect();
        let quotes = if message.contains('`') { "``" } else { "`" };
        let row = format!("| `{}` | {quotes}{message}{quotes} | {} |", LEVELS[level].to_uppercase(), fields.join(", "));
        rows.push(row.replace("|  |", "| |"));
    }
    assert!(rows.iter().any(|row| row.starts_with("| `INFO` | `stopped` |")), "{rows:?}");
    generated::check(DOCUMENT, "events", &rows.join("\n"));
}

#[test]
fn log_reference_lists_the_fields_of_a_request() {
    let source = read("crates/telemetry/src/logging.rs");
    let (_, line) = source.split_once("pub struct RequestLine").expect("the line of a request");
    let fields = line.lines().take_while(|line| *line != "}").filter_map(|line| line.trim().strip_prefix("pub "));
    let fields: BTreeSet<String> = fields.filter_map(|field| Some(field.split_once(':')?.0.to_owned())).collect();
    let document = read(DOCUMENT);
    let (_, section) = document.split_once("## Requests\n").expect("the section");
    let rows = section.lines().take_while(|line| !line.starts_with("## "));
    let documented: BTreeSet<String> =
        rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next()).map(str::to_owned).collect();
    assert_eq!(documented, fields);
}

/// Returns the messages in code spans of a column of the table under a heading.
fn quoted(document: &str, heading: &str, column: usize) -> Vec<String> {
    let (_, section) = document.split_once(&format!("## {heading}\n")).expect("the heading");
    let rows = section.lines().take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.split('|').nth(column));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[test]
fn troubleshooting_quotes_messages_that_exist() {
    let sources = files("crates", "rs").into_iter().chain(files("src", "rs"));
    let texts = sources.flat_map(|(path, text)| scan(code_tokens(&path, &text))).filter_map(|found| match found {
        Found::Text(text) => Some(text),
        _ => None,
    });
    let texts: Vec<String> = texts.chain(["database is locked".to_owned()]).collect();
    let document = read(TROUBLESHOOTING);
    let quoted: Vec<_> = QUOTING.iter().flat_map(|(heading, column)| quoted(&document, heading, *column)).collect();
    assert!(quoted.len() > 30, "{quoted:?}");
    // A message may be a format with values, and a reason may be followed by its consequence.
    let exists = |message: &String| {
        let parts = message.split('…').flat_map(|part| part.split(": exiting"));
        parts.map(str::trim).all(|part| texts.iter().any(|text| text.contains(part)))
    };
    let unknown: Vec<_> = quoted.iter().filter(|message| !exists(message)).collect();
    assert!(unknown.is_empty(), "{TROUBLESHOOTING} quotes messages that no source file has: {unknown:#?}");
}

#[test]
fn events_are_found_with_their_fields() {
    let text = r#"fn f() { if a { tracing::warn!(%error, b = c(1, 2), ?role, d, "lost {what}, {n} of it") } other::warn!("x"); g(|| tracing::info!("y")) }"#;
    let mut events = Events::new();
    collect(code_tokens("", text), &mut events);
    let fields = ["error", "b", "role", "d"].map(str::to_owned).into();
    let expected = [((1, "lost …, … of it".to_owned()), fields), ((2, "y".to_owned()), BTreeSet::new())];
    assert_eq!(events, expected.into());
}
