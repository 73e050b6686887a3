//! Rules of Citus for statements of the store. They are checked without Citus, which continuous integration does not have.

use super::source::{Found, code_tokens, files, scan};

/// Functions in writes. PostgreSQL marks all of them as immutable or stable, or they are part of its grammar.
const NOT_VOLATILE: [&str; 9] =
    ["array_agg", "coalesce", "count", "extract", "greatest", "least", "max", "now", "unnest"];
/// Tables whose rows are distributed by the user id.
const DISTRIBUTED: [&str; 3] = ["collections", "idempotency_keys", "plants"];
/// Tables of which every server has a copy.
const COPIED: [&str; 4] = ["departed_users", "shares_by_name", "tokens", "users"];
const ON_COORDINATOR: &str = "schema_versions";
const WRITES: [&str; 3] = ["INSERT INTO ", "UPDATE ", "DELETE FROM "];
const READS: [&str; 3] = ["FROM ", "JOIN ", "USING "];
const ROW_LOCKS: [&str; 4] = ["FOR UPDATE", "FOR NO KEY UPDATE", "FOR SHARE", "FOR KEY SHARE"];
/// Directories with statements that are executed on PostgreSQL.
const SOURCES: [&str; 3] = ["crates/store/src/accounts", "crates/store/src/postgres", "crates/store/src/transfer"];

/// Returns the statements of a source file that are executed on Citus: those that name a table of the schema, with what they have
/// in comments for Citus, except those followed by `not_on_citus`.
fn statements(file: &str, source: &str) -> Vec<String> {
    let found = scan(code_tokens(file, source));
    let is_left_out = |next: Option<&Found>| matches!(next, Some(Found::Path(path)) if path[0] == "not_on_citus");
    let texts = found.iter().enumerate().filter_map(|(index, text)| match text {
        Found::Text(text) if is_statement(text) && !is_left_out(found.get(index + 1)) => {
            Some(text.replace("/* Citus: ", "").replace(" */", ""))
        }
        _ => None,
    });
    texts.collect()
}

fn is_statement(text: &str) -> bool {
    !tables(text, &WRITES).is_empty()
        || !tables(text, &READS).is_empty()
        || (text.contains("plantstore.") && text.contains(" IN "))
}

/// Returns the tables that follow one of these words, with the text after each.
fn tables<'a>(text: &'a str, words: &[&str]) -> Vec<(&'a str, &'a str)> {
    let after = words.iter().flat_map(|word| text.match_indices(*word).map(|(at, word)| &text[at + word.len()..]));
    let names = after.map(str::trim_start).map(|rest| rest.strip_prefix("plantstore.").unwrap_or(rest));
    let names = names.map(|name| name.split_at(name.find(|letter| !is_of_name(letter)).unwrap_or(name.len())));
    names.filter(|(name, _)| is_on_workers(name) || *name == ON_COORDINATOR).collect()
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_'
}

fn is_distributed(table: &str) -> bool {
    DISTRIBUTED.contains(&table)
}

fn is_on_workers(table: &str) -> bool {
    is_distributed(table) || COPIED.contains(&table)
}

/// Returns the names of the functions that a statement calls.
fn functions(text: &str) -> Vec<&str> {
    let calls = text.match_indices('(').map(|(at, _)| &text[..at]);
    let names = calls.map(|before| &before[before.trim_end_matches(is_of_name).len()..]);
    names.filter(|name| !name.is_empty()).collect()
}

/// Returns true if the join equates the user ids of both sides, as in `a.user_id = b.user_id`.
fn joins_by_user(condition: &str) -> bool {
    let end = [" JOIN ", " WHERE ", " ORDER ", " GROUP "].iter().filter_map(|word| condition.find(word)).min();
    let sides = condition[..end.unwrap_or(condition.len())].split(" AND ").filter_map(|part| part.split_once(" = "));
    let is_user = |side: &str| side.split_whitespace().any(|word| word.ends_with(".user_id"));
    sides.into_iter().any(|(left, right)| is_user(left) && is_user(right))
}

/// Returns true if an insert reads the user ids from its parameters. Citus would execute it on the coordinator.
fn inserts_batch(insert: &str) -> bool {
    insert.contains("unnest(") && !insert.contains("SELECT collections.user_id")
}

