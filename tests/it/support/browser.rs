//! Scripts that drive a real browser: `tests/browser/NAME.mjs`, run by Node.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use super::Server;
use super::tools::external;

/// Longest silence of a script before it is considered stuck. Every step of a script has a shorter timeout of its own.
const TIMEOUT: Duration = Duration::from_secs(900);

/// A script and its environment variables.
pub(crate) struct BrowserScript {
    name: String,
    output: PathBuf,
    command: Command,
}

impl BrowserScript {
    /// Prepares `tests/browser/NAME.mjs`, with the server's address in `BASE_URL`, a token in `TOKEN` and a directory
    /// for screenshots in `OUTPUT`, which is `target/test-output/browser/CASE`.
    #[track_caller]
    pub(crate) fn new(name: &str, case: &str, server: &Server, token: &str) -> Self {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
        let libraries = directory.join("node_modules");
        assert!(libraries.is_dir(), "{} is missing: scripts/test installs it", libraries.display());
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
        let output = target.join("test-output/browser").join(case);
        // Screenshots of an earlier run could be mistaken for those of this run.
        let _ = fs::remove_dir_all(&output);
        fs::create_dir_all(&output).expect("a directory for screenshots");
        let mut command = external("node");
        command.arg(directory.join(format!("{name}.mjs"))).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("BASE_URL", format!("http://{}", server.address())).env("TOKEN", token).env("OUTPUT", &output);
        Self { name: name.to_owned(), output, command }
    }

    /// Adds an environment variable.
    pub(crate) fn with(mut self, variable: &str, value: &str) -> Self {
        self.command.env(variable, value);
        self
    }

    /// Runs the script, which must succeed.
    #[track_caller]
    pub(crate) fn run(self) {
        self.run_with_commands(|command| panic!("the script asks to {command}"));
    }

    /// Runs the script, which must succeed. `respond` runs the commands of `ask` in `browser.mjs` and returns their
    /// results.
    #[track_caller]
    pub(crate) fn run_with_commands(mut self, mut respond: impl FnMut(&str) -> String) {
        let _slot = Slot::wait();
        let errors = self.output.join("errors.txt");
        self.command.stderr(File::create(&errors).expect("a file for its errors"));
        let mut running = Running(self.command.spawn().expect("node is missing: scripts/test installs it"));
        let mut input = running.0.stdin.take().expect("standard input is piped");
        let lines = lines_of(&mut running.0);
        let mut log = String::new();
        loop {
            match lines.recv_timeout(TIMEOUT) {
                Ok(line) => {
                    if let Some(command) = line.strip_prefix("ask ") {
                        // If the script has ended meanwhile, its exit status is checked below.
                        let _ = writeln!(input, "{}", respond(command));
                    }
                    log.push_str(&(line + "\n"));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("{}.mjs is stuck after:\n{log}", self.name),
            }
        }
        let _ = fs::write(self.output.join("log.txt"), &log);
        let status = running.0.wait().expect("node ends");
        log.push_str(&fs::read_to_string(&errors).unwrap_or_default());
        let screenshots = self.output.display();
        assert!(status.success(), "{}.mjs failed (screenshots of its pages are in {screenshots}):\n{log}", self.name);
    }
}

/// Permission to run a browser, returned when it is dropped.
struct Slot;

/// Number of further browsers that may run now: one per processor, at least two. They keep the machine busy; more of them would
/// miss their deadlines.
static FREE_SLOTS: LazyLock<Mutex<usize>> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(2, NonZero::get);
    Mutex::new(processors.max(2))
});
static SLOT_RETURNED: Condvar = Condvar::new();

impl Slot {
    fn wait() -> Self {
        let free = FREE_SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = SLOT_RETURNED.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Self
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *FREE_SLOTS.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        SLOT_RETURNED.notify_one();
    }
}

/// Process of a script. It is killed when the test ends; the browser ends when the script has ended.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads the standard output, line by line, to its end.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let output = BufReader::new(child.stdout.take().expect("standard output is piped"));
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}
