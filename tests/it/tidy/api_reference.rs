//! Reference page of the HTTP API, compared with the OpenAPI document.

use std::collections::BTreeSet;

use serde_json::Value;

use super::generated;
use super::source::read;
use crate::support::contract::{document, resolved};

const DOCUMENT: &str = "docs/reference/http-api.md";

fn members(value: &'static Value) -> impl Iterator<Item = (&'static String, &'static Value)> {
    value.as_object().into_iter().flatten()
}

/// Iterates over operations with their paths.
fn operations() -> impl Iterator<Item = (String, &'static Value)> {
    members(&document()["paths"]).flat_map(|(path, methods)| {
        members(methods).map(move |(method, operation)| (format!("{} {path}", method.to_uppercase()), operation))
    })
}

fn parameters(operation: &'static Value) -> impl Iterator<Item = &'static Value> {
    operation["parameters"].as_array().into_iter().flatten().map(resolved)
}

#[test]
fn api_reference_lists_parameters_and_error_codes_of_every_operation() {
    let mut rows =
        vec!["| operation | parameters | success | error codes |".to_owned(), "| --- | --- | --- | --- |".to_owned()];
    for (name, operation) in operations() {
        let names: Vec<_> = parameters(operation).map(|one| format!("`{}`", one["name"].as_str().unwrap())).collect();
        let responses = || members(&operation["responses"]);
        let successes: Vec<_> =
            responses().map(|(status, _)| status.as_str()).filter(|status| *status < "400").collect();
        let codes =
            responses().flat_map(|(_, response)| resolved(response)["x-error-codes"].as_array().into_iter().flatten());
        let codes: BTreeSet<_> = codes.filter_map(Value::as_u64).collect();
        let codes: Vec<_> = codes.iter().map(u64::to_string).collect();
        rows.push(format!("| `{name}` | {} | {} | {} |", names.join(", "), successes.join(", "), codes.join(", ")));
    }
    assert!(rows.iter().any(|row| row.starts_with("| `POST /plants` | `owner`, ")), "{rows:?}");
    generated::check(DOCUMENT, "operations", &rows.join("\n"));
}

/// Returns the names in code spans in the first column of the table under this heading.
fn documented(heading: &str) -> BTreeSet<String> {
    let text = read(DOCUMENT);
    let (_, section) = text.split_once(&format!("## {heading}\n")).expect("the heading");
    let rows = section.lines().take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[test]
fn api_reference_lists_every_header_field() {
    let sent: BTreeSet<String> = members(&document()["components"]["headers"]).map(|(name, _)| name.clone()).collect();
    assert!(sent.contains("ETag"), "{sent:?}");
    assert_eq!(documented("Response header fields"), sent);
    let headers = operations().flat_map(|(_, operation)| parameters(operation));
    let accepted = headers.filter(|parameter| parameter["in"] == "header").filter_map(|one| one["name"].as_str());
    let accepted: BTreeSet<String> = accepted.map(str::to_owned).collect();
    assert!(accepted.contains("Idempotency-Key"), "{accepted:?}");
    let missing: Vec<_> = accepted.difference(&documented("Request header fields")).cloned().collect();
    assert!(missing.is_empty(), "{DOCUMENT} lacks {missing:?}");
}