/// Returns the rules of Citus that a statement breaks. It would be rejected, or executed on all workers.
fn faults(text: &str) -> Vec<&'static str> {
    let text = &text.split_whitespace().collect::<Vec<_>>().join(" ");
    let written = tables(text, &WRITES);
    let inserted = tables(text, &["INSERT INTO "]);
    let joined = tables(text, &["JOIN "]);
    let reads_distributed = tables(text, &READS).iter().any(|(table, _)| is_distributed(table));
    let calls_volatile = functions(text).iter().any(|name| !NOT_VOLATILE.contains(name));
    let conflict = text.split("DO UPDATE SET").nth(1).unwrap_or_default();
    let rules = [
        (
            written.iter().any(|(table, _)| is_on_workers(table)) && calls_volatile,
            "a write calls a function that may be volatile",
        ),
        (!functions(conflict).is_empty(), "ON CONFLICT calls a function"),
        (text.contains("LATERAL") && reads_distributed, "a lateral join"),
        (
            ROW_LOCKS.iter().any(|lock| text.contains(lock)) && reads_distributed,
            "a read of a distributed table locks rows",
        ),
        (
            joined.iter().any(|(table, rest)| is_distributed(table) && !joins_by_user(rest)),
            "a join of a distributed table is not by user id",
        ),
        (
            inserted.iter().any(|(table, rest)| is_distributed(table) && inserts_batch(rest)),
            "an insert of a batch does not take the user id from a distributed table",
        ),
        (
            written.iter().any(|(table, _)| COPIED.contains(table)) && reads_distributed,
            "a write to a copied table reads a distributed one",
        ),
    ];
    rules.into_iter().filter_map(|(is_broken, rule)| is_broken.then_some(rule)).collect()
}

#[test]
fn statements_follow_the_rules_of_citus() {
    let mut checked = 0;
    for (file, source) in SOURCES.iter().flat_map(|directory| files(directory, "rs")) {
        for statement in statements(&file, &source) {
            assert!(faults(&statement).is_empty(), "{file}: {:?}: {statement}", faults(&statement));
            checked += 1;
        }
    }
    assert!(checked > 50, "{checked} statements were found");
}

/// The statements are those that Citus 13.2 rejected, or executed on every worker.
#[test]
fn statement_that_breaks_a_rule_of_citus_is_found() {
    let broken = [
        (
            "UPDATE plantstore.collections SET version = extract(epoch FROM clock_timestamp()) WHERE user_id = ANY($1)",
            "a write calls a function that may be volatile",
        ),
        (
            "INSERT INTO plantstore.idempotency_keys (user_id) VALUES ($1) ON CONFLICT DO UPDATE SET expires_at = now()",
            "ON CONFLICT calls a function",
        ),
        (
            "SELECT 1 FROM unnest($1) AS batch (user_id) CROSS JOIN LATERAL (SELECT 1 FROM plantstore.plants) AS listed",
            "a lateral join",
        ),
        (
            "DELETE FROM plantstore.idempotency_keys WHERE key IN (
               SELECT key FROM plantstore.idempotency_keys LIMIT $1 FOR UPDATE SKIP LOCKED)",
            "a read of a distributed table locks rows",
        ),
        (
            "SELECT 1 FROM unnest($1) AS batch (owner_id) JOIN plantstore.collections ON user_id = batch.owner_id",
            "a join of a distributed table is not by user id",
        ),
        (
            "INSERT INTO plantstore.plants (user_id) SELECT user_id FROM unnest($1) AS batch (user_id)",
            "an insert of a batch does not take the user id from a distributed table",
        ),
        (
            "DELETE FROM plantstore.departed_users WHERE NOT EXISTS (SELECT 1 FROM plantstore.plants)",
            "a write to a copied table reads a distributed one",
        ),
    ];
    for (statement, fault) in broken {
        assert_eq!(faults(statement), [fault], "{statement}");
    }
    let source = r#"statements! { a: "DELETE FROM plants /* Citus: WHERE a */", b: "SELECT b FROM users" not_on_citus, }
        fn f() { g("SELECT c FROM tokens", "no statement") }"#;
    assert_eq!(statements("a.rs", source), ["DELETE FROM plants WHERE a", "SELECT c FROM tokens"]);
}
