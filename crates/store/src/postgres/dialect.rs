//! Kinds of databases and the settings of their sessions.

use futures_util::future::try_join_all;
use tokio_postgres::{Client, Error};

/// Settings of the planner. All statements must use the indexes, even if the tables are empty or their statistics outdated when
/// the statements are planned. The high cost estimates that result would trigger the JIT compiler, which is off.
pub(in crate::postgres) const PLANNER_SETTINGS: &[&str] = &[
    "enable_seqscan = off",
    "enable_bitmapscan = off",
    "enable_hashjoin = off",
    "enable_mergejoin = off",
    "jit = off",
];

/// Kind of a database, found out once for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Postgres,
    /// PostgreSQL with the extension Citus, whose plants are distributed.
    Citus,
}

impl Dialect {
    pub(in crate::postgres) async fn detect(client: &Client) -> Result<Self, Error> {
        const INSTALLED: &str = "SELECT count(*) > 0 FROM pg_catalog.pg_extension WHERE extname = 'citus'";
        const DISTRIBUTED: &str = "
            SELECT count(*) > 0 FROM pg_catalog.pg_dist_partition
            WHERE logicalrelid = to_regclass('plantstore.plants') AND partmethod = 'h'";
        // Without the extension there is no such catalog.
        let is_citus = is_true(client, INSTALLED).await? && is_true(client, DISTRIBUTED).await?;
        Ok(if is_citus { Self::Citus } else { Self::Postgres })
    }

    /// Returns the settings of every session. A server that does not know one of them ignores it.
    pub(in crate::postgres) fn settings(self) -> impl Iterator<Item = &'static &'static str> {
        let settings: &[&str] = match self {
            Self::Postgres => &["plan_cache_mode = force_generic_plan", "idle_session_timeout = 0"],
            // Workers plan each statement with its values. One connection to each worker, and one shard after the other in the
            // order of shards: so transactions lock rows in the same order on all nodes, and a worker has one snapshot for all
            // statements of a transaction. `SET LOCAL` also applies to workers.
            Self::Citus => &[
                "idle_session_timeout = 0",
                "citus.multi_shard_modify_mode = 'sequential'",
                "citus.max_adaptive_executor_pool_size = 1",
                "citus.propagate_set_commands = 'local'",
                // Citus 13.2 plans local statements of this kind on every execution, and keeps all plans in memory.
                "citus.enable_fast_path_router_planner = off",
            ],
        };
        PLANNER_SETTINGS.iter().chain(settings)
    }
}

/// Executes statements without results in one round trip, each in its own message. Citus sends the whole message that contains a
/// `SET LOCAL` to its workers, which must not execute the other statements.
pub(crate) async fn execute_each(client: &Client, statements: &[&str]) -> Result<(), Error> {
    try_join_all(statements.iter().map(|statement| client.batch_execute(statement))).await.map(|_| ())
}

async fn is_true(client: &Client, statement: &str) -> Result<bool, Error> {
    client.query_one(statement, &[]).await?.try_get(0)
}

