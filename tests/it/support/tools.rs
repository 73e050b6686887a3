//! External programs, which `scripts/test` installs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory")
}

/// Returns the path of a file or directory below `tests/`.
pub(crate) fn in_tests(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path)
}

/// Returns the command for a program of the Python environment.
#[track_caller]
pub(crate) fn python_tool(name: &str) -> Command {
    program(target().join("venv/bin").join(name))
}

/// Returns the command for a program of the packages in `tests/node/`.
#[track_caller]
pub(crate) fn node_tool(name: &str) -> Command {
    program(in_tests("node/node_modules/.bin").join(name))
}

/// Returns the command for a program that not every system has.
#[track_caller]
pub(crate) fn external(name: &str) -> Command {
    assert_declared(name);
    Command::new(name)
}

/// Fails unless the name of the running test declares that it needs external programs: `scripts/test --quick` selects
/// tests by name. Threads that a test has started have no name and are not checked.
#[track_caller]
pub(crate) fn assert_declared(program: &str) {
    let thread = std::thread::current();
    let Some(test) = thread.name().filter(|name| name.contains("::")) else { return };
    let is_declared = test.contains("requires_")
        || (program == "postgres" && ["on_postgres", "Engine__Postgres"].iter().any(|engine| test.contains(engine)));
    assert!(is_declared, "{test} runs {program}: give it the attribute #[case::requires_{program}()]");
}

#[track_caller]
fn program(path: PathBuf) -> Command {
    assert_declared(&path.to_string_lossy());
    assert!(path.exists(), "{} is missing: scripts/test installs it", path.display());
    let mut command = Command::new(path);
    command.stdin(Stdio::null());
    command
}

/// Runs a command that must succeed, and returns its standard output.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().expect("the command runs");
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{command:?}: {}\n{stdout}\n{stderr}", output.status);
    stdout
}
