//! The server under load: a process with a new SQLite store.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

pub(crate) struct ServerProcess {
    process: Child,
    pub(crate) address: SocketAddr,
    /// Tokens of the users who cause the load.
    pub(crate) tokens: Vec<String>,
    pub(crate) polite_token: String,
    _directory: TempDir,
}

impl ServerProcess {
    /// Starts the program on a free port, with `users` users and a polite one.
    pub(crate) fn start(program: &Path, users: usize, pin: Option<usize>, options: &[String]) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let store = format!("sqlite:{}", directory.path().join("plants.db").display());
        let mut command = match pin {
            Some(core) => {
                let mut command = Command::new("taskset");
                command.arg("-c").arg(core.to_string()).arg(program);
                command
            }
            None => Command::new(program),
        };
        let log = File::create(directory.path().join("log"))?;
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-first-token"]).args(options);
        command.env_clear().env("PLANTSTORE_STORE", &store).stdin(Stdio::null());
        let mut process = command.stdout(Stdio::piped()).stderr(log).spawn().context("the program runs")?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("its output")?).read_line(&mut line)?;
        let address = line.trim().strip_prefix("Listening on http://").context("a server that listens")?.parse()?;
        let mut server =
            Self { process, address, tokens: Vec::new(), polite_token: String::new(), _directory: directory };
        for user in 0..=users {
            let mut command = Command::new(program);
            command.args(["token", "create", "--user", &format!("user-{user}")]);
            let output = command.env_clear().env("PLANTSTORE_STORE", &store).output()?;
            ensure!(output.status.success(), "no token: {}", String::from_utf8_lossy(&output.stderr));
            server.tokens.push(String::from_utf8(output.stdout)?.trim_end().to_owned());
        }
        server.polite_token = server.tokens.pop().context("a token of the polite user")?;
        Ok(server)
    }

    /// Returns the peak resident memory of the process in MB.
    pub(crate) fn memory_peak_mb(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak.and_then(|kilobytes| kilobytes.parse::<u64>().ok()).unwrap_or(0) / 1_024
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