/// Tests that all statements follow the rules of Citus. They need no Citus: continuous integration has none.
///
/// The statements are all string literals of this module's files, and of those that both engines share, that name a table of the
/// schema. Not executed on Citus are those followed by `on_citus` or `not_on_citus`, and a constant `NAME` if there is also a constant `NAME_ON_CITUS`.
#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Dialect;
    use crate::postgres::citus::Placement;
    use crate::postgres::statements::{Prepared, Statements};

    /// Functions in writes. PostgreSQL marks all of them as immutable or stable, or they are part of its grammar.
    const NOT_VOLATILE: [&str; 9] =
        ["array_agg", "coalesce", "count", "extract", "greatest", "least", "max", "now", "unnest"];
    const TABLES: [&str; 8] = [
        "collections",
        "departed_users",
        "idempotency_keys",
        "plants",
        "schema_versions",
        "shares_by_name",
        "tokens",
        "users",
    ];
    const WRITES: [&str; 3] = ["INSERT INTO ", "UPDATE ", "DELETE FROM "];
    const READS: [&str; 3] = ["FROM ", "JOIN ", "USING "];
    const ROW_LOCKS: [&str; 4] = ["FOR UPDATE", "FOR NO KEY UPDATE", "FOR SHARE", "FOR KEY SHARE"];

    /// A string literal of a source file.
    struct Literal<'a> {
        /// Word before the literal that ends with a colon: the name of a constant or statement.
        name: &'a str,
        text: &'a str,
        /// Source after the literal.
        rest: &'a str,
    }

    /// Returns the string literals of a source file, without comments and characters.
    fn literals(source: &str) -> Vec<Literal<'_>> {
        let mut found = Vec::new();
        let (mut rest, mut code_from) = (source, source);
        while let Some(at) = rest.find(['"', '/', '\'']) {
            let tail = &rest[at..];
            rest = if tail.starts_with("//") {
                &tail[tail.find('\n').unwrap_or(tail.len())..]
            } else if let Some(after) = tail.strip_prefix("'\"'") {
                after
            } else if let Some(literal) = tail.strip_prefix('"') {
                let mut is_escaped = false;
                let end = literal.find(|letter| {
                    let is_end = letter == '"' && !is_escaped;
                    is_escaped = letter == '\\' && !is_escaped;
                    is_end
                });
                let (text, after) = literal.split_at(end.expect("the end of a literal"));
                let code = &code_from[..code_from.len() - tail.len()];
                let name = code.rsplit(':').nth(1).and_then(|before| before.rsplit([' ', '\n']).next());
                code_from = &after[1..];
                found.push(Literal { name: name.unwrap_or_default(), text, rest: &after[1..] });
                &after[1..]
            } else {
                &tail[1..]
            };
        }
        found
    }

    /// Returns the statements of a source file that are executed on Citus.
    fn statements(source: &str) -> Vec<&str> {
        let literals = literals(source);
        let has_variant = |literal: &Literal| {
            let rest = literal.rest.trim_start();
            let other = format!("{}_ON_CITUS", literal.name);
            rest.starts_with("on_citus")
                || rest.starts_with("not_on_citus")
                || literals.iter().any(|literal| literal.name == other)
        };
        literals
            .iter()
            .filter(|literal| is_statement(literal.text) && !has_variant(literal))
            .map(|found| found.text)
            .collect()
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
        names.filter(|(name, _)| TABLES.contains(name)).collect()
    }

    fn is_of_name(letter: char) -> bool {
        letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_'
    }

    fn is_distributed(table: &str) -> bool {
        Placement::of(table) == Placement::Distributed
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
        let sides =
            condition[..end.unwrap_or(condition.len())].split(" AND ").filter_map(|part| part.split_once(" = "));
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
        let (written, read) = (tables(text, &WRITES), tables(text, &READS));
        let reads_distributed = read.iter().any(|(table, _)| is_distributed(table));
        let is_on_workers = |table: &str| Placement::of(table) != Placement::Coordinator;
        let conflict = text.split("DO UPDATE SET").nth(1).unwrap_or_default();
        let rules = [
            (
                written.iter().any(|(table, _)| is_on_workers(table))
                    && functions(text).iter().any(|name| !NOT_VOLATILE.contains(name)),
                "a write calls a function that may be volatile",
            ),
            (!functions(conflict).is_empty(), "ON CONFLICT calls a function"),
            (text.contains("LATERAL") && reads_distributed, "a lateral join"),
            (
                ROW_LOCKS.iter().any(|lock| text.contains(lock)) && reads_distributed,
                "a read of a distributed table locks rows",
            ),
            (
                tables(text, &["JOIN "]).iter().any(|(table, rest)| is_distributed(table) && !joins_by_user(rest)),
                "a join of a distributed table is not by user id",
            ),
            (
                tables(text, &["INSERT INTO "])
                    .iter()
                    .any(|(table, rest)| is_distributed(table) && inserts_batch(rest)),
                "an insert of a batch does not take the user id from a distributed table",
            ),
            (
                written.iter().any(|(table, _)| is_on_workers(table) && !is_distributed(table)) && reads_distributed,
                "a write to a copied table reads a distributed one",
            ),
        ];
        rules.into_iter().filter_map(|(is_broken, rule)| is_broken.then_some(rule)).collect()
    }

    #[test]
    fn statements_follow_the_rules_of_citus() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let directories = ["accounts", "postgres", "postgres/citus", "postgres/read", "postgres/write", "transfer"]
            .map(|name| std::fs::read_dir(sources.join(name)).expect("a directory"));
        let mut prepared: Vec<&str> = Statements::TEXTS.iter().map(|text| text.for_dialect(Dialect::Citus)).collect();
        let mut files = 0;
        let files_of = directories.into_iter().flatten().flatten().map(|entry| entry.path());
        for path in files_of.filter(|path| path.is_file()) {
            let source = std::fs::read_to_string(&path).expect("a source file");
            let source = source.split("#[cfg(test)]").next().unwrap_or_default();
            let statements = statements(source);
            files += usize::from(!statements.is_empty());
            for statement in statements {
                assert!(faults(statement).is_empty(), "{}: {:?}: {statement}", path.display(), faults(statement));
                let unescaped = statement.replace("\\\"", "\"");
                prepared.retain(|text| *text != unescaped);
            }
        }
        // What is left is not executed on Citus: the scan has found all others.
        for text in prepared {
            assert!(!is_statement(text) || !faults(text).is_empty(), "not found in the sources: {text}");
        }
        assert!(files > 5, "statements were found in {files} files");
    }

    /// The statements are those that Citus 13.2 rejected, or executed on every worker.
    #[test]
    fn each_rule_finds_its_fault() {
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
    }

    #[test]
    fn generic_plans_are_not_forced_on_citus() {
        let forces = |dialect: Dialect| dialect.settings().any(|setting| setting.starts_with("plan_cache_mode"));
        assert!(forces(Dialect::Postgres) && !forces(Dialect::Citus));
    }
}
