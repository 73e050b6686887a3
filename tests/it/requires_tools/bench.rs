//! The parts of `scripts/bench` that measure nothing: evaluation of targets, tables and plots from a stored result file.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::tools::{in_tests, python_tool, succeed};

/// A result with invented figures, of a quick run on a machine that does not exist.
const RESULT: &str = "files/bench-result.json";

fn bench(arguments: &[&Path]) -> Command {
    let mut command = python_tool("python");
    command.arg("-B").arg(in_tests("../benches/suite")).args(arguments);
    command
}

/// Writes the page of a result into a new directory, and returns the directory and the exit code.
fn report(result: &Path) -> (tempfile::TempDir, Option<i32>) {
    let output = tempfile::tempdir().unwrap();
    let mut command = bench(&["--report".as_ref(), result, "--output".as_ref(), output.path()]);
    let code = command.output().unwrap().status.code();
    (output, code)
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn target_is_met_missed_within_spread_missed_or_not_measured() {
    let (output, code) = report(&in_tests(RESULT));
    assert_eq!(code, Some(1), "a quick run fails if a target is missed");
    let result = read_json(&output.path().join("benchmarks/result.json"));
    let verdict = |name: &str| {
        let targets = result["targets"].as_array().unwrap();
        let target = targets.iter().find(|target| target["name"] == name).unwrap();
        target["verdict"].as_str().unwrap().to_owned()
    };
    assert_eq!(verdict("list of 20, unchanged ÷ bare"), "met");
    assert_eq!(verdict("list of 20, unchanged ÷ bare with the same duties"), "within spread");
    assert_eq!(verdict("list of 20, another user each time ÷ bare with the same duties"), "missed");
    assert_eq!(verdict("list ÷ Fastify + better-sqlite3"), "not measured");
    assert_eq!(verdict("peak memory, largest store, under load"), "met", "an upper bound");
}

#[test]
fn missed_target_fails_only_a_quick_run() {
    let directory = tempfile::tempdir().unwrap();
    let mut result = read_json(&in_tests(RESULT));
    result["quick"] = Value::Bool(false);
    let full = directory.path().join("full.json");
    std::fs::write(&full, result.to_string()).unwrap();
    assert_eq!(report(&full).1, Some(0));
}

#[test]
fn result_of_another_format_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let mut result = read_json(&in_tests(RESULT));
    result["format"] = 0.into();
    let old = directory.path().join("old.json");
    std::fs::write(&old, result.to_string()).unwrap();
    assert_eq!(report(&old).1, Some(2));
}

#[test]
fn page_has_tables_and_plots_of_the_result() {
    let (output, _) = report(&in_tests(RESULT));
    let page = std::fs::read_to_string(output.path().join("benchmarks.md")).unwrap();
    for row in [
        "| list of 20, another user each time ÷ bare with the same duties | ≥ 0.9 | 0.547 | 0.526 to 0.567 | ✗ missed |",
        "| plantstore 0.0.0 | 510 (500 to 520) | 400 (400 to 400) | 4 / 4 | 10 / 40 | 100,000 | every commit is synced | bearer tokens |",
        "| Fastify + better-sqlite3 | not measured: npm: not found |  |  |  |  | every commit is synced | bearer tokens |",
        "| creates over one node | 300 | 20 |  |",
    ] {
        assert!(page.lines().any(|line| line == row), "{row}\nis not in\n{page}");
    }
    let pictures: Vec<_> = page
        .split("](benchmarks/")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|name| name.ends_with("svg"))
        .collect();
    assert!(pictures.contains(&"create-latency.svg") && pictures.contains(&"sizes-list.svg"), "{pictures:?}");
    for name in pictures {
        let path = output.path().join("benchmarks").join(name);
        let picture = std::fs::read_to_string(&path).unwrap();
        assert!(picture.contains("prefers-color-scheme: dark"), "{name} has colors for dark pages");
        let parse = "import sys, xml.dom.minidom as dom; dom.parse(sys.argv[1])";
        succeed(python_tool("python").args(["-c", parse]).arg(&path));
    }
}

#[test]
fn published_figures_agree_with_the_result_file() {
    succeed(&mut bench(&["--check".as_ref()]));
}

#[test]
fn readme_and_index_take_figures_and_link_from_the_result() {
    let program = "
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import report
from figures import Result
result = Result.read(Path(sys.argv[2]))
readme, index = (Path(path).read_text() for path in sys.argv[3:])
empty = report.with_figures(readme, None)
filled = report.with_figures(empty, result)
assert '| lists of 20 per second | 510 | 10 | not measured | not measured |' in filled, filled
assert report.with_figures(filled, result) == filled
assert report.with_figures(filled, None) == empty
linked = report.with_link(report.with_link(index, None), result)
assert linked.count('](benchmarks.md)') == 1
assert report.with_link(linked, result) == linked
";
    let paths = ["../benches/suite", RESULT, "../README.md", "../docs/README.md"].map(in_tests);
    succeed(python_tool("python").args(["-B", "-c", program]).args(paths));
}
