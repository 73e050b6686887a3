//! `docs/guarantees.md` and `docs/track-record.md`: the figures, from the file that the scripts of the campaigns write, and the
//! tests and scripts that the pages name.

use std::fmt::Write as _;

use serde_json::Value;
use syn::Item;

use super::generated::check;
use super::source::{read, root};

const PAGES: [&str; 2] = ["docs/guarantees.md", "docs/track-record.md"];
const FIGURES: [&str; 5] = ["rounds", "operations", "acknowledged", "lost", "wrong"];

/// Returns the number with separators of thousands.
fn grouped(number: &Value) -> String {
    let digits = number.as_u64().expect("a number").to_string();
    let parts: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|part| str::from_utf8(part).expect("digits")).collect();
    parts.join(",")
}

/// Returns the sum of a figure of these objects.
fn sum<'a>(objects: impl IntoIterator<Item = &'a Value>, name: &str) -> Value {
    objects.into_iter().map(|object| object[name].as_u64().expect("a number")).sum::<u64>().into()
}

fn list<'a>(figures: &'a Value, name: &str) -> &'a [Value] {
    figures[name].as_array().expect("an array")
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object[name].as_str().unwrap_or_else(|| panic!("{name} of {object} is a text"))
}

fn is_control(row: &Value) -> bool {
    row["control"].as_bool().expect("a boolean")
}

/// Returns the table of faults; with the date of each row if it is not the same for all.
fn table(campaign: &Value) -> String {
    let rows = list(campaign, "faults");
    let injected = || rows.iter().filter(|row| !is_control(row));
    let last = text(campaign, "date");
    let mut table = format!(
        "{} rounds of {} faults, and {} controls. Last run: {last}, plantstore {}, commit `{}`. A run replaces the rows of the faults \
         that it injects.\n\n",
        grouped(&sum(injected(), "rounds")),
        injected().count(),
        rows.len() - injected().count(),
        text(campaign, "version"),
        text(campaign, "commit"),
    );
    let mut columns = vec!["fault".to_owned()];
    columns.extend(FIGURES.map(str::to_owned));
    let with_dates = rows.iter().any(|row| text(row, "date") != last);
    columns.extend(with_dates.then(|| "date".to_owned()));
    let mut line = |cells: &[String]| writeln!(table, "| {} |", cells.join(" | ")).expect("text");
    line(&columns);
    line(&[&["---".to_owned()], &vec!["---:".to_owned(); columns.len() - 1][..]].concat());
    for row in rows {
        let found = ["lost", "wrong"].iter().any(|key| row[key] != 0);
        assert_eq!(found, is_control(row), "only controls, which are planted faults, lose writes: {row}");
        assert_ne!(row["rounds"], 0, "{row}");
        let mut cells = vec![format!("{}{}", if found { "control: " } else { "" }, text(row, "fault"))];
        cells.extend(FIGURES.map(|name| grouped(&row[name])));
        cells.extend(with_dates.then(|| text(row, "date").to_owned()));
        line(&cells);
    }
    table
}

/// Returns the sentences about all runs so far.
fn totals(figures: &Value) -> String {
    let [runs, fuzz] = ["runs", "fuzz"].map(|name| list(figures, name));
    let most = |name: &str| fuzz.iter().map(|run| run[name].as_u64().expect("a number")).max().expect("a run");
    let reproduced = &figures["reproduce"];
    format!(
        "- All recorded campaigns, {} since {}: {} rounds, 0 lost, 0 wrong. Their seeds are in `docs/guarantees.json`.\n\
         - `scripts/fuzz`, last on {}: {} executions of {} targets, 0 panics, 0 hangs, at most {} MB.\n\
         - `scripts/reproduce`, {}: the same bytes of {} from two directories, with rustc {}.\n",
        runs.len(),
        text(&runs[0], "date"),
        grouped(&sum(runs, "rounds")),
        text(&fuzz[fuzz.len() - 1], "date"),
        grouped(&sum(fuzz, "executions")),
        most("targets"),
        most("peak_mb"),
        text(reproduced, "date"),
        text(reproduced, "compared"),
        text(reproduced, "rustc"),
    )
}

/// Returns the result of the mutants: the tests notice them, or each has an explanation.
fn mutants(run: &Value) -> String {
    let (all, noticed) = (&run["mutants"], &run["noticed"]);
    let mut result = format!(
        "`scripts/mutants --seed {} {all}`, {}, made {all} random changes, one at a time. Its tests notice {noticed}. The others:\n\n",
        run["seed"],
        text(run, "date"),
    );
    let survivors = run["survivors"].as_object().expect("an object");
    let explained: u64 = survivors.values().filter_map(Value::as_u64).sum();
    assert_eq!(noticed.as_u64().expect("a number") + explained, all.as_u64().expect("a number"));
    for (explanation, count) in survivors {
        writeln!(result, "- {count} {explanation}").expect("text");
    }
    result
}

