//! Commands and servers under strace, which delays their system calls or makes them fail.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use super::tools::external;
use super::{Server, Store, signal, wait_for};

/// A command under strace, and the file with its process id.
pub(crate) struct StraceCommand {
    strace: Child,
    id: PathBuf,
}

impl StraceCommand {
    /// Starts a command with system calls changed by `inject`, in the syntax of strace.
    pub(crate) fn start(store: &Store, inject: &str, arguments: &[&str]) -> Self {
        Self::start_after(store, ":", inject, arguments)
    }

    /// Runs a shell command first, then starts the traced command.
    pub(crate) fn start_after(store: &Store, first: &str, inject: &str, arguments: &[&str]) -> Self {
        let id = store.directory().join("traced.pid");
        let _ = std::fs::remove_file(&id);
        let call = inject.split(':').next().unwrap();
        let (trace, inject) = (format!("trace={call}"), format!("inject={inject}"));
        let script = format!("{first}; echo $$ > traced.pid; exec \"$@\"");
        let wrapper = ["strace", "-f", "-qq", "-o/dev/null", "-e", &trace, "-e", &inject];
        let wrapper = [&wrapper[..], &["sh", "-c", &script, "sh"]].concat();
        let mut command = store.command_through(&wrapper, arguments);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { strace: command.spawn().expect("strace, which scripts/test installs, runs"), id }
    }

    /// Sends a signal to the command.
    #[track_caller]
    pub(crate) fn signal(&self, name: &str) {
        let id = wait_for("the process id", || std::fs::read_to_string(&self.id).ok()?.trim_end().parse().ok());
        signal(id, name);
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.strace
    }

    /// Waits until the command ends. The exit code is that of the command.
    pub(crate) fn wait(self) -> Output {
        let output = self.strace.wait_with_output().expect("strace ends");
        let _ = std::fs::remove_file(&self.id);
        output
    }
}

/// An strace process that makes system calls of a running server fail.
pub(crate) struct FaultInjector(Child);

impl FaultInjector {
    /// Attaches to a server, with these options of strace.
    pub(crate) fn attach(server: &Server, options: &[&str]) -> Self {
        let mut child = external("strace")
            .arg("-f")
            .args(options)
            .args(["-p", &server.id().to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace is missing: scripts/test installs it");
        let mut stderr = String::new();
        BufReader::new(child.stderr.as_mut().expect("standard error is piped")).read_line(&mut stderr).expect("a line");
        assert!(stderr.contains("attached"), "{stderr}");
        Self(child)
    }
}

impl Drop for FaultInjector {
    fn drop(&mut self) {
        // SIGTERM, not SIGKILL: strace has to detach from the server.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}