#[test]
fn figures_of_the_last_runs_are_documented() {
    let figures: Value = serde_json::from_str(&read("docs/guarantees.json")).expect("JSON");
    check(PAGES[0], "campaign", &table(&figures));
    check(PAGES[0], "totals", &totals(&figures));
    check(PAGES[0], "mutants", &mutants(&figures["mutants"]));
}

#[test]
fn numbers_are_grouped() {
    assert_eq!([0, 999, 1_000, 1_234_567].map(|number| grouped(&number.into())), ["0", "999", "1,000", "1,234,567"]);
}

#[test]
fn rows_have_a_date_if_it_is_not_the_same_for_all() {
    let row = |date: &str| {
        serde_json::json!({"fault": "x", "control": false, "rounds": 1, "operations": 1000, "acknowledged": 0, "lost": 0,
            "wrong": 0, "date": date})
    };
    let campaign = |dates: [&str; 2]| {
        let rows = dates.map(row);
        table(&serde_json::json!({"date": "B", "version": "1", "commit": "c", "faults": rows}))
    };
    let last_line = |table: String| table.lines().last().expect("a row").to_owned();
    assert_eq!(last_line(campaign(["B", "B"])), "| x | 1 | 1,000 | 0 | 0 | 0 |");
    assert_eq!(last_line(campaign(["A", "B"])), "| x | 1 | 1,000 | 0 | 0 | 0 | B |");
}

/// Returns the evidence that a page names: the code in the last columns of tables about tests, and any path of a test or script.
fn evidence(page: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut about_tests = false;
    for line in page.lines() {
        let last_cell = line.strip_suffix(" |").and_then(|line| line.rsplit("| ").next());
        about_tests = last_cell.is_some_and(|cell| about_tests || cell == "test");
        let code = |text| str::split(text, '`').skip(1).step_by(2);
        found.extend(code(line).filter(|code| code.starts_with("scripts/") || code.contains("::")));
        found.extend(last_cell.filter(|_| about_tests).into_iter().flat_map(code));
    }
    found
}

/// Returns true for a script with or without arguments, a file with unit tests, a module of the tests, or a test.
fn exists(name: &str) -> bool {
    if name.starts_with("scripts/") {
        return name.split(' ').next().is_some_and(|script| root().join(script).is_file());
    }
    if name.starts_with("crates/") {
        return std::fs::read_to_string(root().join(name)).is_ok_and(|source| source.contains("#[cfg(test)]"));
    }
    let file = |module: &str| root().join(format!("tests/it/{}.rs", module.replace("::", "/")));
    let Some((module, test)) = name.rsplit_once("::").filter(|_| !file(name).is_file()) else {
        return file(name).is_file();
    };
    let Ok(source) = std::fs::read_to_string(file(module)) else { return false };
    syn::parse_file(&source).expect("Rust").items.iter().any(|item| match item {
        Item::Fn(function) => {
            let is_test = |path: &syn::Path| path.is_ident("test") || path.is_ident("rstest");
            function.sig.ident == test && function.attrs.iter().any(|attribute| is_test(attribute.path()))
        }
        Item::Macro(item) => {
            let is_test = item.mac.path.segments.last().is_some_and(|name| name.ident.to_string().ends_with("_test"));
            is_test && item.mac.tokens.clone().into_iter().next().is_some_and(|name| name.to_string() == test)
        }
        _ => false,
    })
}

#[test]
fn tests_and_scripts_that_the_pages_name_exist() {
    for page in PAGES {
        let text = read(page);
        let named = evidence(&text);
        assert!(named.len() > 20, "{page}: {named:?}");
        let missing: Vec<_> = named.into_iter().filter(|name| !exists(name)).collect();
        assert!(missing.is_empty(), "{page} names tests or scripts that do not exist: {missing:?}");
    }
}

#[test]
fn evidence_that_does_not_exist_is_found() {
    let page = "`a` `b::c`\n| `x` | test |\n| --- | --- |\n| `y` | `d`, `scripts/e f` |\n\n| `z` | `w` |\n";
    assert_eq!(evidence(page), ["b::c", "scripts/e f", "d", "scripts/e f"]);
    for name in ["history", "tidy::guarantees", "tidy::guarantees::numbers_are_grouped", "scripts/faults --short"] {
        assert!(exists(name), "{name}");
    }
    // A function that is no test, a test of another module, and names that no file has.
    for name in ["tidy::guarantees::grouped", "tidy::numbers_are_grouped", "a", "a::b", "scripts/a"] {
        assert!(!exists(name), "{name}");
    }
}
